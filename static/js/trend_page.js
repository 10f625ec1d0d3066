// One number of one level over time: points, the medians of stretches in which nothing changed, and numbers where something did.
import { chart, label, practiceMark, target, token, unit } from "./charts.js";
import { escaped, figures, number } from "./run_charts.js";
import { written } from "./clock.js";

for (const form of document.querySelectorAll("[data-submit-at-once]")) {
  form.querySelector("[data-submit-button]").hidden = true;
  form.addEventListener("change", () => form.requestSubmit());
}
const data = JSON.parse(document.getElementById("trend-data").textContent);
const short = (name) => { const version = (name ?? "").replace(/^\d{8}-?\d{6}-/, "").replace(/-practice$|\+.*$/, ""); return /\.(dev\d+)/.exec(version)?.[1] ?? version; };
const values = data.points.map((p) => p.value), goal = data.target.length === 2 ? data.target : null;
const low = Math.min(...values, ...(goal ?? [])), high = Math.max(...values, ...(goal ?? [])), pad = Math.max((high - low) * 0.25, high * 0.06);
const hover = (p) => `${figures(p.value)} ${escaped(data.unit)}${p.baseline ? "   baseline" : ""}<br>${escaped(short(p.release) || "release not known")}${p.job ? `, #${p.job}` : ""}${p.label ? `<br>${escaped(p.label)}` : ""}<br>n ${number(p.n)}, ${number(p.errors)} errors${p.marks.length ? `<br>${escaped(p.marks.join(", "))}` : ""}<br>${written(new Date(p.at), "full")}`;
// The last stretch goes on to the right edge, the others to the change that ended them.
const until = (n) => data.stretches[n + 1]?.first ?? data.stretches[n].last;
const range = [Math.max(0, low - pad), high + pad], first = Date.parse(data.points[0].at), end = Date.parse(data.points.at(-1).at), room = end > first ? Math.max(6e4, (end - first) * 0.04) : 36e5;
chart("trend", () => ({
  data: [
    ...data.stretches.map((s, n) => ({ type: "scatter", mode: "lines", x: [s.first, until(n)], y: [s.median, s.median], line: { color: token("series-1"), width: 2 }, hoverinfo: "skip" })),
    { type: "scatter", mode: "markers", x: data.points.map((p) => p.at), y: values, text: data.points.map(hover), customdata: data.points.map((p) => p.run), hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
      marker: { opacity: 1, size: data.points.map((p) => p.baseline ? 12 : 8), color: token("series-1"), symbol: data.points.map((p) => p.baseline ? "diamond" : p.short || p.marks.length ? "circle-open" : "circle"), line: { width: 1.5, color: data.points.map((p) => token(p.short || p.marks.length ? "series-1" : "surface")) } } }],
  layout: { margin: { l: 54, r: 76, t: 30, b: 32 }, xaxis: { type: "date", range: [new Date(first - room).toISOString(), new Date(end + room).toISOString()], nticks: innerWidth < 600 ? 3 : 7, tickformat: end - first > 2 * 864e5 ? "%-d %b" : "%-d %b %H:%M" },
    yaxis: { range, rangemode: "normal" },
    shapes: [...data.changes.map((c) => ({ type: "line", x0: c.at, x1: c.at, yref: "paper", y0: 0, y1: 1, line: { color: token("line-firm"), width: 1, dash: "2px 3px" }, layer: "below" })),
      ...(goal ? [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: goal[0], y1: goal[1], fillcolor: token("chart-floor"), line: { width: 0 }, layer: "below" }, target(goal[0], "").shape] : [])],
    annotations: [unit(data.unit), ...(data.practice ? [practiceMark()] : []),
      ...data.changes.map((c) => ({ x: c.at, yref: "paper", y: 1, yanchor: "top", text: String(c.number), hovertext: c.words.map(escaped).join("<br>").replaceAll("`", ""), captureevents: true, showarrow: false, bgcolor: token("selected"), borderpad: 3, font: { size: 11, weight: 600, color: token("text") } })),
      ...(goal ? [{ ...target(0, "").note, x: 1, y: (goal[0] + goal[1]) / 2, yanchor: "middle", xshift: 8, text: `target<br>${figures(goal[0])}–${figures(goal[1])}`, align: "left" }] : []),
      label(data.stretches.at(-1).last, data.stretches.at(-1).median, figures(data.stretches.at(-1).median), "series-1", { logx: false, xshift: 14 })] } }));
document.getElementById("trend").on?.("plotly_click", ({ points }) => { if (points[0]?.customdata) location.assign(`/benchmarks/${points[0].customdata}/`); });
