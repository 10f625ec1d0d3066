// Roundhouse's one chart template. Colours come from tokens.css, so both themes share all of this.
// A page calls chart(id, build); it redraws when the theme changes, and again whenever the page calls it with new data.

// Custom properties with light-dark() are resolved by the browser only on a real colour property.
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);
export function token(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
export function faded(name, alpha) {
  return token(name).replace(/^rgba?\(([^,)]+,[^,)]+,[^,)]+).*$/, `rgba($1, ${alpha})`);
}

export const MARKERS = ["circle", "square", "diamond", "triangle-up", "x", "star"];

// Log-2 axis with the levels that were measured as its only ticks.
export function concurrencyAxis(levels, title = "concurrent requests") {
  return { type: "log", tickvals: levels, ticktext: levels.map(String), title: { text: title, standoff: 8 },
    range: [Math.log10(levels[0] / 1.25), Math.log10(levels.at(-1) * 1.3)] };
}

// One measured curve: line, marker of its own, optional interval, hover with everything that is known.
export function curve({ x, y, name, color = "series-1", marker = 0, error, hover, width = 2 }) {
  return { type: "scatter", mode: "lines+markers", x, y, name, text: hover, cliponaxis: false,
    hovertemplate: hover ? "%{text}<extra></extra>" : `%{y:,}<extra>${name}</extra>`,
    line: { color: token(color), width }, marker: { color: token(color), size: 7, symbol: MARKERS[marker], line: { color: token("surface"), width: 1.5 } },
    ...(error && { error_y: { type: "data", array: error, color: token(color), thickness: 1.25, width: 3 } }) };
}
// A label beside the last point instead of a legend.
export function label(x, y, text, color = "series-1", more = {}) {
  return { x: more.logx === false ? x : Math.log10(x), y, text, showarrow: false, xanchor: "left", xshift: 9, font: { color: token(color), size: 12, weight: 500 }, ...more, logx: undefined };
}
export function unit(text) { return { xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", xshift: -44, yshift: 6, text, showarrow: false, font: { color: token("text-muted"), size: 11 } }; }
export function practiceMark() { return { xref: "paper", yref: "paper", x: 1, y: 1, xanchor: "right", yanchor: "bottom", yshift: 6, text: "PRACTICE", showarrow: false, font: { color: token("practice-text"), size: 10, weight: 600 } }; }
export function target(y, text) {
  return { shape: { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: token("chart-target"), width: 1.25, dash: "4px 3px" } },
    note: { xref: "paper", x: 0, y, xanchor: "left", yanchor: "bottom", text, showarrow: false, font: { color: token("text-muted"), size: 11 } } };
}

export function template() {
  const axis = { gridcolor: token("chart-grid"), linecolor: token("chart-axis"), zeroline: false, tickcolor: token("chart-axis"),
    tickfont: { size: 11, color: token("text-muted") }, title: { font: { size: 11, color: token("text-muted") } }, fixedrange: true };
  return { layout: {
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: token("text") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 52, r: 20, t: 28, b: 44 }, showlegend: false,
    hovermode: "closest", hoverlabel: { bgcolor: token("surface"), bordercolor: token("line-firm"), align: "left", font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: token("text") } },
    xaxis: { ...axis, showgrid: false, showline: true, ticks: "outside", ticklen: 4 },
    yaxis: { ...axis, showline: false, rangemode: "tozero", nticks: 6, separatethousands: true },
  } };
}
const drawn = new Map();
// Draws (or draws anew) into the element of that id; nothing happens where there is none. Plotly comes with a deferred script, before modules run.
export function chart(id, build) {
  const draw = () => {
    const element = document.getElementById(id);
    if (!element) { drawn.delete(id); return null; }
    const { data, layout } = build();
    return Plotly.react(element, data, { template: template(), ...layout }, { displayModeBar: false, responsive: true });
  };
  drawn.set(id, draw);
  return draw();
}
export function redraw() { for (const draw of [...drawn.values()]) draw(); }
document.addEventListener("themechange", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// ---- A chart as a picture: a button with data-png="ID" saves the chart of that id, under the title of its card ----

const plain = (text) => text.replace(/[<>&]/g, (c) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[c]);
// Whose numbers these are ("A kimi-k25 0.16.0, 2 Mar | B ..."), in lines of at most so many letters.
function wrapped(text, letters) {
  const lines = [];
  for (const part of text.split(" | ").filter(Boolean)) {
    if (lines.length && lines.at(-1).length + part.length + 3 <= letters) lines[lines.length - 1] += ` · ${part}`; else lines.push(part.slice(0, letters));
  }
  return lines;
}
// The picture has the page's colours, a ground of its own and twice the pixels. `name` becomes the file's name.
export async function savePng(id, { title = "", name = id, of = document.querySelector("[data-picture]")?.dataset.picture ?? "" } = {}) {
  const element = document.getElementById(id);
  if (!element?.data) return;
  const width = Math.max(720, element.clientWidth), told = wrapped(of, Math.floor((width - 32) / 6.2)), below = told.length ? 14 + 15 * told.length : 0, height = Math.max(400, element.clientHeight) + (title ? 34 : 0) + below, { margin = {} } = element.layout;
  const layout = { ...element.layout, width, height, autosize: false, paper_bgcolor: token("surface"), plot_bgcolor: token("surface"), margin: { ...margin, t: (margin.t ?? 28) + (title ? 34 : 0), b: (margin.b ?? 44) + below },
    ...(below && { annotations: [...(element.layout.annotations ?? []), { xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "top", align: "left", xshift: 16 - (margin.l ?? 52), yshift: -(margin.b ?? 44), text: told.map(plain).join("<br>"), showarrow: false, font: { size: 11, color: token("text-muted") } }] }),
    ...(title && { title: { text: plain(title), x: 0, xanchor: "left", xref: "container", y: 1, yanchor: "top", yref: "container", pad: { l: 16, t: 14 }, font: { size: 14, color: token("text"), weight: 600 } } }) };
  const picture = await Plotly.toImage({ data: element.data, layout }, { format: "png", width, height, scale: 2 });
  const bytes = Uint8Array.from(atob(picture.slice(picture.indexOf(",") + 1)), (c) => c.charCodeAt(0)); // fetch() of a data: address is not in our policy
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  link.download = `${name.normalize("NFKD").replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80).toLowerCase() || "chart"}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-png]");
  if (!button) return;
  const title = button.dataset.pngTitle ?? button.closest(".card-part, .card")?.querySelector("h2, h3")?.textContent.trim() ?? "", of = document.querySelector("h1")?.textContent.trim() ?? "";
  savePng(button.dataset.png, { title: [title, of].filter(Boolean).join(" · "), name: `${of} ${title}` });
});
