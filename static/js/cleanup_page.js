// Cleanup. The page of a scan is a form that works by itself; here it filters, orders and unfolds in place, and counts exactly while somebody
// chooses. What is chosen stands here, not in the boxes: a kind is chosen whole, less some rows (`minus`), or only some rows of it are (`plus`).
import { stream } from "./stream.js";
import { debounced, refresh } from "./fragments.js";
import { localise, setText } from "./clock.js";
import { drawBar } from "./bars.js";
import * as dialogs from "./dialogs.js";
import { joined, size } from "./sizes.js";

const form = document.getElementById("choice");
let touched = false; // somebody has chosen something: the page is not loaded anew under their hands

// ---- numbers and words, as dashboard/cleanup_story.py writes them ----

const whole = (number) => number.toLocaleString("en");
const items = (count) => `${whole(count)} ${count === 1 ? "item" : "items"}`;

// ---- the choice ----

const NUMBER = 0, BYTES = 1, FILES = 2, DISK = 3; // of a row
const place = form && document.querySelector("[data-groups]");
const data = form && JSON.parse(document.getElementById("choice-data").textContent);
const KEY = form && `cleanup ${form.dataset.node} ${form.dataset.scan} ${data.purged}`;
const kinds = new Map();
const byNumber = (rows) => new Map(rows.map((row) => [row[NUMBER], row]));
let found = null; // of a filter: the rows that it finds, by kind; null without one

function take(name, { whole: all, minus, plus }) {
  const kind = kinds.get(name);
  if (kind) { kind.whole = all; kind.minus = byNumber(minus); kind.plus = byNumber(plus); }
}
function open() {
  for (const [name, kind] of Object.entries(data.kinds)) { kinds.set(name, { ...kind }); take(name, kind); }
  try { for (const [name, kept] of JSON.parse(sessionStorage.getItem(KEY)) ?? []) { take(name, kept); touched = true; } } catch { /* none was kept: as the page has it */ }
}
function keep() {
  touched = true;
  try { sessionStorage.setItem(KEY, JSON.stringify([...kinds].map(([name, k]) => [name, { whole: k.whole, minus: [...k.minus.values()], plus: [...k.plus.values()] }]))); } catch { /* too much, or forbidden: only a reload forgets it */ }
}
const has = (kind, number) => kind.whole ? !kind.minus.has(number) : kind.plus.has(number);
function put(kind, rows, on) {
  for (const row of rows) {
    if (kind.whole) { if (on) kind.minus.delete(row[NUMBER]); else kind.minus.set(row[NUMBER], row); }
    else if (on) kind.plus.set(row[NUMBER], row); else kind.plus.delete(row[NUMBER]);
  }
  if (!kind.whole && kind.plus.size === kind.count) setWhole(kind, true);
  else if (kind.whole && kind.minus.size === kind.count) setWhole(kind, false);
}
function setWhole(kind, on) { kind.whole = on; kind.minus.clear(); kind.plus.clear(); }
function putKind(name, on) { if (found) put(kinds.get(name), found.get(name) ?? [], on); else setWhole(kinds.get(name), on); }
function sum(kind) {
  const total = { count: 0, files: 0, bytes: 0, disks: new Map() };
  const add = (count, files, bytes, disk, sign) => { total.count += sign * count; total.files += sign * files; total.bytes += sign * bytes; if (disk !== null) total.disks.set(disk, (total.disks.get(disk) ?? 0) + sign * bytes); };
  if (kind.whole) { add(kind.count, kind.files, kind.bytes, null, 1); for (const [disk, bytes] of kind.on) total.disks.set(disk, (total.disks.get(disk) ?? 0) + bytes); }
  for (const row of (kind.whole ? kind.minus : kind.plus).values()) add(1, row[FILES], row[BYTES], row[DISK], kind.whole ? -1 : 1);
  return total;
}
function totals() {
  const all = { count: 0, files: 0, bytes: 0, disks: new Map(), words: [] };
  for (const name of data.order) {
    const kind = kinds.get(name);
    if (!kind) continue;
    const of = sum(kind);
    if (!of.count) continue;
    all.count += of.count; all.files += of.files; all.bytes += of.bytes;
    for (const [disk, bytes] of of.disks) all.disks.set(disk, (all.disks.get(disk) ?? 0) + bytes);
    all.words.push(`${whole(of.count)} ${of.count === 1 ? kind.one : kind.many}`);
  }
  all.words = all.words.length > 3 ? `${items(all.count)} of ${all.words.length} kinds` : joined(all.words);
  return all;
}

