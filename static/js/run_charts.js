// The charts of one run. Data is dashboard/run_charts.py `run_data`, and `level_detail` of the level that was chosen; every number has a twin in a table.
import { chart, concurrencyAxis, curve, faded, label, practiceMark, target, token, unit } from "./charts.js";

const narrow = () => matchMedia("(max-width: 600px)").matches;
export const number = (value, digits = 0) => value === null || value === undefined ? "n/a" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const figures = (value) => value === null || value === undefined ? "n/a" : number(value, Math.abs(value) >= 99.95 || Math.abs(value - Math.round(value)) < 0.05 ? 0 : Math.abs(value) < 1 ? 2 : 1);
const known = (points, name) => points.filter((p) => p[name] !== null && p[name] !== undefined);
export const escaped = (text) => String(text).replace(/[<>&]/g, (c) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[c]);
export const named = (point) => point.load === "open" ? `${point.value} requests/s` : `C = ${point.label}`;
const short = (point) => point.load === "open" ? `${point.value}/s` : point.label;
// Marks that take a level out of comparisons are drawn as open markers.
const DOUBTED = ["short", "never full", "client-bound", "errors", "reasoning only", "counted by chunks", "bunched", "cut", "length not obeyed", "length not counted", "overloaded"];
const doubted = (point) => point.marks.some((mark) => DOUBTED.includes(mark));

function hover(p) {
  const ended = (p.finished ?? 0) + (p.errors ?? 0);
  return `${escaped(named(p))}   ${figures(p.tput)} tok/s ${p.window ?? ""}${p.whole !== null && p.window === "steady" ? `, whole run ${figures(p.whole)}` : ""}`
    + `<br>latency P50 ${figures(p.e2e_p50)} · P90 ${figures(p.e2e_p90)} · P99 ${figures(p.e2e_p99)} s`
    + `<br>TTFT P50 ${figures(p.ttft_p50)} · P90 ${figures(p.ttft_p90)} · P99 ${figures(p.ttft_p99)} ms`
    + `<br>TPOT P50 ${figures(p.tpot_p50)} · P99 ${figures(p.tpot_p99)} ms`
    + (p.goodput !== null ? `<br>goodput ${figures(p.goodput)} requests/s` : "")
    + `<br>n ${number(p.finished)}, ${number(p.errors)} errors of ${number(ended)}${p.marks.length ? `<br>${escaped(p.marks.join(", "))}` : ""}`;
}
function loadAxis(points, load) {
  const title = load === "open" ? "requests a second, offered" : narrow() ? "concurrency" : "concurrent requests";
  const values = [...new Set(points.map((p) => p.value))].sort((a, b) => a - b);
  return { ...concurrencyAxis(values, title), ticktext: values.map((v) => v.toLocaleString("en", { maximumFractionDigits: 3 })) };
}
function line(points, name, options = {}) {
  const rows = known(points, name), made = curve({ x: rows.map((p) => p.value), y: rows.map((p) => p[name]), name: options.name ?? name, hover: rows.map(hover), ...options });
  made.marker.symbol = rows.map((p) => doubted(p) ? `${made.marker.symbol}-open` : made.marker.symbol);
  made.marker.line = { width: 1.5, color: rows.map((p) => doubted(p) ? made.marker.color : token("surface")) };
  if (options.dash) made.line.dash = options.dash;
  if (options.quiet) made.marker = { ...made.marker, size: 5 };
  return made;
}
function band(points, low, high, alpha) {
  const rows = points.filter((p) => p[low] !== null && p[high] !== null);
  return rows.length > 1 ? [{ type: "scatter", mode: "lines", x: [...rows.map((p) => p.value), ...rows.map((p) => p.value).reverse()], y: [...rows.map((p) => p[low]), ...rows.map((p) => p[high]).reverse()],
    fill: "toself", fillcolor: faded("series-1", alpha), line: { width: 0 }, hoverinfo: "skip" }] : [];
}
const top = (values) => { const most = Math.max(0, ...values.filter((v) => typeof v === "number" && Number.isFinite(v))); return most ? [0, most * 1.16] : undefined; };
// Labels at the right end of lines, moved apart where they would lie on each other.
function ends(items, range, height = 190) {
  const placed = items.filter((item) => item && item.y !== null && item.y !== undefined).sort((a, b) => a.y - b.y);
  let below = -Infinity;
  return placed.map(({ x, y, text, color }) => {
    const wanted = y / (range?.[1] || 1) * height, shown = Math.max(wanted, below + 14);
    below = shown;
    return label(x, y, text, color ?? "series-1", { yshift: shown - wanted });
  });
}
const last = (points, name) => known(points, name).at(-1);
const end = (points, name, text, color) => { const p = last(points, name); return p && { x: p.value, y: p[name], text: typeof text === "function" ? text(p) : text, color }; };
const margin = (right) => ({ l: 54, r: right, t: 28, b: 44 });

