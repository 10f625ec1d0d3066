// The page's one event stream. Whatever breaks, it comes back by itself and goes on after the last event that it had: no gap, no repeat.
//
// stream.on(type, handler): type is "job" (a job's event, in order of seq), "jobs", "telemetry", "hello", or "state" ({ state, since }).
import { serverNow } from "./clock.js";

const FIRST_WAIT = 500, LONGEST_WAIT = 15000, STALE_AFTER = 20; // milliseconds; seconds
class Stream {
  #handlers = new Map(); #source = null; #wait = FIRST_WAIT; #timer = 0; #url; #job; #last; #lastHeard = serverNow(); #state = "connecting";
  constructor(url, job, after) {
    this.#url = url; this.#job = job; this.#last = after;
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => { if (event.persisted) this.#connect(); });
    addEventListener("online", () => this.#soon(0));
    setInterval(() => this.#look(), 1000);
  }
  get last() { return this.#last; }
  get state() { return this.#state; }
  on(type, handler) { this.#handlers.set(type, [...(this.#handlers.get(type) ?? []), handler]); return this; }
  start() { this.#connect(); return this; }
  #say(type, data) { for (const handler of this.#handlers.get(type) ?? []) handler(data); }
  #connect() {
    this.#close();
    const url = new URL(this.#url, location.href);
    if (this.#job) { url.searchParams.set("job", this.#job); url.searchParams.set("after", String(this.#last)); }
    const source = this.#source = new EventSource(url);
    source.onopen = () => { if (source !== this.#source) return; this.#wait = FIRST_WAIT; this.#heard(); };
    source.onerror = () => { if (source === this.#source) this.#broken(); };
    const listen = (type, take) => source.addEventListener(type, (event) => { if (source !== this.#source) return; this.#heard(); take(JSON.parse(event.data), event); });
    listen("job", (data) => this.#take(data));
    source.addEventListener("bye", () => { if (source === this.#source) { this.#close(); location.reload(); } }); // signed out elsewhere
    for (const type of ["telemetry", "jobs", "hello"]) listen(type, (data) => this.#say(type, data));
  }
  #take(event) {
    if (event.seq <= this.#last) return; // a repeat
    if (event.seq > this.#last + 1) { this.#soon(0); return; } // a gap: ask again from what we have
    this.#last = event.seq;
    this.#say("job", event);
  }
  // EventSource's own retry is not used: a refused or failed answer (503, a restart) ends it for good.
  #broken() { this.#close(); this.#set("reconnecting"); this.#soon(this.#wait * (0.75 + Math.random() / 2)); this.#wait = Math.min(LONGEST_WAIT, this.#wait * 1.7); }
  #soon(wait) { clearTimeout(this.#timer); this.#timer = setTimeout(() => this.#connect(), wait); }
  #close() { clearTimeout(this.#timer); this.#source?.close(); this.#source = null; }
  #heard() { this.#lastHeard = serverNow(); this.#set("live"); }
  #look() { if (this.#state === "reconnecting" && serverNow() - this.#lastHeard > STALE_AFTER) this.#set("stale"); }
  #set(state) {
    if (state === "reconnecting" && this.#state === "stale") return; // stale stays until it is live again
    if (state === this.#state) return;
    this.#state = state;
    this.#say("state", { state, since: this.#lastHeard });
  }
}
const body = document.body.dataset;
export const stream = body.live ? new Stream(body.live, body.job ?? "", Number(body.after ?? 0)) : null;
