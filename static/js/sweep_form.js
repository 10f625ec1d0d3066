// The form of a sweep: what a preset has stands in the empty fields, and what the sweep will take is worked out while somebody types.
const form = document.querySelector("[data-sweep-form]");
const defaults = JSON.parse(document.getElementById("preset-defaults").textContent);
const size = form.querySelector("[data-size]");
let timer = 0, asked = 0;

function showDefaults() {
  const shown = defaults[new FormData(form).get("preset")] ?? {};
  for (const [name, text] of Object.entries(shown)) {
    const field = form.elements.namedItem(name);
    if (field instanceof HTMLInputElement) field.placeholder = text;
    else if (field instanceof HTMLSelectElement && field.options[0]?.value === "") field.options[0].textContent = `as the preset has it: ${text}`;
  }
}

async function workOut() {
  const mine = ++asked, told = new URLSearchParams(new FormData(form));
  for (const name of ["csrfmiddlewaretoken", "idempotency_key"]) told.delete(name);
  let answer;
  try { answer = await fetch(`${location.pathname}?${told}`, { headers: { "X-Roundhouse-Fragment": "size" } }); }
  catch { return; } // the console is away for a moment: the next change asks again
  if (mine === asked && answer.ok) size.innerHTML = await answer.text(); // our own server's template, escaped there
}

form.addEventListener("input", (event) => {
  if (event.target.name === "preset") showDefaults();
  clearTimeout(timer);
  timer = setTimeout(workOut, 250);
});
for (const button of form.querySelectorAll("[data-fill]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const field = form.elements.namedItem(button.dataset.fill);
    field.value = button.dataset.value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}
form.querySelector("[data-work-out]").hidden = true; // it is worked out by itself
showDefaults();