export function drawRun(data) {
  const points = data.points, mark = () => data.practice ? [practiceMark()] : []; // asked for anew in each drawing: the theme may have changed
  const axis = () => loadAxis(points, data.load);
  const simple = (id, names, unitText, build) => { if (points.some((p) => names.some((n) => p[n] !== null && p[n] !== undefined))) chart(id, build); };

  simple("throughput", ["tput"], "tok/s", () => {
    const whole = points.some((p) => p.steady !== null && p.whole !== null), range = top(points.flatMap((p) => [p.tput, p.whole]));
    return { data: [...(whole ? [line(points, "whole", { name: "whole run", color: "series-base", width: 1.25, marker: 1, dash: "4px 3px", quiet: true })] : []), line(points, "tput", { name: "steady" })],
      layout: { margin: margin(whole ? 84 : 52), xaxis: axis(), yaxis: { range }, annotations: [unit("tok/s"), ...mark(),
        ...ends([end(points, "tput", (p) => whole ? `steady ${figures(p.tput)}` : figures(p.tput)), whole && end(points, "whole", "whole run", "series-base")], range)] } };
  });
  simple("latency", ["e2e_p50", "mean"], "seconds", () => {
    const name = points.some((p) => p.e2e_p50 !== null) ? "e2e_p50" : "mean", range = top(points.flatMap((p) => [p[name], p.e2e_p90, p.e2e_p99]));
    return { data: [...band(points, name, "e2e_p90", 0.16), ...band(points, name, "e2e_p99", 0.14), ...(known(points, "e2e_p99").length ? [line(points, "e2e_p99", { name: "P99", color: "series-2", marker: 2, width: 1.25, quiet: true })] : []), line(points, name, { name: name === "mean" ? "mean" : "P50" })],
      layout: { margin: margin(52), xaxis: axis(), yaxis: { range }, annotations: [unit("seconds"), ...mark(), ...ends([end(points, name, name === "mean" ? "mean" : "P50"), end(points, "e2e_p99", "P99", "series-2")], range)],
        shapes: slo(data.slos.e2e_s, range) } };
  });
  simple("ttft", ["ttft_p50", "ttfc_p50"], "ms", () => {
    const range = top([...points.flatMap((p) => [p.ttft_p50, p.ttft_p90, p.ttft_p99]), data.slos.ttft_ms]);
    return { data: [...band(points, "ttft_p50", "ttft_p90", 0.18), ...band(points, "ttft_p90", "ttft_p99", 0.09),
      ...[["ttft_p99", "P99", "series-2", 2], ["ttft_p90", "P90", "series-base", 1]].filter(([n]) => known(points, n).length).map(([n, name, color, marker]) => line(points, n, { name, color, marker, width: 1.25, quiet: true })), line(points, "ttft_p50", { name: "P50" })],
      layout: { margin: margin(52), xaxis: axis(), yaxis: { range }, shapes: slo(data.slos.ttft_ms, range),
        annotations: [unit("ms"), ...mark(), ...sloNote(data.slos.ttft_ms, "ms", range), ...ends([end(points, "ttft_p50", "P50"), end(points, "ttft_p90", "P90", "series-base"), end(points, "ttft_p99", "P99", "series-2")], range)] } };
  });
  simple("tpot", ["tpot_p50"], "ms", () => {
    const range = top([...points.flatMap((p) => [p.tpot_p50, p.tpot_p99]), data.slos.tpot_ms]);
    return { data: [...band(points, "tpot_p50", "tpot_p99", 0.14), ...(known(points, "tpot_p99").length ? [line(points, "tpot_p99", { name: "P99", color: "series-2", marker: 2, width: 1.25, quiet: true })] : []), line(points, "tpot_p50", { name: "P50" })],
      layout: { margin: margin(52), xaxis: axis(), yaxis: { range }, shapes: slo(data.slos.tpot_ms, range),
        annotations: [unit("ms a token"), ...mark(), ...sloNote(data.slos.tpot_ms, "ms", range), ...ends([end(points, "tpot_p50", "P50"), end(points, "tpot_p99", "P99", "series-2")], range)] } };
  });
  drawPareto(data, points, mark);
  if (data.rates.length) chart("goodput", () => {
    const rows = data.rates, open = rows[0].load === "open", range = top([...rows.map((p) => p.goodput), ...rows.map((p) => p.requests_s)]);
    return { data: [...(known(rows, "requests_s").length ? [line(rows, "requests_s", { name: "all", color: "series-base", width: 1.25, marker: 1, dash: "4px 3px", quiet: true })] : []), line(rows, "goodput", { name: "good" })],
      layout: { margin: margin(60), xaxis: loadAxis(rows, open ? "open" : "closed"), yaxis: { range },
        annotations: [unit("requests/s"), ...mark(), ...ends([end(rows, "goodput", "good"), end(rows, "requests_s", "all", "series-base")], range)] } };
  });
  for (const [id, shapes] of [["ecdf-ttft", data.shapes.ttft], ["ecdf-icl", data.shapes.icl]]) if (Object.keys(shapes).length) drawShapes(id, shapes, mark);
}
const slo = (value, range) => value && range ? [target(value, "").shape] : [];
const sloNote = (value, text, range) => value && range ? [{ ...target(value, "").note, text: `SLO ${number(value)} ${text}` }] : [];

