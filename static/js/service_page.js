// A service's page: throughput over time and its warmups. State and lists are fetched again by a reload when a job of it ended.
import { chart, label, practiceMark, target, token, unit } from "./charts.js";
import { stream } from "./stream.js";
import { clock, written } from "./clock.js";
import { servicesDiffer } from "./gpus.js";

const read = (id) => { const element = document.getElementById(id); return element ? JSON.parse(element.textContent) : null; };
const history = read("history-data");
let chosen = history && Object.keys(history.series)[0];
function drawHistory() {
  const rows = history.series[chosen] ?? [], goal = history.target.length === 2 && chosen === "1" ? history.target : null;
  const values = rows.map((r) => r.tput), low = Math.min(...values, ...(goal ?? [])), high = Math.max(...values, ...(goal ?? []));
  const pad = Math.max((high - low) * 0.25, high * 0.06), changes = rows.filter((r, n) => n === 0 || r.release !== rows[n - 1].release);
  const short = (name) => { // dev344 of a nightly, else the version without its build
    const version = (name ?? "").replace(/^\d{8}-?\d{6}-/, "").replace(/-practice$|\+.*$/, "");
    return /\.(dev\d+)/.exec(version)?.[1] ?? version;
  };
  chart("history", () => ({
    data: [{ type: "scatter", mode: "lines+markers", x: rows.map((r) => r.at), y: values, cliponaxis: false, text: rows.map((r) => `${r.release || "release not known"}${r.job ? `, #${r.job}` : ""}${r.short ? ", short" : ""}`),
      line: { color: token("series-1"), width: 1.5, shape: "hv" }, marker: { color: token("series-1"), size: 7, symbol: rows.map((r) => r.short ? "circle-open" : "circle"), line: { color: rows.map((r) => token(r.short ? "series-1" : "surface")), width: 1.5 } },
      hovertemplate: "%{y:,.1f} tok/s<br>%{text}<br>%{x|%-d %b %H:%M}<extra></extra>" }],
    layout: { margin: { l: 52, r: 76, t: 30, b: 32 }, xaxis: { type: "date", nticks: innerWidth < 600 ? 3 : 6, tickformat: Date.parse(rows.at(-1).at) - Date.parse(rows[0].at) > 2 * 864e5 ? "%-d %b" : "%-d %b %H:%M", ...(rows.length === 1 ? { range: [new Date(Date.parse(rows[0].at) - 36e5).toISOString(), new Date(Date.parse(rows[0].at) + 36e5).toISOString()] } : {}) },
      yaxis: { range: [Math.max(0, low - pad), high + pad], rangemode: "normal" },
      shapes: goal ? [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: goal[0], y1: goal[1], fillcolor: token("chart-floor"), line: { width: 0 }, layer: "below" }, target(goal[1], "").shape] : [],
      annotations: [unit("tok/s"), ...(history.practice ? [practiceMark()] : []), ...(goal ? [{ ...target(0, "").note, x: 1, y: (goal[0] + goal[1]) / 2, yanchor: "middle", xshift: 8, text: `target<br>${goal[0]}–${goal[1]}`, align: "left" }] : []),
        ...(rows.length ? [label(rows.at(-1).at, values.at(-1), values.at(-1).toLocaleString("en", { maximumFractionDigits: 1 }), "series-1", { logx: false })] : []),
        ...changes.slice(-6).map((r) => ({ x: r.at, y: r.tput, text: short(r.release), showarrow: false, yshift: 16, font: { size: 11, color: token("text-muted") } }))] } }));
}
if (history && document.getElementById("history") && chosen !== undefined) {
  const group = document.querySelector("[data-levels]");
  if (group) for (const c of Object.keys(history.series)) {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = `C = ${c}`; button.setAttribute("aria-pressed", String(c === chosen));
    button.addEventListener("click", () => { chosen = c; for (const other of group.children) other.setAttribute("aria-pressed", String(other === button)); drawHistory(); });
    group.append(button);
  }
  drawHistory();
}
const warmups = read("warmups-data");
if (warmups && document.getElementById("warmups")) {
  const legend = document.querySelector("[data-warmup-legend]");
  const bars = warmups.bars.slice(innerWidth < 600 ? -4 : -8); // narrow: fewer bars, not thinner ones
  // At most five parts: the longest stay, the others are one.
  const total = (phase) => bars.reduce((sum, bar) => sum + (bar.phases[phase.phase] ?? 0), 0);
  const named = [...warmups.phases].sort((a, b) => total(b) - total(a)).slice(0, 4), order = warmups.phases.filter((p) => named.includes(p));
  const parts = [...order.map((p) => ({ title: p.title, of: (bar) => bar.phases[p.phase] ?? 0 })), { title: "the rest", of: (bar) => Math.max(0, (bar.total_s ?? 0) - order.reduce((s, p) => s + (bar.phases[p.phase] ?? 0), 0)) }];
  const longest = Math.max(...bars.map((bar) => bar.total_s)), minutes = longest >= 120, scale = minutes ? 60 : 1;
  parts.forEach((part, n) => { const span = document.createElement("span"), swatch = document.createElement("i"); swatch.className = `swatch part-${n + 1}`; span.append(swatch, part.title); legend?.append(span); });
  // Two may have ended in the same minute: they stand by their place, and are named by job or time, and whether the compile cache was cold.
  const x = bars.map((_, n) => n), day = (bar) => bar.at ? written(new Date(bar.at), "short").replace(/ (?=\d\d:\d\d$)/, "<br>") : "", names = bars.map((bar) => (bar.job ? `#${bar.job}` : day(bar)) + (bar.cache === "miss" ? "<br>cold" : ""));
  const times = bars.map((bar) => bar.total_s).sort((a, b) => a - b), half = times.length >> 1, usual = times.length % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
  chart("warmups", () => ({
    data: parts.map((part, n) => ({ type: "bar", name: part.title, x, y: bars.map((bar) => part.of(bar) / scale), width: bars.length < 3 ? 0.18 : 0.5,
      marker: { color: token(`part-${n + 1}`), line: { color: token("surface"), width: 1 } }, hovertemplate: `${part.title} %{y:.1f} ${minutes ? "min" : "s"}<extra></extra>` })),
    layout: { barmode: "stack", margin: { l: 52, r: 76, t: 30, b: names.some((name) => name.includes("<br>")) ? 58 : 32 }, xaxis: { tickvals: x, ticktext: names, range: [-0.6, bars.length - 0.4] }, yaxis: { range: [0, longest / scale * 1.2] }, shapes: bars.length > 1 ? [target(usual / scale, "").shape] : [],
      annotations: [unit(minutes ? "min" : "seconds"), ...(warmups.practice ? [practiceMark()] : []), ...(bars.length > 1 ? [{ ...target(usual / scale, "usual").note, x: 1, yanchor: "middle", xshift: 8 }] : []),
        ...bars.map((bar, n) => ({ x: n, y: bar.total_s / scale, yshift: 10, text: minutes ? clock(bar.total_s) : `${bar.total_s.toFixed(1)} s`, showarrow: false, font: { size: 11, color: token("text"), weight: 500 } }))] } }));
}
// Its state is in the page's head, its notices and its buttons: when it is another one for some seconds, the page is loaded anew. So it is when the
// node has another failure to tell, or has found out why.
const head = document.querySelector("[data-failure]");
const toldFailure = (services) => { const told = services?.[head?.dataset.service]?.failure; return typeof told === "string" && told !== head.dataset.failure && told !== sessionStorage.getItem("failure-seen") ? told : null; };
let differs = 0;
stream?.on("telemetry", (told) => {
  if (!servicesDiffer(document, told.services) && toldFailure(told.services) === null) { differs = 0; return; }
  differs += 1;
  if (differs < 6 || document.querySelector("dialog[open], details[open]")) return;
  const failure = toldFailure(told.services); // once for each: should the console keep another form of it, the page is not loaded for ever
  if (failure !== null) sessionStorage.setItem("failure-seen", failure);
  location.reload();
});
// A job of this page that ended changes nearly all of it.
const open = new Set();
stream?.on("jobs", ({ job }) => {
  if (!job) return;
  if (["succeeded", "partial", "failed", "cancelled", "interrupted"].includes(job.state)) { if (open.has(job.id) && !document.querySelector("dialog[open]")) setTimeout(() => location.reload(), 800); } else open.add(job.id);
});
