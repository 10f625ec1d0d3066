// Server fragments put in place of what the page has: <div data-fragment="URL">. One template serves first view and update.
import { localise } from "./clock.js";

// One fetch an element at a time: what is asked meanwhile makes one more afterwards, so a steady flow of events can neither pile up
// fetches nor keep any from ending.
const pending = new Map();
// Fetches one fragment; if the answer knows less of the job than `seq`, it is shown and asked for again a little later (the recorder
// writes after the stream says).
export async function refresh(element, { seq = 0, tries = 8 } = {}) {
  const running = pending.get(element);
  if (running) { running.seq = Math.max(running.seq, seq); running.again = true; return; }
  const mine = { seq, again: false };
  pending.set(element, mine);
  try {
    let wait = 150;
    for (let n = 0; n < tries; n += 1) {
      mine.again = false;
      const url = element.dataset.fragment;
      let answer, html;
      try { answer = await fetch(url, { headers: { "X-Roundhouse-Fragment": "part" } }); html = await answer.text(); }
      catch { return; } // no connection: the stream says so and asks for everything when it is back
      if (!answer.ok || answer.redirected) return; // signed out, or gone: the next click says it
      if (!element.isConnected) return;
      if (url === element.dataset.fragment) put(element, html);
      const known = Number(answer.headers.get("X-Job-Seq") ?? Infinity);
      if (mine.again) { n = -1; wait = 150; continue; }
      if (known >= mine.seq) return;
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(1500, wait * 1.6);
    }
  } finally { pending.delete(element); }
}
export function put(element, html) {
  if (element.dataset.html === html) return;
  const open = [...element.querySelectorAll("details[open][id]")].map((d) => d.id);
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const focusKey = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : null);
  const kept = new Map([...element.querySelectorAll("[data-keep]")].map((e) => [e.dataset.keep, e]));
  const named = (i) => `${i.name}=${i.value}`; // a list ticks many of one name
  const boxes = new Map([...element.querySelectorAll("input[type=checkbox][name]")].map((i) => [named(i), i.checked]));
  element.innerHTML = html; // our own server's template; the policy lets no script in it run
  for (const place of element.querySelectorAll("[data-keep]")) { const old = kept.get(place.dataset.keep); if (old) place.replaceWith(old); }
  for (const id of open) { const d = element.querySelector(`#${CSS.escape(id)}`); if (d) d.open = true; }
  for (const input of element.querySelectorAll("input[type=checkbox][name]")) if (boxes.has(named(input))) input.checked = boxes.get(named(input));
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
