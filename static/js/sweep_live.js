// A sweep while it runs: charts that change in place, and the numbers of the newest second. Data is dashboard/charts.py `curves` and `level_seconds`.
//
// Plotly removes and draws anew every tick and every annotation whenever it lays a chart out. So here a second changes only the values of traces:
// what is said beside lines is text of traces, each chart has the same traces from first to last, and axes grow in steps.
import { concurrencyAxis, curve, faded, template, token } from "./charts.js";
import { drawBar } from "./bars.js";
import { setText } from "./clock.js";

const number = (value, digits = 0) => value === null || value === undefined ? "n/a" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const rate = (value) => number(value, Math.abs(value) >= 99.95 || Math.abs(value - Math.round(value)) < 0.05 ? 0 : 1);
const narrow = () => matchMedia("(max-width: 600px)").matches;

// ---- charts in place ----

const drawn = new Map();
let look = null; // one template object for all draws: another one would make Plotly lay out anew
const STILL = { mode: "immediate", transition: { duration: 0 }, frame: { duration: 0, redraw: false } };
// Draws the chart once; afterwards, as long as its layout stays what it was, only its traces get their new values: every node stays.
function inPlace(id, build) {
  const draw = () => {
    const element = document.getElementById(id);
    if (!element) { drawn.delete(id); return; }
    const { data, layout } = build(), was = drawn.get(id);
    // A trace of nothing would be taken out, and come back as another node: it has a point far below the chart instead.
    for (const trace of data) if (!trace.x.length) Object.assign(trace, trace.mode === "markers" ? { x: [1], y: [-1e9], text: [""] } : { x: [null], y: [null] });
    const laid = JSON.stringify([layout, data.length]);
    drawn.set(id, { draw, element, laid, look });
    if (was?.element === element && was.laid === laid && was.look === look && look) {
      const values = data.map(({ x, y, text, textposition, textfont }) => ({ x, y, ...(text && { text }), ...(textposition && { textposition, textfont }) }));
      Plotly.animate(element, { data: values, traces: values.map((_, n) => n) }, STILL).catch(() => {}); // a newer one takes its place
    } else {
      Plotly.react(element, data, { template: look ??= template(), ...layout }, { displayModeBar: false, responsive: true });
      drawn.get(id).look = look;
    }
  };
  draw();
}
function redraw() { look = null; for (const { draw } of [...drawn.values()]) draw(); }
document.addEventListener("themechange", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// The top of an axis: a round number above the largest value. It stays while the values fit: an axis that jumps is drawn anew.
const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10], tops = new Map();
function above(axis, values, least = 1) {
  const largest = Math.max(least, ...values.filter((v) => typeof v === "number" && Number.isFinite(v))), was = tops.get(axis);
  if (was >= largest * 1.02 && was <= largest * 2.6) return was;
  const most = largest * 1.14, size = 10 ** Math.floor(Math.log10(most)), top = STEPS.find((step) => step * size >= most) * size;
  tops.set(axis, top);
  return top;
}
const LENGTHS = [15, 30, 60, 120, 240, 480, 960];
const length = (x) => LENGTHS.find((one) => one >= (x.at(-1) ?? 0) + 1) ?? Math.ceil(((x.at(-1) ?? 0) + 1) / 480) * 480;
// Text at places of a chart, as one trace: [x, y, text, position, colour].
function words(items, more = {}) {
  return { type: "scatter", mode: "text", x: items.map((i) => i[0]), y: items.map((i) => i[1]), text: items.map((i) => i[2]), textposition: items.map((i) => i[3]),
    textfont: { size: 11, color: items.map((i) => token(i[4])) }, hoverinfo: "skip", cliponaxis: false, ...more };
}
// The line above a chart, an axis of its own: the unit at the left, PRACTICE at the right.
const LINE = { yaxis9: { domain: [0.9, 1], range: [0, 1], visible: false, fixedrange: true } };
const line = (unit, left, right, practice) => words([[left, 0.6, unit, "middle left", "text-muted"], [right, 0.6, practice ? "PRACTICE" : "", "middle left", "practice-text"]], { yaxis: "y9" });