// ---- what the page shows of it ----

function show() {
  let shown = 0, on = 0;
  for (const body of place.querySelectorAll("tbody[data-kind]")) {
    const kind = kinds.get(body.dataset.kind), box = body.querySelector("input[name=kinds]");
    if (!kind) continue;
    for (const row of body.querySelectorAll("tr[data-n]")) {
      const tick = row.querySelector("input[name=number]");
      if (tick) tick.checked = has(kind, Number(row.dataset.n));
    }
    const rows = found?.get(body.dataset.kind);
    const of = found ? rows?.length ?? 0 : kind.count, ticked = found ? (rows ?? []).filter((row) => has(kind, row[NUMBER])).length : sum(kind).count;
    box.disabled = of === 0; box.checked = of > 0 && ticked === of; box.indeterminate = ticked > 0 && ticked < of;
    shown += of; on += ticked;
    const rest = body.querySelector("[data-unlisted]");
    if (rest?.textContent) setText(rest, kind.whole ? ": chosen with the whole kind" : ": they go only with the whole kind");
  }
  const every = place.querySelector("[data-all]");
  if (every) { every.hidden = false; every.disabled = shown === 0; every.checked = shown > 0 && on === shown; every.indeterminate = on > 0 && on < shown; }
  const all = totals(), node = form.dataset.node, bar = document.querySelector("[data-bar-of-choice]");
  setText(document.querySelector("[data-chosen-count]"), items(all.count));
  setText(document.querySelector("[data-chosen-size]"), all.count ? size(all.bytes) : "nothing yet");
  if (bar) {
    setText(bar.querySelector("[data-said]"), all.count ? `${all.words}, ${size(all.bytes)} on ${node}, ${all.count === 1 ? "is" : "are"} chosen.` : "Nothing is chosen.");
    setText(bar.querySelector("[data-review] [data-label]"), all.count === 0 ? "Nothing is chosen" : all.count === 1 ? "Delete this item…" : `Delete these ${items(all.count)}…`);
    bar.toggleAttribute("data-none", all.count === 0);
  }
  data.disks.forEach((disk, index) => {
    const gives = Math.max(0, Math.min(all.disks.get(index) ?? 0, disk.used ?? 0)), after = disk.free === null ? null : disk.free + gives;
    const strip = document.querySelector(`[data-free-after="${index}"]`), line = document.querySelector(`[data-disk="${index}"]`);
    if (strip && after !== null) setText(strip, size(after));
    if (disk.free !== null) for (const now of [line?.querySelector("[data-free]"), document.querySelector(`[data-free-now="${index}"]`)]) setText(now, size(disk.free));
    if (!line) return;
    if (disk.total && disk.used !== null) drawBar(line.querySelector("[data-bar=disk]"), [{ kind: "b-service", share: (disk.used - gives) / disk.total, title: `stays in use: ${size(disk.used - gives)}` }, { kind: "b-other", share: gives / disk.total, title: `chosen: ${size(gives)}` }]);
    const said = line.querySelector("[data-gives]");
    said.hidden = !gives;
    setText(said, `+${size(gives)}${after === null ? "" : `, then ${size(after)} free`}`);
  });
}

// ---- filters, order, more rows: all asked of the server ----

