// Times in the reader's own zone, and clocks that tick by the server's time, whatever this machine's clock says.
const root = document.documentElement;
const offset = Number(root.dataset.now) - Date.now() / 1000;
export function serverNow() { return Date.now() / 1000 + (Number.isFinite(offset) ? offset : 0); }

export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds)), h = Math.floor(whole / 3600), m = Math.floor((whole % 3600) / 60), s = String(whole % 60).padStart(2, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}
export function ago(seconds) {
  const s = Math.max(0, seconds);
  return s < 90 ? `${Math.round(s)} s ago` : s < 5400 ? `${Math.round(s / 60)} min ago` : s < 129600 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} d ago`;
}
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (n) => String(n).padStart(2, "0");
export function written(date, form) {
  const now = new Date(serverNow() * 1000), minute = `${two(date.getHours())}:${two(date.getMinutes())}`, time = `${minute}:${two(date.getSeconds())}`;
  const day = `${date.getDate()} ${MONTHS[date.getMonth()]}` + (date.getFullYear() === now.getFullYear() ? "" : ` ${date.getFullYear()}`);
  if (form === "clock") return time;
  if (form === "minute") return minute;
  if (form === "date") return day;
  if (form === "short") return date.toDateString() === now.toDateString() ? `today ${minute}` : `${day} ${minute}`;
  return `${day} ${time}`;
}
// Call for each piece of page that was put in later.
export function localise(scope = document) {
  for (const element of scope.querySelectorAll("time[data-time]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    setText(element, written(date, element.dataset.time));
    element.title = `${date.toISOString().replace("T", " ").slice(0, 19)} UTC`;
  }
  tick(scope);
}
export function setText(element, text) { if (element && element.textContent !== text) element.textContent = text; }
function tick(scope = document) {
  const now = serverNow();
  for (const element of scope.querySelectorAll("[data-since]")) setText(element, clock(now - Number(element.dataset.since)));
  for (const part of scope.querySelectorAll("[data-grow-since]")) {
    const { growSince, growSeconds, growMost } = part.dataset;
    part.setAttribute("width", `${(Math.min(1, Math.max(0.01, (now - growSince) / growSeconds)) * growMost).toFixed(2)}%`);
  }
  for (const element of scope.querySelectorAll("[data-ago]")) setText(element, ago(now - Number(element.dataset.ago)));
}
localise();
setInterval(tick, 1000);