function hover(point) {
  return `${point.name}   ${rate(point.tput)} tok/s<br>mean ${number(point.mean, 1)} s<br>P50 ${number(point.p50, 1)} · P90 ${number(point.p90, 1)} · P99 ${number(point.p99, 1)} s`
    + `<br>TTFT P50 ${point.ttft_p50_ms === null ? "n/a" : `${rate(point.ttft_p50_ms)} ms`}<br>${point.errors} errors in ${point.finished + point.errors} requests`;
}
// `data`: `curves`; `live`: { x, tput, latency } of the level that runs, or null.
export function sweepCharts(data, live = null) {
  if (!data.levels.length) return;
  const axis = () => {
    const made = concurrencyAxis(data.levels, data.load === "open" ? "requests a second" : narrow() ? "concurrency" : "concurrent requests");
    return { ...made, ticktext: data.levels.map((v) => v.toLocaleString("en", { maximumFractionDigits: 3 })) };
  };
  const margin = { l: 52, r: 48, t: 4, b: 44 }, before = data.before?.points ?? [];
  const draw = (id, unit, key, points, upper, liveY, digits) => inPlace(id, () => {
    const running = live && typeof liveY === "number" && liveY > 0, tail = running ? points.filter((p) => p.x < live.x).at(-1) : null, end = points.at(-1);
    const top = above(id, [...points.map(upper), ...before.map((p) => p[key]), running ? liveY : 0]), range = axis();
    const shown = (value) => digits === null ? rate(value) : number(value, digits);
    return {
      data: [
        { ...curve({ x: before.map((p) => p.x), y: before.map((p) => p[key]), name: data.before?.name ?? "", color: "series-base", marker: 1, width: 1.25 }), opacity: 0.45 },
        { type: "scatter", mode: "lines", x: [...points.map((p) => p.x), ...points.map((p) => p.x).reverse()], y: [...points.map(upper), ...points.map((p) => p[key]).reverse()],
          fill: "toself", fillcolor: faded("series-1", 0.2), line: { width: 0 }, hoverinfo: "skip" },
        curve({ x: points.map((p) => p.x), y: points.map((p) => p[key]), name: data.name, hover: points.map(hover) }),
        { type: "scatter", mode: "lines", x: tail ? [tail.x, live.x] : [], y: tail ? [tail[key], liveY] : [], hoverinfo: "skip", line: { color: token("series-1"), width: 2, dash: "2px 3px" } },
        { type: "scatter", mode: "markers", x: running ? [live.x] : [], y: running ? [liveY] : [], hoverinfo: "skip", cliponaxis: false, marker: { size: 10, symbol: "circle-open", color: token("run"), line: { width: 2.5 } } },
        words([running ? [live.x, liveY, `${shown(liveY)}, live  `, live.x > data.levels[0] ? "top left" : "top right", "run-text"] : end ? [end.x, end[key], `  ${shown(end[key])}`, "middle right", "series-1"] : [null, null, "", "middle right", "series-1"]]),
        line(unit, 10 ** range.range[0], 10 ** range.range[1], data.practice),
      ],
      layout: { margin, xaxis: range, yaxis: { domain: [0, 0.9], range: [0, top] }, ...LINE } };
  });
  draw("throughput", "tok/s", "tput", data.points, (p) => p.tput, live?.tput, null);
  draw("latency", "seconds", "p50", data.points.filter((p) => p.p50 !== null), (p) => p.p99 ?? p.p90 ?? p.p50, live?.latency, 1);
}

