// The charts of a comparison. `data` is that of dashboard/comparisons.py `page`: sides, levels, points a side, ratios with verdicts, ECDFs.
// A side has one colour and one marker on every chart; a run that another tool measured has an open marker and a dashed line.
import { MARKERS, chart, concurrencyAxis, faded, practiceMark, token, unit } from "./charts.js";

const SYMBOLS = [...MARKERS, "cross", "triangle-down"];
const margin = { l: 52, r: 36, t: 28, b: 44 };
const plain = (text) => String(text).replace(/[<>&]/g, (c) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[c]);
const narrow = () => matchMedia("(max-width: 600px)").matches;
export function digits(value) {
  if (value === null || value === undefined) return "n/a";
  const size = Math.abs(value), places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places });
}
const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(1)} %`;

function marker(side, more = {}) {
  const symbol = SYMBOLS.includes(side.marker) ? side.marker : "circle";
  return { color: token(side.color), size: 8, symbol: side.imported ? `${symbol}-open` : symbol, line: { color: side.imported ? token(side.color) : token("surface"), width: side.imported ? 2 : 1.5 }, ...more };
}
// No bold text in what is hovered: Plotly writes it as an inline style, which the content security policy forbids.
function hover(data, side, p) {
  const level = data.load === "open" ? `${p.name} offered` : `C = ${p.name}`;
  const spread = p.low !== null && p.high !== null ? ` (${digits(p.low)} to ${digits(p.high)})` : "";
  return `${side.name}, ${level}<br>${digits(p.tput)} tok/s${spread}<br>latency ${p.p50 === null && p.mean !== null ? `mean ${digits(p.mean)} s, P50 not reported` : `P50 ${digits(p.p50)} · P99 ${digits(p.p99)} s`}<br>TTFT P50 ${digits(p.ttft)} · P99 ${digits(p.ttft99)} ms<br>TPOT P50 ${digits(p.tpot)} · P99 ${digits(p.tpot99)} ms`
    + `<br>${p.runs} ${p.runs === 1 ? "run" : "runs"}, n = ${p.n?.toLocaleString("en") ?? "not reported"}, errors ${p.errors ?? "not reported"}${p.marks.length ? `<br>${plain(p.marks.join(", "))}` : ""}`;
}

// Labels beside points, moved apart where they would cover each other, within the chart. `top` is the axis' upper end, `height` its pixels.
function apart(ends, top, height, left = false) {
  const least = 14, sorted = ends.map((end) => ({ ...end, at: (end.y / top) * height, to: (end.y / top) * height })).sort((a, b) => a.at - b.at);
  for (let turn = 0; turn < 200; turn += 1) {
    for (let n = 1; n < sorted.length; n += 1) {
      const short = least - (sorted[n].to - sorted[n - 1].to);
      if (short > 0) { sorted[n].to += short / 2; sorted[n - 1].to -= short / 2; }
    }
  }
  const place = (end, low, high) => { end.to = Math.max(low, Math.min(high, end.to)); };
  sorted.forEach((end, n) => place(end, 4 + least * n, Infinity));
  sorted.toReversed().forEach((end, n) => place(end, -Infinity, height - 4 - least * n));
  return sorted.map((end) => ({ x: end.x, y: end.y, text: end.name, showarrow: false, xanchor: left ? "right" : "left", xshift: left ? -9 : 9, yshift: end.to - end.at, font: { color: token(end.color), size: 12, weight: 500 } }));
}

// One number over the levels, a curve a side. `upper` is drawn thin and dotted where there are few sides.
function curves(data, id, key, unitText, { upper = "", bars = false } = {}) {
  if (!document.getElementById(id)) return;
  chart(id, () => {
    const drawn = data.sides.map((side, n) => ({ side, points: data.points[n].filter((p) => p[key] !== null) })).filter((one) => one.points.length);
    const both = upper && data.sides.length <= 3;
    const highest = Math.max(...drawn.flatMap(({ points }) => points.flatMap((p) => [p[key], bars && p.high !== null && p.high < 3 * p[key] ? p.high : 0, both ? p[upper] ?? 0 : 0])), 0) || 1;
    const top = highest * 1.12, height = (document.getElementById(id).clientHeight || 300) - margin.t - margin.b;
    const lines = drawn.map(({ side, points }) => ({
      type: "scatter", mode: "lines+markers", x: points.map((p) => p.v), y: points.map((p) => p[key]), name: side.name, text: points.map((p) => hover(data, side, p)), cliponaxis: false, hovertemplate: "%{text}<extra></extra>",
      line: { color: token(side.color), width: 2, dash: side.imported ? "5px 4px" : "solid" }, marker: marker(side),
      ...(bars && points.some((p) => p.low !== null) && { error_y: { type: "data", symmetric: false, array: points.map((p) => p.high === null ? 0 : Math.min(p.high - p[key], top)), arrayminus: points.map((p) => p.low === null ? 0 : p[key] - p.low), color: token(side.color), thickness: 1.25, width: 3 } }) }));
    const dotted = both ? drawn.map(({ side, points }) => ({ side, points: points.filter((p) => p[upper] !== null) })).filter((one) => one.points.length > 1).map(({ side, points }) => ({
      type: "scatter", mode: "lines", x: points.map((p) => p.v), y: points.map((p) => p[upper]), hoverinfo: "skip", line: { color: faded(side.color, 0.55), width: 1.25, dash: "2px 3px" } })) : [];
    const title = data.load === "open" ? "requests a second, offered" : narrow() ? "concurrency" : "concurrent requests";
    const axis = concurrencyAxis(data.levels, title);
    return { data: [...dotted, ...lines.toReversed()], layout: { margin, xaxis: { ...axis, ticktext: data.names }, yaxis: { range: [0, top] },
      annotations: [unit(unitText), ...(data.practice ? [practiceMark()] : []), ...apart(drawn.map(({ side, points }) => ({ x: Math.log10(points.at(-1).v), y: points.at(-1)[key], name: side.name, color: side.color })), top, height)] } };
  });
}

// Throughput per GPU over what one user sees: up and right is better. Points that another one beats in both are pale.
function pareto(data) {
  if (!document.getElementById("pareto")) return;
  chart("pareto", () => {
    const drawn = data.sides.map((side, n) => ({ side, points: data.points[n].filter((p) => p.gpu !== null && p.user !== null) })).filter((one) => one.points.length);
    const all = drawn.flatMap(({ points }) => points), beaten = (p) => all.some((o) => o !== p && o.gpu >= p.gpu && o.user >= p.user && (o.gpu > p.gpu || o.user > p.user));
    const front = all.filter((p) => !beaten(p)).sort((a, b) => a.user - b.user);
    const top = (Math.max(...all.map((p) => p.gpu), 0) || 1) * 1.14, right = (Math.max(...all.map((p) => p.user), 0) || 1) * 1.12;
    const places = front.reduce((found, p) => { // levels at one place share their label
      const near = found.find((o) => Math.abs(o.user - p.user) < right * 0.04 && Math.abs(o.gpu - p.gpu) < top * 0.05);
      if (near) near.names.push(p.name); else found.push({ user: p.user, gpu: p.gpu, names: [p.name] });
      return found;
    }, []);
    const labels = places.map((p) => ({ x: p.user, y: p.gpu, text: `${data.load === "closed" && p.names.includes(data.names[0]) ? "C = " : ""}${[...new Set(p.names)].join(", ")}`, showarrow: false, xanchor: "left", yanchor: "bottom", xshift: 4, yshift: 3, font: { size: 11, color: token("text-muted") } }));
    return { data: [
      { type: "scatter", mode: "lines", x: front.map((p) => p.user), y: front.map((p) => p.gpu), hoverinfo: "skip", cliponaxis: false, line: { color: token("chart-floor"), width: 12 } },
      ...drawn.map(({ side, points }) => ({ type: "scatter", mode: "lines+markers", x: points.map((p) => p.user), y: points.map((p) => p.gpu), name: side.name, text: points.map((p) => `${hover(data, side, p)}<br>${digits(p.gpu)} tok/s a GPU, ${digits(p.user)} a user`), hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
        line: { color: faded(side.color, 0.6), width: 1.75, dash: side.imported ? "5px 4px" : "solid" }, marker: marker(side, { opacity: points.map((p) => beaten(p) ? 0.4 : 1) }) })).toReversed()],
      layout: { margin, xaxis: { title: { text: "tok/s per user", standoff: 8 }, range: [0, right], nticks: 8 }, yaxis: { range: [0, top] },
        annotations: [unit("tok/s per GPU"), ...(data.practice ? [practiceMark()] : []), ...labels,
          ...apart(drawn.map(({ side, points }) => ({ x: points.at(-1).user, y: points.at(-1).gpu, name: side.name, color: side.color })), top, (document.getElementById("pareto").clientHeight || 300) - margin.t - margin.b, true)] } };
  });
}

// The difference of each level from A with its interval; grey: the noise floor of that level, dashed: the least that counts.
function ratios(data) {
  const element = document.getElementById("ratio"), told = data.ratio;
  if (!element || !told) return;
  const many = data.sides.length - 1, tall = Math.max(300, 84 + told.rows.length * Math.max(22, many * 15));
  for (const id of ["ratio", "pareto"]) document.getElementById(id).style.height = id === "ratio" || !narrow() ? `${tall}px` : ""; // side by side they end at one line
  chart("ratio", () => {
    const items = told.rows.flatMap((row, r) => row.items.map((item) => ({ ...item, row, r, y: r + (item.side - data.sides.length / 2) * (0.76 / (data.sides.length - 1)) })));
    const far = Math.max(told.minimum * 1.6, ...items.map((i) => Math.abs(i.diff)), ...told.rows.map((row) => row.floor * 1.15));
    const reach = Math.min(Math.max(far, ...items.flatMap((i) => [i.low, i.high].filter((v) => v !== null).map(Math.abs))), far * 2.5);
    const below = (share) => 100 / (1 + share / 100) - 100; // limits are ratios, 1.05 one way and 1 / 1.05 the other
    const bound = (v) => Math.max(-reach * 1.3, Math.min(reach * 1.3, v));
    const traces = data.sides.map((side, n) => {
      const of = items.filter((i) => i.side === n);
      return of.length && { type: "scatter", mode: "markers", x: of.map((i) => i.diff), y: of.map((i) => i.y), name: side.name, hovertemplate: "%{text}<extra></extra>",
        text: of.map((i) => `${side.name} against A, ${data.load === "open" ? i.row.name : `C = ${i.row.name}`}<br>${plain(told.title)} ${signed(i.diff)}${i.low === null ? "" : `, 95 %: ${signed(i.low)} to ${signed(i.high)}`}<br>${plain(i.note)}<br>noise floor ±${digits(i.floor)} % (${i.floor_from})`),
        error_x: { type: "data", symmetric: false, array: of.map((i) => i.high === null ? 0 : bound(i.high) - i.diff), arrayminus: of.map((i) => i.low === null ? 0 : i.diff - bound(i.low)), color: token(side.color), thickness: 1.5, width: 4 },
        marker: { size: 9, symbol: side.marker, color: of.map((i) => i.said === "better" || i.said === "worse" ? token(side.color) : token("surface")), line: { color: token(side.color), width: 2 } } };
    }).filter(Boolean);
    const tone = { better: "ok-text", worse: "fail-text" };
    const least = (x) => ({ type: "line", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: token("chart-target"), width: 1.25, dash: "4px 3px" }, layer: "below" });
    return { data: traces, layout: { margin: { l: 52, r: narrow() ? 82 : 96, t: 28, b: 44 },
      xaxis: { range: [-reach * 1.12, reach * 1.12], ticksuffix: " %", nticks: narrow() ? 5 : 7, tickangle: 0, title: { text: narrow() ? "difference" : `difference in ${told.title.toLowerCase().replace("ttft", "TTFT").replace("tpot", "TPOT").replace(/ p(\d+)/, " P$1")}; ${told.higher ? "more" : "less"} is better`, standoff: 8 }, showgrid: true },
      yaxis: { range: [told.rows.length - 0.4, -0.6], tickvals: told.rows.map((_, n) => n), ticktext: told.rows.map((row) => row.name), showgrid: false, rangemode: "normal" },
      shapes: [...told.rows.map((row, n) => ({ type: "rect", x0: below(row.floor), x1: row.floor, y0: n - 0.5, y1: n + 0.5, fillcolor: token("chart-floor"), line: { width: 0 }, layer: "below" })),
        { type: "line", yref: "paper", x0: 0, x1: 0, y0: 0, y1: 1, line: { color: token("chart-axis"), width: 1.5 }, layer: "below" }, least(told.minimum), least(below(told.minimum))],
      annotations: [unit(data.load === "open" ? "requests/s" : "C"), ...(data.practice ? [practiceMark()] : []),
        ...items.filter((i) => many < 3 || ["better", "worse", "same", "not decided"].includes(i.word)).map((i) => ({ xref: "paper", x: 1, y: i.y, xanchor: "left", xshift: 8, text: many > 1 ? `${data.sides[i.side].name} ${i.said}` : i.said, showarrow: false, font: { size: 11, color: token(tone[i.said] ?? "text-muted") } }))] } };
  });
}

const ticks = (low, high) => [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]].map((steps) => [...Array(13).keys()].flatMap((n) => steps.map((m) => Number((m * 10 ** (n - 5)).toPrecision(3)))).filter((v) => v >= low * 0.98 && v <= high * 1.02)).find((found, n) => found.length >= 4 || n === 4);

// The share of requests (or gaps) that took at most so long. `values` are 101 quantiles, at 0, 1, ... 100 percent.
function ecdf(data, id, key) {
  if (!document.getElementById(id) || !data.ecdf) return;
  chart(id, () => {
    const drawn = data.ecdf.sides.map((told, n) => ({ side: data.sides[n], values: told?.[key] ?? [] })).filter((one) => one.values.length);
    const every = drawn.flatMap(({ values }) => values).filter((v) => v > 0), at = ticks(Math.min(...every), Math.max(...every));
    return { data: drawn.map(({ side, values }) => ({ type: "scatter", mode: "lines", x: values, y: values.map((_, percent) => percent), name: side.name, cliponaxis: false, hovertemplate: `${side.name}: %{y} % within %{x:,.4~r} ms<extra></extra>`, line: { color: token(side.color), width: 2, dash: side.imported ? "5px 4px" : "solid" } })).toReversed(),
      layout: { margin, xaxis: { type: "log", title: { text: "ms", standoff: 8 }, showgrid: true, tickvals: at, ticktext: at.map((v) => v.toLocaleString("en")), tickangle: 0 }, yaxis: { range: [0, 101], tickvals: [0, 25, 50, 75, 90, 100], ticktext: ["0 %", "25 %", "50 %", "75 %", "90 %", "100 %"] },
        annotations: [...(data.practice ? [practiceMark()] : []), ...drawn.map(({ side, values }, n) => ({ x: Math.log10(Math.max(values[28 + 8 * n], 1e-6)), y: 28 + 8 * n, text: side.name, showarrow: false, xanchor: "left", xshift: 6, yshift: -4, font: { color: token(side.color), size: 12, weight: 500 } }))] } };
  });
}

export function comparisonCharts(data) {
  curves(data, "throughput", "tput", "tok/s", { bars: true });
  curves(data, "latency", "latency", "seconds", { upper: "p99" });
  curves(data, "ttft", "ttft", "ms", { upper: "ttft99" });
  curves(data, "tpot", "tpot", "ms", { upper: "tpot99" });
  pareto(data);
  ratios(data);
  ecdf(data, "ecdf-ttft", "ttft_ms");
  ecdf(data, "ecdf-icl", "icl_ms");
}