// Throughput per GPU against speed per user: nobody is better in both than a point of the front.
function drawPareto(data, points, mark) {
  const perGpu = points.some((p) => p.per_gpu !== null), name = perGpu ? "per_gpu" : "tput";
  const rows = points.filter((p) => p.user !== null && p[name] !== null);
  if (!rows.length) return;
  const front = rows.filter((p) => !rows.some((q) => q !== p && q.user >= p.user && q[name] >= p[name] && (q.user > p.user || q[name] > p[name]))).sort((a, b) => a.user - b.user);
  chart("pareto", () => {
    const range = top(rows.map((p) => p[name])), wide = top([...rows.map((p) => p.user), ...data.target]), on = (p) => front.includes(p), [low, high] = data.target;
    return { data: [
      { type: "scatter", mode: "lines", x: front.map((p) => p.user), y: front.map((p) => p[name]), line: { color: token("series-1"), width: 2 }, hoverinfo: "skip" },
      { type: "scatter", mode: "markers", x: rows.map((p) => p.user), y: rows.map((p) => p[name]), text: rows.map((p) => `${hover(p)}<br>${figures(p.user)} tok/s per user, ${figures(p[name])} tok/s${perGpu ? " per GPU" : ""}${on(p) ? "" : "<br>another level is better in both"}`),
        hovertemplate: "%{text}<extra></extra>", cliponaxis: false, marker: { size: 9, color: rows.map((p) => on(p) ? token("series-1") : faded("series-1", 0.35)), symbol: rows.map((p) => doubted(p) ? "circle-open" : "circle"), line: { width: 1.5, color: rows.map((p) => doubted(p) ? token("series-1") : token("surface")) } } }],
      layout: { margin: margin(40), xaxis: { range: wide, title: { text: "tok/s per user (1,000 / median TPOT)", standoff: 8 }, showgrid: false }, yaxis: { range },
        shapes: low !== undefined ? [{ type: "rect", yref: "paper", y0: 0, y1: 1, x0: low, x1: high ?? low, fillcolor: token("chart-floor"), line: { width: 0 }, layer: "below" }] : [],
        annotations: [unit(perGpu ? "tok/s per GPU" : "tok/s"), ...mark(), ...rows.map((p, n) => ({ x: p.user, y: p[name], text: n === 0 && p.load === "closed" ? `C = ${p.label}` : short(p), showarrow: false, xanchor: "left", xshift: 7, yshift: 9, font: { size: 11, color: token("text-muted") } })),
          ...(low !== undefined ? [{ x: (low + (high ?? low)) / 2, yref: "paper", y: 1, yanchor: "top", text: "target", showarrow: false, font: { size: 11, color: token("text-muted") } }] : [])] } };
  });
}

