// The list of runs: which are ticked is remembered while one pages, filters and orders, and goes into the address of Compare.
const form = document.querySelector("[data-chosen-runs]"), KEY = "chosen-runs";
if (form) {
  const said = form.querySelector("[data-chosen-count]"), go = form.querySelector("[data-chosen-go]"), none = form.querySelector("[data-chosen-none]");
  const words = said.textContent;
  let chosen;
  try { chosen = new Set(JSON.parse(sessionStorage.getItem(KEY)) ?? []); } catch { chosen = new Set(); }
  const boxes = () => document.querySelectorAll('input[name="run"][form="compare"]');
  const show = () => {
    for (const box of boxes()) { box.checked = chosen.has(box.value) && !box.disabled; box.closest("tr").classList.toggle("selected", box.checked); }
    said.textContent = chosen.size ? `${chosen.size} ${chosen.size === 1 ? "run" : "runs"} ticked${chosen.size === 1 ? "; tick another one" : ""}` : words;
    go.disabled = chosen.size < 2; go.classList.toggle("btn-primary", chosen.size > 1); none.hidden = !chosen.size;
    sessionStorage.setItem(KEY, JSON.stringify([...chosen]));
  };
  document.addEventListener("change", (event) => {
    if (!event.target.matches('input[name="run"][form="compare"]')) return;
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    show();
  });
  none.addEventListener("click", () => { chosen.clear(); show(); });
  // Those on other pages of the list have no box here: they go along as hidden fields, in the order in which they were ticked.
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const query = new URLSearchParams([...chosen].map((id) => ["run", id]));
    location.assign(`${form.action}?${query}`);
  });
  document.addEventListener("fragment", show);
  document.addEventListener("htmx:afterSwap", show);
  addEventListener("pageshow", show);
  show();
}
