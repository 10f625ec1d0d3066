// GPU rows and strips of one node, from its telemetry, in place. Elements: [data-node] with [data-gpu] rows in it.
import { drawBar } from "./bars.js";
import { setText } from "./clock.js";

const GIB = 2 ** 30;
const whole = (value) => Math.round(value).toLocaleString("en");
export const gib = (bytes) => (bytes / GIB).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
// As views/fleet.py `memory_parts`.
export function memoryParts(gpu) {
  if (!gpu.total_bytes || gpu.used_bytes === null || gpu.used_bytes === undefined) return [];
  const parts = [];
  let left = gpu.used_bytes;
  for (const process of [...(gpu.processes ?? [])].sort((a, b) => (a.service ? 0 : 1) - (b.service ? 0 : 1) || a.pid - b.pid)) {
    const held = Math.min(process.used_bytes ?? 0, left);
    left -= held;
    if (held > 0) parts.push({ kind: process.service ? "b-service" : "b-other", share: held / gpu.total_bytes, title: `${process.service ?? `unclaimed: ${process.command ?? "process"}, pid ${process.pid}`}, ${gib(held)} GiB` });
  }
  if (left > 0) parts.push({ kind: "b-idle", share: left / gpu.total_bytes, title: `held by no process that can be seen, ${gib(left)} GiB` });
  return parts;
}
// Whether the page says another state of one of the node's services than its telemetry does: the server writes it down some seconds later.
export function servicesDiffer(scope, services) {
  return [...scope.querySelectorAll("[data-service-state]")].some((element) => {
    const name = element.dataset.service ?? element.closest("[data-service]")?.dataset.service;
    return name in (services ?? {}) && services[name].state !== element.dataset.serviceState;
  });
}
// Readings from which a GPU can be told, as views/fleet.py `readings`: what is no number was not read.
export function readings(told) {
  const number = (value) => typeof value === "number" && Number.isFinite(value) ? value : null;
  return (Array.isArray(told) ? told : []).filter((gpu) => Number.isInteger(gpu?.index) && gpu.index >= 0).map((gpu) => ({ ...gpu,
    ...Object.fromEntries(["total_bytes", "used_bytes", "utilization", "temperature_c", "power_w"].map((name) => [name, number(gpu[name])])),
    processes: (Array.isArray(gpu.processes) ? gpu.processes : []).filter((p) => p && typeof p === "object").map((p) => ({ ...p, used_bytes: number(p.used_bytes) })) }));
}
export function updateGpus(scope, gpus) {
  for (const gpu of gpus) {
    for (const row of scope.querySelectorAll(`[data-gpu="${gpu.index}"]`)) {
      const set = (name, value) => { if (value !== null && value !== undefined) setText(row.querySelector(`[data-v="${name}"]`), value); };
      const bar = row.querySelector("[data-bar=memory]");
      if (bar) { drawBar(bar, memoryParts(gpu), { gap: 1 }); if (gpu.used_bytes !== null && bar.hasAttribute("aria-valuenow")) bar.setAttribute("aria-valuenow", gib(gpu.used_bytes)); }
      set("used", gpu.used_bytes === null ? null : gib(gpu.used_bytes));
      set("util", gpu.utilization === null ? null : whole(gpu.utilization));
      set("temp", gpu.temperature_c === null ? null : whole(gpu.temperature_c));
      set("power", gpu.power_w === null ? null : whole(gpu.power_w));
    }
  }
}
