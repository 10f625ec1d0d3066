// Buttons that copy: data-copy="text", or data-copy-from="id" of an element whose text is taken. The answer is said in the button itself.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy], [data-copy-from]");
  if (!button) return;
  const source = button.dataset.copyFrom ? document.getElementById(button.dataset.copyFrom) : null;
  const text = button.dataset.copy ?? source?.value ?? source?.textContent ?? "";
  const label = button.querySelector("[data-label]");
  let said = "Copied";
  try { await navigator.clipboard.writeText(text); }
  catch { said = byHand(text) ? "Copied" : "Copying is forbidden here"; } // no permission, or a page without HTTPS
  if (label) { const before = label.dataset.label; label.textContent = said; setTimeout(() => { label.textContent = before; }, 1600); }
  else { const before = button.title; button.title = said; button.setAttribute("aria-label", said); setTimeout(() => { button.title = before; button.setAttribute("aria-label", "Copy"); }, 1600); }
});
function byHand(text) {
  const area = document.createElement("textarea");
  area.value = text; area.className = "visually-hidden";
  document.body.append(area); area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
