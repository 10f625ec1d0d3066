// Bars as the server draws them (templatetags/roundhouse.py `bar`): parts to scale as SVG rectangles, changed in place.
const SVG = "http://www.w3.org/2000/svg";
const PAINT = { "b-other": "url(#hatch-other)", "b-down": "url(#hatch-down)" };
export function drawBar(svg, parts, { gap = 0 } = {}) {
  const wanted = [];
  let at = 0;
  parts.forEach((part, n) => {
    const share = Math.max(0, Math.min(1 - at, part.share || 0));
    if (share <= 0) return;
    const shown = share * (part.filled === undefined || part.filled === null ? 1 : Math.max(0, Math.min(1, part.filled)));
    if (shown && part.kind !== "b-none") wanted.push({ kind: part.kind, x: `${(at * 100).toFixed(2)}%`, width: `${(shown * 100).toFixed(2)}%`, title: part.title });
    if (gap && n && at > 0) wanted.push({ kind: "b-gap", x: `${(at * 100).toFixed(2)}%`, width: gap });
    at += share;
  });
  while (svg.children.length > wanted.length) svg.lastElementChild.remove();
  wanted.forEach((want, n) => {
    let rect = svg.children[n];
    if (!rect) { rect = document.createElementNS(SVG, "rect"); rect.setAttribute("height", "100%"); svg.append(rect); }
    set(rect, "class", want.kind); set(rect, "x", want.x); set(rect, "width", String(want.width));
    if (PAINT[want.kind]) set(rect, "fill", PAINT[want.kind]); else rect.removeAttribute("fill");
    let title = rect.querySelector("title");
    if (want.title) { if (!title) { title = document.createElementNS(SVG, "title"); rect.append(title); } if (title.textContent !== want.title) title.textContent = want.title; }
    else title?.remove();
  });
}
function set(element, name, value) { if (element.getAttribute(name) !== value) element.setAttribute(name, value); }

export function icon(name, classes = "") {
  const svg = document.createElementNS(SVG, "svg"), use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", `icon ${classes}`); svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `${document.documentElement.dataset.icons}#${name}`);
  svg.append(use);
  return svg;
}
