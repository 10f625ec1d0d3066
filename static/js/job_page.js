// A job's page, live. What changes its structure (a step turned, a result came) fetches the server's fragments again; log text, progress and
// the seconds of a sweep go straight into the page. After a reload or a break it goes on from the last event: the stream sees to that.
import { stream } from "./stream.js";
import { debounced, refresh } from "./fragments.js";
import { setText } from "./clock.js";
import { drawBar } from "./bars.js";
import { LogView } from "./job_log.js";
import { readings, servicesDiffer, updateGpus } from "./gpus.js";

const IN_PLACE = new Set(["step.log", "step.progress", "sweep.level_second"]);
const final = "final" in document.body.dataset;
const part = (name) => document.querySelector(`[data-part="${name}"]`);
let explicit = part("panels")?.dataset.explicit ?? "";

// ---- fragments ----

const update = debounced((seq) => { for (const element of document.querySelectorAll("[data-part]")) if (element.isConnected && !element.parentElement.closest("[data-part]")) refresh(element, { seq }); }, 120, 700);
function choose(step) {
  explicit = step;
  for (const name of ["steps", "panels"]) {
    const element = part(name);
    const url = new URL(element.dataset.fragment, location.href);
    if (step) url.searchParams.set("step", step); else url.searchParams.delete("step");
    element.dataset.fragment = url.pathname + url.search;
    refresh(element);
  }
}
part("steps")?.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-step]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  // A click on the step that runs follows the job again.
  const running = link.querySelector(".spin") !== null;
  history.replaceState(null, "", running ? location.pathname : link.getAttribute("href"));
  for (const other of part("steps").querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  link.setAttribute("aria-current", "step");
  choose(running ? "" : link.dataset.step);
});

// ---- log ----

let log = null;
function openLog() {
  const block = document.querySelector("[data-log]");
  if (!block) { log = null; return; }
  if (log?.block === block) { log.restore(); return; }
  log = new LogView(block, { live: !document.body.hasAttribute("data-final"), after: stream?.last ?? 0 });
  log.load();
}

// ---- sweep ----

let sweep = null, level = null, charts = null;
async function openSweep() {
  const data = document.getElementById("sweep-data");
  if (!data) { sweep = null; return; }
  const found = JSON.parse(data.textContent);
  if (sweep && sweep.run === found.run && sweep.seq > found.seq) { sweep.points = found.points; sweep.before = found.before; } else {
    sweep = found;
    level = found.seconds.key === null ? null : { ...found.seconds, value: found.seconds.key.endsWith("/s") ? Number(found.seconds.key.slice(0, -2)) : Number(found.seconds.key) };
  }
  if (level && !level.requests) level.requests = asked(level.key);
  charts ??= await import("./sweep_live.js");
  drawSweep();
}
// How many requests a level will send, as its row in the table says.
function asked(key) {
  const text = document.querySelector(`[data-level="${CSS.escape(key)}"] [data-v=requests]`)?.textContent ?? "";
  return Number(/([0-9]+)$/.exec(text)?.[1] ?? NaN) || null;
}
function drawSweep() {
  if (!sweep || !charts || typeof Plotly === "undefined") return;
  const running = level && !sweep.points.some((p) => p.key === level.key);
  charts.sweepCharts(sweep, running && level.latest ? { x: level.value, tput: level.latest.throughput_so_far_tok_s, latency: level.latest.e2e_p50_s ?? level.latest.e2e_mean_s } : null);
  const seconds = level ?? { x: [], y: [] };
  charts.secondsChart(seconds, sweep.practice);
  charts.serverChart(seconds, sweep.practice);
  charts.showSecond(level);
}
// Nobody sees a page in the background: it is drawn when it comes back.
document.addEventListener("visibilitychange", () => { if (!document.hidden) drawSweep(); });
const drawSoon = debounced(() => { if (!document.hidden) drawSweep(); }, 60, 500);
async function second(data, seq) {
  charts ??= await import("./sweep_live.js");
  if (!level || level.key !== charts.keyOf(data)) level = charts.newLevel({ ...data, requests: asked(charts.keyOf(data)) });
  if (!charts.addSecond(level, data)) return;
  if (sweep) sweep.seq = Math.max(sweep.seq, seq);
  const each = data.load === "open" ? null : (data.throughput_so_far_tok_s ?? 0) / level.value;
  const row = document.querySelector(`[data-level="${CSS.escape(level.key)}"]`);
  if (row) {
    const set = (name, text) => setText(row.querySelector(`[data-v="${name}"]`), text);
    if (data.throughput_so_far_tok_s) { set("tput", charts.rate(data.throughput_so_far_tok_s)); if (each) set("per_user", charts.rate(each)); }
    for (const [name, value] of [["mean", data.e2e_mean_s], ["p50", data.e2e_p50_s], ["p99", data.e2e_p99_s]]) if (value !== null && value !== undefined) set(name, value.toFixed(value < 1 ? 2 : 1));
    if (data.ttft_p50_ms !== null && data.ttft_p50_ms !== undefined) set("ttft", charts.rate(data.ttft_p50_ms));
    if (level.requests) set("requests", `${data.finished} of ${level.requests}`);
    set("errors", String(data.errors));
  }
  const fact = document.querySelector("[data-fact=tput]");
  if (fact && data.throughput_so_far_tok_s) {
    setText(fact.querySelector("[data-value]"), charts.rate(data.throughput_so_far_tok_s));
    setText(fact.querySelector("[data-small]"), `at ${level.name}${each ? `, ${charts.rate(each)} per user` : ""}`);
    if (!fact.querySelector(".unit")) { const unit = document.createElement("span"); unit.className = "unit"; unit.textContent = "tok/s"; fact.querySelector("[data-value]").after(unit); }
  }
  const wrong = document.querySelector("[data-fact=errors]");
  if (wrong && wrong.dataset.ended !== undefined) {
    const errors = Number(wrong.dataset.errors) + (data.errors ?? 0), ended = Number(wrong.dataset.ended) + (data.finished ?? 0) + (data.errors ?? 0);
    setText(wrong.querySelector("[data-value]"), errors.toLocaleString("en"));
    setText(wrong.querySelector("[data-small]"), `of ${ended.toLocaleString("en")} requests`);
    wrong.querySelector("dd").classList.toggle("t-fail", errors > 0);
  }
  drawSoon();
}
async function levelStarted(data) {
  charts ??= await import("./sweep_live.js");
  level = charts.newLevel(data);
  drawSoon();
}