// The seconds of the level that runs: tokens above, requests in flight below, a red mark for each second in which requests failed.
export function secondsChart(seconds, practice) {
  if (!document.getElementById("live")) return;
  const many = length(seconds.x), top = above("tok/s", seconds.y, 10), flying = above("in flight", seconds.in_flight ?? [], 1);
  const failed = seconds.x.flatMap((x, n) => seconds.errors?.[n] > 0 ? [[x, seconds.errors[n]]] : []);
  const steps = (y, more) => ({ type: "scatter", mode: "lines", x: seconds.x, y, ...more, line: { width: 1.5, shape: "hv", ...more.line } });
  inPlace("live", () => ({
    data: [
      steps(seconds.y, { line: { color: token("series-1") }, fill: "tozeroy", fillcolor: faded("series-1", 0.1), hovertemplate: "%{x} s<br>%{y:,.0f} tok/s<extra></extra>" }),
      steps(seconds.in_flight ?? [], { yaxis: "y2", line: { color: token("text-muted"), width: 1.25 }, hovertemplate: "%{x} s<br>%{y} in flight<extra></extra>" }),
      { type: "scatter", mode: "markers", x: failed.map((f) => f[0]), y: failed.map(() => 0), yaxis: "y2", text: failed.map((f) => `${f[1]} failed`), hovertemplate: "%{x} s<br>%{text}<extra></extra>", cliponaxis: false, marker: { color: token("fail"), symbol: "x", size: 7 } },
      line("tok/s", 0, many, practice),
      words([[0, flying, "\u00a0\u00a0in flight", "top right", "text-muted"]], { yaxis: "y2" }),
    ],
    layout: { margin: { l: 52, r: 24, t: 6, b: 30 }, ...LINE, xaxis: { range: [0, many], ticksuffix: " s", nticks: narrow() ? 5 : 8, anchor: "y2" },
      yaxis: { nticks: 4, domain: [0.36, 0.9], range: [0, top] }, yaxis2: { nticks: 3, domain: [0, 0.22], range: [0, flying], gridcolor: token("chart-grid"), zeroline: false, fixedrange: true, tickfont: { size: 11, color: token("text-muted") } } } }));
}
export function serverChart(seconds, practice) {
  const element = document.getElementById("server-live");
  if (!element) return;
  const told = Boolean(seconds.running || seconds.waiting);
  if (element.hidden === told) element.hidden = !told;
  if (!told) return;
  const many = length(seconds.x), most = above("server", [...(seconds.running ?? []), ...(seconds.waiting ?? [])], 1), at = seconds.x.length - 1, end = seconds.x.at(-1) ?? 0;
  const steps = (y, name, color, dash) => ({ type: "scatter", mode: "lines", x: seconds.x, y: y ?? [], name, hovertemplate: `%{x} s<br>%{y} ${name}<extra></extra>`, line: { color: token(color), width: 1.5, shape: "hv", dash } });
  const runs = seconds.running?.[at] ?? null, waits = seconds.waiting?.[at] ?? null, apart = runs !== null && waits !== null && Math.abs(runs - waits) < most * 0.14;
  inPlace("server-live", () => ({
    data: [steps(seconds.running, "running", "series-1"), steps(seconds.waiting, "waiting", "series-2", "5px 3px"),
      words([[end, runs, " running", apart && runs >= waits ? "top right" : "middle right", "series-1"], [end, waits, " waiting", apart && waits > runs ? "top right" : "middle right", "series-2"]]), line("requests", 0, many, practice)],
    layout: { margin: { l: 52, r: 56, t: 4, b: 30 }, ...LINE, xaxis: { range: [0, many], ticksuffix: " s", nticks: 5 }, yaxis: { nticks: 4, domain: [0, 0.86], range: [0, most] } } }));
}

// ---- the newest second in words: as dashboard/sweep_words.py ----

