// A step's log: all of its text from the server, then what the stream brings. Only the lines in view are in the page.
//
// Log text is text: it goes into text nodes. ANSI colours become classes; other control and bidirectional characters go. log_lines.py does the same.
const ROW = 20, EXTRA = 12; // pixels a line; lines drawn above and below the view
const SGR = /\x1b\[([0-9;]*)m/g; // eslint-disable-line no-control-regex
const OTHER = /\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-9;?]*[ -/]*[@-ln-~]|[@-Z\\-_])/g;
const UNSEEN = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const PREFIX = /^(\([A-Za-z][^()]{0,40}pid=\d+\)|[\w.-]+\[\d+\]:)/;
const LEVEL = /\b(INFO|DEBUG|WARNING|ERROR|CRITICAL)\b((?: \d\d-\d\d)?(?: \d\d:\d\d:\d\d)?(?: \[[^\]]{1,80}\])?)/;
const COLOURS = { 30: "black", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan", 37: "white", 90: "black", 91: "red", 92: "green", 93: "yellow", 94: "blue", 95: "magenta", 96: "cyan", 97: "white" };

export function clean(line) {
  let text = line.endsWith("\r") ? line.replace(/\r+$/, "") : line;
  const over = text.lastIndexOf("\r");
  if (over >= 0) text = text.slice(over + 1);
  return text.replace(OTHER, "").replace(UNSEEN, "");
}
export function plain(line) { return line.includes("\x1b") ? line.replace(SGR, "").replaceAll("\x1b", "") : line; }
// [class or "", text] pieces of a cleaned line.
export function pieces(text) {
  if (text.includes("\x1b[")) return ansi(text);
  const out = [];
  const prefix = PREFIX.exec(text);
  if (prefix) { out.push(["dim", prefix[1]]); text = text.slice(prefix[0].length); }
  const level = LEVEL.exec(text);
  if (level && level.index <= 12) {
    if (level.index) out.push(["", text.slice(0, level.index)]);
    out.push([{ INFO: "info", DEBUG: "dim", WARNING: "warning" }[level[1]] ?? "error", level[1]]);
    if (level[2]) out.push(["dim", level[2]]);
    text = text.slice(level.index + level[0].length);
  } else if (text.startsWith("Roundhouse: ")) { out.push(["note", text]); return out; }
  out.push(["", text]);
  return out;
}
function ansi(text) {
  const out = [];
  let bold = false, colour = "", at = 0;
  for (const match of [...text.matchAll(SGR), null]) {
    const piece = text.slice(at, match ? match.index : undefined).replaceAll("\x1b", "");
    if (piece) out.push([[bold && "a-bold", colour && `a-${colour}`].filter(Boolean).join(" "), piece]);
    if (!match) break;
    at = match.index + match[0].length;
    for (const code of match[1].split(";").map(Number)) {
      if (code === 0) { bold = false; colour = ""; } else if (code === 1) bold = true; else if (code === 22) bold = false;
      else if (code === 39) colour = ""; else if (COLOURS[code]) colour = COLOURS[code];
    }
  }
  return out;
}

export class LogView {
  lines = []; seq = 0; rest = ""; follow = true; wrap = false; hits = []; hit = -1; query = ""; ready = false; decisive = -1;
  #waiting = []; #tops = null; #columns = 0; #frame = 0; #missed = 0; #kept = { top: 0, left: 0 };
  // `after`: the last event that the page had when this view was made. Log events up to it went by before there was anybody to take them.
  constructor(block, { live, after = 0 }) {
    this.block = block; this.step = block.dataset.logStep; this.live = live; this.after = after;
    this.view = block.querySelector(".log-view");
    this.find = (name) => block.querySelector(`[data-log-${name}]`);
    this.find("tools").hidden = false;
    this.follow = live;
    this.find("follow").addEventListener("click", () => this.setFollow(!this.follow));
    this.find("wrap").addEventListener("click", () => this.setWrap(!this.wrap));
    this.find("find").addEventListener("click", () => this.#toggleSearch());
    this.find("next").addEventListener("click", () => this.#go(1));
    this.find("previous").addEventListener("click", () => this.#go(-1));
    const input = this.find("search").querySelector("input");
    input.addEventListener("input", () => this.#search(input.value));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.#go(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { event.preventDefault(); this.#toggleSearch(false); }
    });
    this.view.addEventListener("scroll", () => this.#scrolled());
    new ResizeObserver(() => { this.#columns = 0; this.#tops = null; this.#soon(); }).observe(this.view);
    addEventListener("hashchange", () => this.#jumpToHash());
    this.#labels();
  }
  // All text up to now; events of the stream that came meanwhile are added after it, those that it has already are not.
  async load(wait = 200) {
    const url = new URL(this.block.dataset.log, location.href);
    url.searchParams.set("format", "json");
    let answer;
    try { answer = await fetch(url); if (!answer.ok) throw new Error(String(answer.status)); }
    catch { setTimeout(() => this.load(), 3000); return; }
    const { seq, text } = await answer.json();
    this.lines = []; this.rest = ""; this.seq = seq;
    // The recorder writes after the stream says: a text that ends before `after` may lack lines that no event will bring again. It is shown, and
    // asked for once more; what the stream brings waits.
    this.ready = seq >= this.after;
    if (!this.ready) setTimeout(() => this.load(Math.min(3000, wait * 1.6)), wait);
    if (!this.space) {
      this.space = document.createElement("div"); this.space.className = "log-space";
      this.list = document.createElement("ol"); this.list.className = "log-lines";
      this.space.append(this.list);
    }
    this.#push(text);
    const waiting = this.ready ? this.#waiting.splice(0) : [];
    if (this.lines.length) { this.#show(); this.#soon(); }
    for (const event of waiting) this.add(event);
    this.#count();
    if (!this.ready) return;
    if (!this.live && this.lines.length && !this.#jumpToHash()) this.#showDecisive();
  }
  // Of a failed step: the line that decided it, wherever it stands, instead of the end.
  #showDecisive() {
    const text = this.block.dataset.logDecisive?.trim();
    this.decisive = text ? this.lines.findIndex((line) => plain(line).includes(text)) : -1;
    if (this.decisive >= 0) { this.follow = false; this.#labels(); this.view.scrollTop = Math.max(0, this.#top(this.decisive) - this.view.clientHeight / 3); }
    this.#draw();
  }
  #show() {
    if (this.shown) return;
    this.shown = true;
    this.view.classList.add("log-h-l");
    this.view.replaceChildren(this.space);
    this.#draw();
    this.view.scrollTop = this.view.scrollHeight;
    this.#draw();
  }
  add(event) {
    if (!this.ready) { this.#waiting.push(event); return; }
    if (event.seq <= this.seq) return;
    this.seq = event.seq;
    const before = this.lines.length;
    this.#push(event.data.text ?? "");
    if (event.data.dropped_bytes) this.#push(`Roundhouse: ${event.data.dropped_bytes.toLocaleString("en")} bytes were left out here; the node keeps the whole log\n`);
    if (!this.follow) this.#missed += this.lines.length - before;
    if (this.lines.length) this.#show();
    if (this.query) this.#search(this.query, true);
    this.#count(); this.#soon();
  }
  #push(text) {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop();
    for (const part of parts) this.lines.push(clean(part));
    this.#tops = null;
  }
  setFollow(on) { this.follow = on; if (on) this.#missed = 0; this.#labels(); this.#count(); this.#soon(); }
  setWrap(on) {
    const at = this.#firstShown();
    this.wrap = on; this.#tops = null;
    this.view.classList.toggle("log-wrap", on);
    this.#labels(); this.#draw();
    if (!this.follow) this.view.scrollTop = this.#top(at);
  }
  #labels() {
    const follow = this.find("follow");
    follow.setAttribute("aria-pressed", String(this.follow));
    follow.querySelector("[data-label]").textContent = this.follow ? "Following" : "Follow";
    this.find("wrap").setAttribute("aria-pressed", String(this.wrap));
  }
  #count() {
    const words = `${this.lines.length.toLocaleString("en")} ${this.lines.length === 1 ? "line" : "lines"}`;
    this.find("count").textContent = this.#missed ? `${words}, ${this.#missed.toLocaleString("en")} new below` : words;
  }
  // ---- which lines are in view ----
  #measure() {
    if (this.#columns) return;
    const probe = document.createElement("span");
    probe.textContent = "0".repeat(100); probe.className = "mono visually-hidden";
    this.view.append(probe);
    const width = probe.getBoundingClientRect().width / 100 || 7.2;
    // visually-hidden clips the box, so measure by a range when it lies
    const range = document.createRange(); range.selectNodeContents(probe);
    const real = range.getBoundingClientRect().width / 100 || width;
    probe.remove();
    this.#columns = Math.max(20, Math.floor((this.view.clientWidth - 56 - 16) / Math.max(real, 4)));
  }
  #layout() {
    if (!this.wrap || this.#tops) return;
    this.#measure();
    const tops = new Float64Array(this.lines.length + 1);
    for (let n = 0; n < this.lines.length; n += 1) tops[n + 1] = tops[n] + ROW * Math.max(1, Math.ceil(plain(this.lines[n]).length / this.#columns));
    this.#tops = tops;
  }
  #top(n) { this.#layout(); return this.wrap ? this.#tops[n] : n * ROW; }
  #at(y) {
    if (!this.wrap) return Math.max(0, Math.min(this.lines.length - 1, Math.floor(y / ROW)));
    this.#layout();
    let low = 0, high = this.lines.length;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.#tops[middle] <= y) low = middle; else high = middle - 1; }
    return Math.min(low, this.lines.length - 1);
  }
  #firstShown() { return this.#at(this.view.scrollTop); }
  #soon() { if (!this.#frame) this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#draw(); }); }
  #draw() {
    if (!this.shown) return;
    const height = this.#top(this.lines.length);
    this.space.style.height = `${height}px`;
    if (this.follow) this.view.scrollTop = height;
    this.#kept = { top: this.view.scrollTop, left: this.view.scrollLeft };
    const first = Math.max(0, this.#at(this.view.scrollTop) - EXTRA), last = Math.min(this.lines.length, this.#at(this.view.scrollTop + this.view.clientHeight) + EXTRA + 1);
    this.list.style.transform = `translateY(${this.#top(first)}px)`;
    const rows = [];
    for (let n = first; n < last; n += 1) rows.push(this.#row(n));
    this.list.replaceChildren(...rows);
  }
  #row(n) {
    const li = document.createElement("li"), number = document.createElement("a"), text = document.createElement("span");
    number.href = `#L${n + 1}`; number.textContent = (n + 1).toLocaleString("en"); number.tabIndex = -1;
    if (location.hash === `#L${n + 1}` || n === this.decisive) li.className = "decisive";
    if (this.query) this.#marked(text, n);
    else for (const [name, piece] of pieces(this.lines[n])) {
      if (!name) { text.append(piece); continue; }
      const span = document.createElement("span"); span.className = name; span.textContent = piece; text.append(span);
    }
    li.append(number, text);
    return li;
  }
  #marked(text, n) {
    const line = plain(this.lines[n]), low = line.toLowerCase(), query = this.query;
    let at = 0;
    for (let found = low.indexOf(query); found >= 0; found = low.indexOf(query, at)) {
      text.append(line.slice(at, found));
      const mark = document.createElement("mark"); mark.textContent = line.slice(found, found + query.length);
      if (this.hits[this.hit] === n) mark.className = "current";
      text.append(mark);
      at = found + query.length;
    }
    text.append(line.slice(at));
  }
  #scrolled() {
    const bottom = this.view.scrollTop + this.view.clientHeight >= this.view.scrollHeight - ROW;
    if (this.follow && !bottom && this.#moved()) { this.follow = false; this.#labels(); }
    else if (!this.follow && bottom && this.live) { this.follow = true; this.#missed = 0; this.#labels(); this.#count(); }
    this.#soon();
  }
  // Taken out of the page and put back with a fragment around it: the browser has forgotten where it was scrolled to.
  restore() {
    if (!this.shown) return;
    this.view.scrollTop = this.#kept.top; this.view.scrollLeft = this.#kept.left;
    this.#draw();
  }
  // A scroll that was not ours: ours always ends at the bottom.
  #moved() { return this.view.scrollTop + this.view.clientHeight < this.#top(this.lines.length) - ROW * 2; }
  #toggleSearch(on = this.find("search").hidden) {
    this.find("search").hidden = !on;
    this.find("find").setAttribute("aria-pressed", String(on)); this.find("find").setAttribute("aria-expanded", String(on));
    const input = this.find("search").querySelector("input");
    if (on) input.focus(); else { input.value = ""; this.#search(""); this.find("find").focus(); }
  }
  #search(value, quiet = false) {
    this.query = value.toLowerCase();
    this.hits = [];
    if (this.query) this.lines.forEach((line, n) => { if (plain(line).toLowerCase().includes(this.query)) this.hits.push(n); });
    if (!quiet) { const here = this.#firstShown(); this.hit = this.hits.findIndex((n) => n >= here); if (this.hit < 0 && this.hits.length) this.hit = 0; if (this.hits.length) this.#reveal(); }
    this.#told(); this.#soon();
  }
  #told() { this.find("hits").textContent = !this.query ? "" : this.hits.length ? `line ${this.hit + 1} of ${this.hits.length.toLocaleString("en")} with it` : "not found"; }
  #go(step) {
    if (!this.hits.length) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    this.#reveal(); this.#told(); this.#soon();
  }
  #reveal() { this.follow = false; this.#labels(); this.view.scrollTop = Math.max(0, this.#top(this.hits[this.hit]) - this.view.clientHeight / 2); }
  #jumpToHash() {
    const match = /^#L([\d,]+)$/.exec(location.hash);
    if (!match || !this.shown || !this.block.isConnected) return false;
    this.block.scrollIntoView({ block: "nearest" });
    const n = Math.min(this.lines.length, Number(match[1].replaceAll(",", ""))) - 1;
    this.follow = false; this.#labels();
    this.view.scrollTop = Math.max(0, this.#top(n) - this.view.clientHeight / 2);
    this.#soon();
    return true;
  }
}
