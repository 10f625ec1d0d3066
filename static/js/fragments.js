// Server fragments put in place of what the page has: <div data-fragment="URL">. One template serves first view and update.
import { localise } from "./clock.js";

const pending = new Map();
// Fetches one fragment; if the answer knows less of the job than `seq`, asks again a little later (the recorder writes after the stream says).
export async function refresh(element, { seq = 0, tries = 8 } = {}) {
  const url = element.dataset.fragment;
  pending.get(element)?.abort();
  const abort = new AbortController();
  pending.set(element, abort);
  let wait = 150;
  for (let n = 0; n < tries; n += 1) {
    let answer;
    try { answer = await fetch(url, { headers: { "X-Roundhouse-Fragment": "part" }, signal: abort.signal }); }
    catch { return; } // aborted, or no connection: the stream says so and asks for everything when it is back
    if (!answer.ok || answer.redirected) return; // signed out, or gone: the next click says it
    const known = Number(answer.headers.get("X-Job-Seq") ?? Infinity);
    const html = await answer.text();
    if (known >= seq || n === tries - 1) { if (!abort.signal.aborted) put(element, html); return; }
    await new Promise((done) => setTimeout(done, wait));
    if (abort.signal.aborted) return;
    wait = Math.min(1500, wait * 1.6);
  }
}
export function put(element, html) {
  if (element.dataset.html === html) return;
  const open = [...element.querySelectorAll("details[open][id]")].map((d) => d.id);
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const focusKey = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : null);
  const kept = new Map([...element.querySelectorAll("[data-keep]")].map((e) => [e.dataset.keep, e]));
  const boxes = new Map([...element.querySelectorAll("input[name]:not([type=hidden])")].map((i) => [i.name, i.checked]));
  element.innerHTML = html; // our own server's template; the policy lets no script in it run
  for (const place of element.querySelectorAll("[data-keep]")) { const old = kept.get(place.dataset.keep); if (old) place.replaceWith(old); }
  for (const id of open) { const d = element.querySelector(`#${CSS.escape(id)}`); if (d) d.open = true; }
  for (const input of element.querySelectorAll("input[type=checkbox][name]")) if (boxes.has(input.name)) input.checked = boxes.get(input.name);
  if (focusKey) element.querySelector(focusKey)?.focus({ preventScroll: true });
  localise(element);
  element.dispatchEvent(new CustomEvent("fragment", { bubbles: true }));
}
// Many events at once make one fetch; a steady flow still makes one every `most` milliseconds.
export function debounced(action, wait = 150, most = 1000) {
  let timer = 0, first = 0, latest;
  return (argument) => {
    latest = argument;
    const now = performance.now();
    first ||= now;
    clearTimeout(timer);
    timer = setTimeout(() => { first = 0; action(latest); }, Math.max(0, Math.min(wait, first + most - now)));
  };
}
