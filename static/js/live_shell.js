// What every signed-in page has live: the state of the connection and the number of running jobs.
import { stream } from "./stream.js";
import { setText, written } from "./clock.js";
import { icon } from "./bars.js";
import "./dialogs.js";
import "./copy.js";
import "./tables.js";

const status = document.querySelector("[data-live-state]");
function show({ state, since }) {
  if (!status) return;
  const words = { live: "Live", connecting: "Connecting", reconnecting: "Reconnecting", stale: `Stale since ${written(new Date(since * 1000), "clock")}` };
  const shapes = { live: "live", connecting: "live", reconnecting: "run", stale: "stale" };
  status.className = `topbar-item ${state === "live" ? "live" : state === "connecting" ? "" : "warn"}`;
  status.querySelector(".icon").replaceWith(icon(shapes[state], state === "reconnecting" ? "spin" : ""));
  setText(status.querySelector("[data-words]"), words[state]);
  status.title = state === "live" ? "This page changes by itself" : state === "stale" ? "What you see may be old. It goes on by itself when the console answers." : words[state];
  document.body.classList.toggle("is-stale", state === "stale");
}
stream?.on("state", show);
stream?.on("jobs", ({ running }) => {
  if (typeof running !== "number") return;
  for (const element of document.querySelectorAll("[data-running]")) { setText(element, String(running)); }
  for (const element of document.querySelectorAll("[data-running-shown]")) element.hidden = running === 0;
});
// Pages add their handlers in modules of their own; all have run when the page has loaded. An open stream before that would also keep the tab's spinner on.
if (document.readyState === "complete") stream?.start();
else addEventListener("load", () => stream?.start());
