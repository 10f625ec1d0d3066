// Fleet and node pages: readings in place once a second; the rest is fetched again when a job or a service changed.
import { stream } from "./stream.js";
import { debounced, refresh } from "./fragments.js";
import { serverNow, setText } from "./clock.js";
import { gib, readings, servicesDiffer, updateGpus } from "./gpus.js";

const STEP = 5, COUNT = 60, WIDTH = 72, HEIGHT = 18; // as views/fleet.py
const nodes = new Map(); // name: { gpus, history: Map index -> values, at }
for (const card of document.querySelectorAll("[data-node]")) {
  const data = document.getElementById(`history-${card.dataset.node}`);
  const known = data ? JSON.parse(data.textContent) : {};
  nodes.set(card.dataset.node, { history: new Map(Object.entries(known).map(([index, values]) => [Number(index), values])), at: 0, gpus: [], states: "" });
}
const fragments = () => document.querySelectorAll("[data-fragment]");
const again = debounced(() => { for (const element of fragments()) refresh(element); }, 200, 1500);
stream?.on("jobs", ({ job }) => { if (job) again(); });
// After a break everything may have changed.
let broken = false;
stream?.on("state", ({ state }) => { if (state !== "live") broken = true; else if (broken) { broken = false; again(); } });
stream?.on("telemetry", (told) => {
  const known = nodes.get(told.node);
  if (!known) { if (!document.querySelector("[data-node]") && document.getElementById("join")) location.reload(); else again(); return; }
  const gpus = readings(told.gpus?.gpus);
  known.gpus = gpus;
  const card = document.querySelector(`[data-node="${CSS.escape(told.node)}"]`);
  updateGpus(card, gpus);
  sparks(card, known, gpus, told.at);
  for (const time of card.querySelectorAll("[data-seen] [data-ago]")) { time.dataset.ago = String(Math.min(told.at, serverNow())); }
  for (const time of card.querySelectorAll("[data-seen] time:not([data-ago])")) time.dataset.ago = String(told.at);
  facts();
  // Who holds memory and how services are: the server's words, when they change.
  const states = JSON.stringify([Object.entries(told.services ?? {}).map(([name, s]) => [name, s.state, s.release, s.pid]), gpus.map((g) => (g.processes ?? []).map((p) => [p.pid, p.service]))]);
  if (known.states && known.states !== states) setTimeout(again, 600); // the recorder writes the same a moment later
  else if (servicesDiffer(card, told.services)) again();
  known.states = states;
  // How full the disks are, by half percents: after a purge, or while something fills them.
  const disks = JSON.stringify((Array.isArray(told.disks) ? told.disks : []).map((disk) => [disk?.path, Math.round(200 * disk?.used_bytes / disk?.total_bytes)]));
  if (known.disks && known.disks !== disks) setTimeout(again, 4000); // the recorder writes them every 3 s
  known.disks = disks;
});
function sparks(card, known, gpus, at) {
  const fresh = at - known.at >= STEP;
  if (fresh) known.at = at;
  for (const gpu of gpus) {
    const values = known.history.get(gpu.index) ?? known.history.set(gpu.index, []).get(gpu.index);
    if (fresh || !values.length) values.push(gpu.utilization); else values[values.length - 1] = gpu.utilization;
    if (values.length > COUNT) values.splice(0, values.length - COUNT);
    const line = card.querySelector(`[data-gpu="${gpu.index}"] .spark polyline`);
    if (!line) continue;
    const step = WIDTH / (COUNT - 1), start = WIDTH - step * (values.length - 1);
    line.setAttribute("points", values.map((v, n) => v === null || v === undefined ? "" : `${(start + n * step).toFixed(1)},${(HEIGHT - 1 - (HEIGHT - 2) * Math.min(Math.max(v, 0), 100) / 100).toFixed(1)}`).filter(Boolean).join(" "));
  }
}
function facts() {
  const all = [...nodes.values()].flatMap((n) => n.gpus), sum = (key) => { const read = all.map((g) => g[key]).filter((v) => typeof v === "number"); return read.length ? read.reduce((a, b) => a + b, 0) : null; };
  if ([...nodes.values()].some((n) => !n.gpus.length)) return; // a sum over some of the nodes would be another number
  const memory = sum("used_bytes"), power = sum("power_w");
  if (memory !== null) setText(document.querySelector("[data-fact=memory] [data-value]"), gib(memory));
  if (power !== null) setText(document.querySelector("[data-fact=power] [data-value]"), (power / 1000).toFixed(2));
}