const FILTERS = ["q", "kind", "state", "service", "larger", "older"];
let sort = "-size", asked = 0;
const filters = () => FILTERS.map((name) => [name, form.elements.namedItem(name)?.value.trim() ?? ""]).filter(([, value]) => value);
function query(more = []) { return new URLSearchParams([["scan", form.dataset.scan], ...filters(), ["sort", sort], ...more]); }
async function fetched(more, as = "text") {
  const answer = await fetch(`${form.dataset.rows}?${query(more)}`, { headers: { "X-Roundhouse-Fragment": "part" } });
  if (!answer.ok || answer.redirected) throw new Error(`answered ${answer.status}`);
  return answer[as]();
}
function trouble(words) {
  const said = document.querySelector("[data-filter-said]");
  said.hidden = false; said.textContent = words; said.classList.add("t-warn");
}
// `kept`: what is unfolded stays so, else it is as a page opens.
async function ask({ kept = false } = {}) {
  const mine = ++asked, filtered = filters().length > 0;
  const opened = kept ? [...place.querySelectorAll("tbody[data-open]")].map((body) => ["open", `${body.dataset.kind}:${body.querySelectorAll("tr[data-n]").length}`]) : [];
  let html, numbers;
  try { [html, numbers] = await Promise.all([fetched(kept && !opened.length ? [["open", ":0"]] : opened), filtered ? fetched([["numbers", "1"]], "json") : null]); }
  catch { if (mine === asked) trouble("No connection: what you see is of the filter before."); return; }
  if (mine !== asked) return; // another one was asked for meanwhile
  found = numbers && new Map(Object.entries(numbers.kinds));
  place.innerHTML = html; // our own server's template, escaped there
  localise(place);
  const said = document.querySelector("[data-filter-said]");
  said.hidden = !filtered; said.classList.remove("t-warn"); said.textContent = "only what the filter finds; all that is chosen stays chosen";
  for (const words of document.querySelectorAll("[data-of-filter]")) words.hidden = !filtered;
  document.getElementById("clear").hidden = !filtered;
  const address = new URLSearchParams(filters());
  if (sort !== "-size") address.set("sort", sort);
  if (new URLSearchParams(location.search).has("scan")) address.set("scan", form.dataset.scan);
  history.replaceState(null, "", `${location.pathname}${address.size ? `?${address}` : ""}`);
  place.dispatchEvent(new CustomEvent("fragment", { bubbles: true }));
  show();
}
async function unfold(body, start) {
  const button = body.querySelector("[data-fold]"), rest = body.querySelector("tr.rest"), rows = document.createElement("template");
  try { rows.innerHTML = await fetched([["of", body.dataset.kind], ["start", String(start)]]); }
  catch { trouble("No connection: try it again in a moment."); return; }
  if (!body.isConnected || body.querySelectorAll("tr[data-n]").length !== start) return; // pressed twice
  const first = rows.content.querySelector("input, button");
  rest?.remove();
  body.append(rows.content);
  body.dataset.open = ""; button.setAttribute("aria-expanded", "true");
  show();
  if (start) first?.focus({ preventScroll: true });
}
function fold(body) {
  const button = body.querySelector("[data-fold]"), rows = [...body.querySelectorAll("tr.leaf, tr.rest")];
  if (!rows.length) { unfold(body, 0); return; }
  const opens = button.getAttribute("aria-expanded") === "false";
  for (const row of rows) row.hidden = !opens;
  button.setAttribute("aria-expanded", String(opens)); body.toggleAttribute("data-open", opens);
}
function choose(what) {
  if (what === "offered") for (const [name, kind] of Object.entries(data.offered)) take(name, kind);
  else if (what === "clear") for (const kind of kinds.values()) setWhole(kind, false);
  else for (const name of kinds.keys()) putKind(name, what === "all");
  keep(); show();
}

// ---- the question before a purge ----

const post = () => {
  const sent = new FormData();
  sent.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
  sent.set("scan", form.dataset.scan);
  for (const [name, kind] of kinds) if (kind.whole) sent.append("kinds", name);
  sent.set("numbers", [...kinds.values()].flatMap((kind) => kind.whole ? [] : [...kind.plus.keys()]).join(","));
  sent.set("without", [...kinds.values()].flatMap((kind) => kind.whole ? [...kind.minus.keys()] : []).join(","));
  return sent;
};
async function review(button) {
  if (!totals().count) { place.querySelector("input:not(:disabled)")?.focus(); return; }
  const sent = post(), to = button.getAttribute("formaction");
  let answer;
  try { answer = await fetch(to, { method: "POST", body: sent, headers: { "X-Roundhouse-Fragment": "dialog" } }); } catch { answer = null; }
  if (!answer?.ok || answer.redirected) { // its own page says what is wrong
    const plain = document.createElement("form");
    plain.method = "post"; plain.action = to; plain.hidden = true;
    for (const [name, value] of sent) { const field = document.createElement("input"); field.type = "hidden"; field.name = name; field.value = value; plain.append(field); }
    document.body.append(plain);
    plain.submit();
    return;
  }
  dialogs.show(await answer.text(), button, "dialog-wide");
}

