// The page that compares runs: its charts, what the table shows, and everything as pictures.
import { savePng } from "./charts.js";
import { comparisonCharts } from "./comparison_charts.js";

const told = document.getElementById("comparison-data");
if (told) comparisonCharts(JSON.parse(told.textContent));

// Which rows of the table of differences are shown: all, or those with a verdict.
const table = document.querySelector("[data-differences]");
for (const button of document.querySelectorAll("[data-show-rows]")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-show-rows]")) other.setAttribute("aria-pressed", String(other === button));
    let shown = 0;
    for (const row of table.querySelectorAll("tbody tr[data-decided]")) { row.hidden = button.dataset.showRows === "decided" && row.dataset.decided === "no"; shown += !row.hidden; }
    table.querySelector("[data-none]").hidden = shown > 0;
  });
}
// A choice goes to its address at once; without a script its form has a button.
for (const select of document.querySelectorAll("select[data-go]")) {
  select.form.querySelector("button")?.setAttribute("hidden", "");
  select.addEventListener("change", () => select.form.submit());
}
document.querySelector("[data-all-png]")?.addEventListener("click", async (event) => {
  event.target.closest("details")?.removeAttribute("open");
  for (const button of document.querySelectorAll("[data-png]")) {
    const title = button.closest(".card").querySelector("h2").textContent.trim();
    await savePng(button.dataset.png, { title: `${title} · Compare`, name: `compare ${title}` });
  }
});
// Ticking runs to compare: the button says how many.
const pick = document.querySelector("form[data-pick]");
if (pick) {
  const button = pick.querySelector("button[type=submit]"), count = () => {
    const many = pick.querySelectorAll("input[name=run]:checked").length;
    button.disabled = many < 2;
    button.querySelector("[data-count]").textContent = many ? ` ${many} runs` : "";
  };
  pick.addEventListener("change", count);
  count();
}