// Distributions of all levels over each other: one hue, the darker the higher the load.
const channels = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);
function shade(share) {
  const from = channels(token("part-5")), to = channels(token("part-1"));
  return `rgb(${from.map((v, n) => Math.round(v + (to[n] - v) * share)).join(", ")})`;
}
// 1, 2 and 5 of each decade, fewer where there are many decades.
function decades(low, high) {
  const steps = Math.log10(high / low) > 3 || narrow() ? [1] : Math.log10(high / low) > 1.6 ? [1, 3] : [1, 2, 5], values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) for (const step of steps) { const v = step * 10 ** power; if (v >= low && v <= high) values.push(v); }
  return { tickvals: values, ticktext: values.map((v) => v.toLocaleString("en", { maximumSignificantDigits: 2 })) };
}
function drawShapes(id, shapes, mark) {
  const levels = Object.entries(shapes).map(([key, values]) => ({ key, values, text: key.startsWith("open:") ? `${key.slice(5)}/s` : key.slice(7) }));
  chart(id, () => {
    const all = levels.flatMap((l) => l.values).filter((v) => v > 0);
    if (!all.length) return { data: [], layout: {} };
    const low = Math.min(...all), high = Math.max(...all), many = levels.length - 1;
    return { data: levels.map((l, n) => ({ type: "scatter", mode: "lines", x: l.values.map((v) => v > 0 ? v : null), y: l.values.map((_, percent) => percent), line: { color: shade(many ? n / many : 1), width: 1.75 },
      hovertemplate: `${l.key.startsWith("open:") ? l.text : `C = ${l.text}`}<br>%{y} % within %{x:,.4~g} ms<extra></extra>` })),
      layout: { margin: margin(28), xaxis: { type: "log", range: [Math.log10(low / 1.15), Math.log10(high * 1.25)], title: { text: "ms", standoff: 8 }, ...decades(low / 1.15, high * 1.25), showgrid: true },
        yaxis: { range: [0, 104], tickvals: [0, 25, 50, 75, 100], ticktext: ["0 %", "25 %", "50 %", "75 %", "100 %"] },
        annotations: [unit("requests"), ...mark(), ...levels.map((l, n) => { const percent = Math.round(many ? 88 - 66 * n / many : 60); const x = l.values[percent];
          return x > 0 ? { x: Math.log10(x), y: percent, text: n === 0 && !l.key.startsWith("open:") ? `C = ${l.text}` : l.text, showarrow: false, xanchor: "left", xshift: 5, yanchor: "top", yshift: 1, font: { size: 11, weight: 500, color: token("text-muted") } } : null; }).filter(Boolean)].map((a) => a.text === "requests" && id === "ecdf-icl" ? { ...a, text: "gaps" } : a) } };
  });
}