if (form) {
  open();
  sort = form.elements.namedItem("order").value;
  for (const button of form.querySelectorAll("[data-filter-button]")) button.hidden = true; // filters apply when they are changed
  form.addEventListener("change", (event) => {
    const box = event.target, body = box.closest("tbody[data-kind]");
    if (box.name === "number" && body) {
      const { n, b, f, d } = box.closest("tr").dataset;
      put(kinds.get(body.dataset.kind), [[Number(n), Number(b), Number(f), Number(d)]], box.checked);
    } else if (box.name === "kinds" && body) putKind(body.dataset.kind, box.checked);
    else if (box.matches("[data-all]")) { for (const name of kinds.keys()) putKind(name, box.checked); }
    else { if (box.name === "order") { sort = box.value; ask({ kept: true }); } else if (FILTERS.includes(box.name) && box.name !== "q") ask(); return; }
    keep(); show();
  });
  const typed = debounced(() => ask(), 250, 1000);
  form.elements.namedItem("q").addEventListener("input", typed);
  form.addEventListener("click", (event) => {
    const button = event.target.closest("button, a");
    if (!button) return;
    const body = button.closest("tbody[data-kind]");
    if (button.matches("[data-fold]")) fold(body);
    else if (button.matches("[data-more]")) unfold(body, body.querySelectorAll("tr[data-n]").length);
    else if (button.matches("[data-choose]")) choose(button.dataset.choose);
    else if (button.matches("button.sort")) { sort = button.value; form.elements.namedItem("order").value = sort; ask({ kept: true }); }
    else if (button.id === "clear") { for (const name of FILTERS) { const field = form.elements.namedItem(name); if (field) field.value = ""; } ask(); }
    else return;
    event.preventDefault();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault(); event.stopPropagation(); // nothing is sent as it stands: what is chosen stands here
    if (event.submitter?.matches("[data-review]")) review(event.submitter); else ask();
  });
  addEventListener("pageshow", (event) => { if (event.persisted) show(); });
  if (filters().length) ask(); else show();
}

// ---- what runs ----

const running = document.querySelector("[data-part=running]"), cards = document.querySelector("[data-part=cards]");
const runs = () => running?.querySelector("[data-running-job]")?.dataset.runningJob ?? "";
let known = runs();
function progress(told) {
  const box = running?.querySelector("[data-running-job]");
  if (!box) return;
  const share = told.total && typeof told.done === "number" ? Math.min(1, told.done / told.total) : null;
  box.querySelector("[data-progress-bar]").hidden = share === null;
  if (share !== null) { const bar = box.querySelector("[data-bar=progress]"); drawBar(bar, [{ kind: "b-now", share }]); bar.setAttribute("aria-valuenow", String(Math.round(share * 100))); }
  setText(box.querySelector("[data-progress-text]"), told.text ?? "");
  setText(box.querySelector("[data-progress-count]"), typeof told.done === "number" ? `${whole(Math.round(told.done))}${told.total ? ` of ${whole(Math.round(told.total))}` : ""} ${told.unit ?? ""}` : "");
}
const look = debounced((seq) => refresh(running, { seq }), 120, 700);
running?.addEventListener("fragment", () => {
  const now = runs();
  if (now === known) return;
  const ended = known && !now;
  known = now;
  if (!touched && !document.querySelector("dialog[open]")) { location.reload(); return; }
  if (ended) document.querySelector("[data-newer]").hidden = false;
});
stream?.on("job", (event) => { if (!running || event.type === "step.log") return; if (event.type === "step.progress") progress(event.data); else look(event.seq); });
const again = debounced(() => { if (cards) refresh(cards); if (running) refresh(running); }, 200, 1500);
stream?.on("jobs", ({ job }) => { if (job && ["artifact-scan", "purge", "redeploy"].includes(job.type)) again(); });
// How full the disks are changes while somebody looks.
stream?.on("telemetry", (told) => {
  if (!form || told.node !== form.dataset.node || !Array.isArray(told.disks)) return;
  for (const disk of data.disks) {
    const now = told.disks.find((one) => one?.path === disk.path);
    if (Number.isFinite(now?.free_bytes) && Number.isFinite(now.used_bytes)) { disk.free = now.free_bytes; disk.used = now.used_bytes; }
  }
  show();
});
// The manifest of a purge that runs: its lines and, at its end, its sums.
const manifest = document.body.dataset.manifestOf;
if (manifest) {
  stream?.on("jobs", ({ job }) => { if (job?.id === manifest) setTimeout(() => location.reload(), 500); });
  setTimeout(() => location.reload(), 5000); // its end may have been told before this page listened
}
let broken = false;
stream?.on("state", ({ state }) => { if (state !== "live") broken = true; else if (broken) { broken = false; again(); } });