// ---- progress ----

function progress(data) {
  const box = document.querySelector(`[data-progress-of="${CSS.escape(data.step ?? "")}"]`);
  const share = data.total && data.done !== null ? Math.min(1, data.done / data.total) : null;
  if (box) {
    box.hidden = false;
    const bar = box.querySelector("[data-bar=progress]");
    drawBar(bar, [{ kind: "b-now", share: share ?? 0 }]);
    if (share !== null) bar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
    setText(box.querySelector("[data-progress-text]"), data.text ?? "");
    setText(box.querySelector("[data-progress-count]"), data.done === null || data.done === undefined ? "" : `${Math.round(data.done).toLocaleString("en")}${data.total ? ` of ${Math.round(data.total).toLocaleString("en")}` : ""} ${data.unit ?? ""}`);
  }
  const words = data.step === "warmup" || data.estimate ? document.querySelector("[data-warmup-text]") : null;
  if (words && data.text) { words.hidden = false; setText(words, data.text); }
  if (data.text) setText(document.querySelector("[data-fact=now] [data-small]"), data.text);
}

// ---- events ----

const ENDED = { partial: "is partly done", cancelled: "was cancelled", interrupted: "was interrupted" };
const SAID = { "step.started": (d) => `${d.title} started`, "step.finished": (d) => `Step ${d.step} ${d.outcome}`, "job.finished": (d) => `The job ${ENDED[d.state] ?? d.state}` };
stream?.on("job", (event) => {
  if (event.type === "step.log") { if (log && event.data.step === log.step) log.add(event); }
  else if (event.type === "step.progress") progress(event.data);
  else if (event.type === "sweep.level_second") second(event.data, event.seq);
  if (IN_PLACE.has(event.type)) return;
  if (SAID[event.type]) setText(document.querySelector("[data-said]"), SAID[event.type](event.data));
  if (event.type === "sweep.level_started") levelStarted(event.data);
  if (event.type === "job.finished") { document.body.dataset.final = ""; if (log) log.live = false; }
  update(event.seq);
});
stream?.on("jobs", ({ job }) => { if (job && job.id === document.body.dataset.job) update(0); });
stream?.on("telemetry", (told) => { const strip = document.querySelector(`[data-node="${CSS.escape(told.node)}"]`); if (strip) updateGpus(strip, readings(told.gpus?.gpus));
  if (part("notice") && servicesDiffer(part("notice"), told.services)) noticeSoon(); });
const noticeSoon = debounced(() => refresh(part("notice")), 1500, 3000);
let broken = false;
stream?.on("state", ({ state }) => { if (state !== "live") broken = true; else if (broken && !final) { broken = false; update(0); } });
document.addEventListener("fragment", () => { openLog(); openSweep(); });
openLog();
openSweep();