const FEW = "n/a", UNTOLD = "not reported";
const known = (value) => typeof value === "number" && Number.isFinite(value);
const figures = (value, none = "") => !known(value) ? none : number(value, Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);
const whole = (value, none = "") => known(value) ? number(value) : none;
const share = (value) => known(value) ? (100 * value).toFixed(1) : UNTOLD;
export function liveWords(latest, requests) {
  if (!latest) return {};
  const server = latest.server ?? {}, finished = whole(latest.finished, "0");
  const told = {
    tok_s: known(latest.output_tok_s) ? rate(latest.output_tok_s) : "", so_far: known(latest.throughput_so_far_tok_s) ? rate(latest.throughput_so_far_tok_s) : "",
    per_user: known(latest.throughput_so_far_tok_s) && known(latest.concurrency) ? rate(latest.throughput_so_far_tok_s / latest.concurrency) : FEW, in_flight: whole(latest.in_flight),
    finished: requests ? `${finished} of ${number(requests)}` : finished, errors: whole(latest.errors, "0"),
    running: whole(server.running, UNTOLD), waiting: whole(server.waiting, UNTOLD), kv: share(server.kv_use), prefix: share(server.prefix_hit_rate), accepted: share(server.spec_acceptance),
    power: known(latest.power_w) ? (latest.power_w / 1000).toFixed(2) : UNTOLD, tokens_per_joule: figures(latest.tokens_per_joule, UNTOLD),
  };
  for (const [name, unit] of [["ttft", "ms"], ["icl", "ms"], ["e2e", "s"]]) for (const part of ["p50", "p90", "p99", "mean"]) told[`${name}_${part}`] = figures(latest[`${name}_${part}_${unit}`], FEW);
  return told;
}
const UNSAID = new Set(["", FEW, UNTOLD]);
export function showSecond(level) {
  const panel = document.querySelector("[data-sweep-live]");
  if (!panel) return;
  setText(panel.querySelector("[data-level-name]"), level?.name ? `, ${level.name}` : "");
  const told = liveWords(level?.latest, level?.requests);
  for (const element of panel.querySelectorAll("[data-live]")) {
    const text = told[element.dataset.live] ?? "", faint = UNSAID.has(text);
    setText(element, text);
    if (element.classList.contains("faint") !== faint) element.classList.toggle("faint", faint);
    if (element.dataset.live === "errors") { const bad = level?.latest?.errors > 0; if (element.classList.contains("t-fail") !== bad) element.classList.toggle("t-fail", bad); }
  }
  for (const unit of panel.querySelectorAll("[data-unit]")) { const hide = UNSAID.has(told[unit.dataset.unit] ?? ""); if (unit.hidden !== hide) unit.hidden = hide; }
  showGpus(panel.querySelector("[data-live-gpus]"), level?.latest?.gpus);
}
function showGpus(table, gpus) {
  const told = Array.isArray(gpus) ? gpus.filter((gpu) => Number.isInteger(gpu?.index)) : [];
  table.closest(".table-scroll").hidden = !told.length;
  for (const gpu of told) {
    let row = table.querySelector(`[data-live-gpu="${gpu.index}"]`);
    if (!row) {
      row = document.createElement("tr"); row.dataset.liveGpu = String(gpu.index);
      for (const name of ["", "busy", "util", "used", "power"]) {
        const cell = document.createElement("td");
        if (name === "busy") { cell.className = "meter"; const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg"); for (const [key, value] of [["class", "bar"], ["width", "100%"], ["height", "8"], ["role", "img"], ["aria-label", "Utilization"], ["data-bar", "busy"]]) bar.setAttribute(key, value); cell.append(bar); }
        else { cell.className = name ? "num" : "num strong"; if (name) cell.dataset.v = name; else cell.textContent = String(gpu.index); }
        row.append(cell);
      }
      table.tBodies[0].append(row);
    }
    drawBar(row.querySelector("[data-bar=busy]"), [{ kind: "b-now", share: known(gpu.utilization) ? gpu.utilization / 100 : 0 }]);
    setText(row.querySelector("[data-v=util]"), whole(gpu.utilization, UNTOLD));
    setText(row.querySelector("[data-v=used]"), known(gpu.used_bytes) ? number(gpu.used_bytes / 2 ** 30, 1) : UNTOLD);
    setText(row.querySelector("[data-v=power]"), whole(gpu.power_w, UNTOLD));
  }
}

// ---- a level's seconds as they come ----

const NAMED = (data) => data.load === "open" ? `${+data.value.toFixed(6)} requests/s` : `C = ${Math.round(data.value ?? data.concurrency)}`;
export const keyOf = (data) => data.load === "open" ? `${+data.value.toFixed(6)}/s` : String(Math.round(data.value ?? data.concurrency));
export function newLevel(data) {
  return { key: keyOf(data), name: NAMED(data), value: data.value ?? data.concurrency, requests: data.requests ?? null, x: [], y: [], in_flight: [], errors: [], running: null, waiting: null, latest: null };
}
// Adds a second to the level; false where the page has it already.
export function addSecond(level, data) {
  if (level.x.length && data.second <= level.x.at(-1)) return false;
  const failed = (data.errors ?? 0) - (level.latest?.errors ?? 0);
  level.x.push(data.second); level.y.push(data.output_tok_s ?? null); level.in_flight.push(data.in_flight ?? null); level.errors.push(level.latest || data.second <= 1 ? failed : 0);
  for (const name of ["running", "waiting"]) {
    const value = data.server?.[name] ?? null;
    if (level[name] === null && value !== null) level[name] = level.x.slice(0, -1).map(() => null);
    level[name]?.push(value);
  }
  if (level.x.length > 900) for (const name of ["x", "y", "in_flight", "errors", "running", "waiting"]) level[name]?.shift();
  level.latest = data;
  return true;
}
