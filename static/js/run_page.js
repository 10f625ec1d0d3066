// One benchmark run: its charts, and the level whose seconds and requests are shown.
import { drawRun, drawSeconds, drawTimeline, escaped, figures, number, PARTS, stretch } from "./run_charts.js";

const data = JSON.parse(document.getElementById("run-data").textContent);
drawRun(data);

const card = document.querySelector("[data-level-detail]");
if (card) {
  const select = card.querySelector("select"), said = card.querySelector("[data-level-said]"), got = new Map();
  const table = (id, heads, rows) => {
    const place = document.getElementById(id);
    if (place) place.innerHTML = `<thead><tr>${heads.map((head) => `<th class="num">${escaped(head)}</th>`).join("")}</tr></thead><tbody>${rows.map((row) => `<tr>${row.map((cell) => `<td class="num">${escaped(cell)}</td>`).join("")}</tr>`).join("")}</tbody>`;
  };
  const show = (detail) => {
    const seconds = drawSeconds(detail, data.practice), requests = drawTimeline(detail, data.practice);
    for (const [part, there] of [["seconds", seconds], ["requests", requests]]) for (const element of card.querySelectorAll(`[data-part="${part}"]`)) element.hidden = !there;
    for (const button of card.querySelectorAll("[data-png]")) button.dataset.pngTitle = `${button.closest(".card-part").querySelector("h3").textContent}, ${detail.load === "open" ? detail.label : `C = ${detail.label}`}`;
    said.textContent = seconds || requests ? "" : "Neither its seconds nor its requests were kept.";
    if (seconds) table("seconds-table", ["second", "tok/s", ""], detail.seconds.tok_s.map((value, n) => { const at = n * detail.seconds.step; return [String(at), figures(value), detail.seconds.from !== null && at >= detail.seconds.from && at < detail.seconds.to ? "steady" : ""]; }));
    if (requests) table("requests-table", ["request", "sent at s", ...PARTS.map(([, title]) => `${title} ms`), "error"],
      detail.timeline.map((row, n) => [String(n + 1), number(row.s / 1000, 2), ...PARTS.map(([name]) => { const at = stretch(row, name); return at ? number(at[1] - at[0]) : "0"; }), row.err.replaceAll("_", " ")]));
  };
  const choose = async () => {
    const key = select.value;
    if (!got.has(key)) {
      let answer;
      try { answer = await fetch(card.dataset.levelDetail.replace("LEVEL", encodeURIComponent(key))); } catch { said.textContent = "No connection: choose it again in a moment."; return; }
      if (!answer.ok) { said.textContent = "This level could not be read."; return; }
      got.set(key, await answer.json());
    }
    if (select.value === key) show(got.get(key)); // another one may have been chosen meanwhile
  };
  select.addEventListener("change", choose);
  choose();
}
// A permalink copies as the whole address.
for (const button of document.querySelectorAll("[data-copy-address]")) button.dataset.copy = location.href.split("#")[0];
