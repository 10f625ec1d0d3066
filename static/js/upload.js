// A file that is too large is told at once, before it is sent: input[type=file][data-limit] (bytes), with its message in the element that follows.
document.addEventListener("change", (event) => {
  const input = event.target;
  if (!input.matches?.("input[type=file][data-limit]")) return;
  const limit = Number(input.dataset.limit), file = [...input.files].find((one) => one.size > limit);
  const told = document.getElementById(input.dataset.problem);
  const tooLarge = Boolean(file);
  told.textContent = tooLarge ? `${input.multiple ? file.name : "This file"} has ${(file.size / 1e6).toFixed(0)} MB, and at most ${(limit / 1e6).toFixed(0)} are taken. ${told.dataset.instead ?? ""}` : "";
  input.removeAttribute("aria-invalid");
  if (tooLarge) { input.setAttribute("aria-invalid", "true"); input.value = ""; }
});