// ---- One level: its seconds, and its first requests ----
export function drawSeconds(detail, practice) {
  const found = detail.seconds;
  if (!found) return false;
  chart("level-seconds", () => {
    const x = found.tok_s.map((_, n) => n * found.step), range = top(found.tok_s);
    const steady = found.from !== null && found.to !== null;
    return { data: [{ type: "scatter", mode: "lines", x, y: found.tok_s, line: { color: token("series-1"), width: 1.5, shape: "hv" }, fill: "tozeroy", fillcolor: faded("series-1", 0.1), hovertemplate: "second %{x}<br>%{y:,} tok/s<extra></extra>" }],
      layout: { margin: { l: 54, r: 28, t: 28, b: 34 }, xaxis: { range: [0, Math.max(4, x.length * found.step)], ticksuffix: " s", nticks: narrow() ? 5 : 9 }, yaxis: { range, nticks: 4 },
        shapes: steady ? [{ type: "rect", yref: "paper", y0: 0, y1: 1, x0: found.from, x1: found.to, fillcolor: faded("series-1", 0.1), line: { width: 0 }, layer: "below" }] : [],
        annotations: [unit("tok/s"), ...(practice ? [practiceMark()] : []), ...(steady ? [{ x: found.from, yref: "paper", y: 1, xanchor: "left", yanchor: "top", xshift: 6, text: `steady, ${number(found.to - found.from, 1)} s`, showarrow: false, font: { size: 11, color: token("text-muted") } }] : [])] } };
  });
  return true;
}
export const PARTS = [["queue", "queue", "q", "s"], ["prefill", "to the first token", "s", "f"], ["reasoning", "reasoning", "f", "c"], ["content", "content", "c", "e"]];
const COLORS = { queue: "mem-other", prefill: "part-1", reasoning: "part-4", content: "series-1" };
// Where a request has no content, its chunks after the first one are reasoning to the end.
export function stretch(row, name) {
  const [, , from, to] = PARTS.find(([n]) => n === name);
  if (name === "prefill" && row.f === null) return row.e === null ? null : [row.s, row.e];
  if (row.f === null && name !== "queue") return null;
  if (name === "reasoning" && row.c === null) return row.e === null ? null : [row.f, row.e];
  const [a, b] = [row[from], row[to]];
  return a === null || b === null || b <= a ? null : [a, b];
}
export function drawTimeline(detail, practice) {
  const rows = detail.timeline;
  if (!rows.length) return false;
  chart("level-requests", () => {
    const failed = rows.map((row, n) => ({ row, n })).filter(({ row }) => row.err);
    return { data: [...PARTS.map(([name, title]) => {
      const parts = rows.map((row, n) => ({ n, at: stretch(row, name) })).filter(({ at }) => at);
      return { type: "bar", orientation: "h", name: title, y: parts.map(({ n }) => n + 1), base: parts.map(({ at }) => at[0] / 1000), x: parts.map(({ at }) => (at[1] - at[0]) / 1000), customdata: parts.map(({ at }) => (at[1] - at[0])),
        marker: { color: token(COLORS[name]), line: { width: 0 } }, hovertemplate: `request %{y}<br>${title} %{customdata:,.0f} ms<extra></extra>` };
    }), { type: "scatter", mode: "markers", y: failed.map(({ n }) => n + 1), x: failed.map(({ row }) => (row.e ?? row.f ?? row.s) / 1000), text: failed.map(({ row }) => escaped(row.err.replaceAll("_", " "))), cliponaxis: false,
      marker: { symbol: "x", size: 8, color: token("fail"), line: { width: 0 } }, hovertemplate: "request %{y}<br>%{text}<extra></extra>" }],
      layout: { barmode: "overlay", bargap: rows.length > 80 ? 0.1 : 0.3, margin: { l: 54, r: 28, t: 28, b: 34 }, xaxis: { ticksuffix: " s", rangemode: "tozero", nticks: narrow() ? 5 : 9, showgrid: true },
        yaxis: { range: [rows.length + 0.7, 0.3], rangemode: "normal", nticks: 6, showgrid: false, tickformat: "d" }, annotations: [unit("request"), ...(practice ? [practiceMark()] : [])] } };
  });
  return true;
}
