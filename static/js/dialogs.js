// A link with data-dialog leads to a page that asks for confirmation. Here the same question opens in a dialog over this page.
// A form that is being sent is not sent twice.
import { localise } from "./clock.js";

document.addEventListener("click", async (event) => {
  const link = event.target.closest?.("a[data-dialog]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    await open(link);
  } else if (event.target.closest?.("[data-dialog-close]")) {
    const dialog = event.target.closest("dialog");
    if (dialog) { event.preventDefault(); dialog.close(); }
  }
});
async function open(link) {
  let answer;
  try { answer = await fetch(link.href, { headers: { "X-Roundhouse-Fragment": "dialog" } }); }
  catch { location.assign(link.href); return; } // no connection: the browser's own page says so
  if (!answer.ok || answer.redirected) { location.assign(link.href); return; }
  show(await answer.text(), link);
}
// A question in a dialog over this page; `from` had the focus, and gets it back.
export function show(html, from, ...classes) {
  const dialog = document.createElement("dialog");
  dialog.classList.add("dialog", ...classes);
  dialog.innerHTML = html; // our own server's template, escaped there; the policy lets no script in it run
  document.body.append(dialog);
  localise(dialog);
  const title = dialog.querySelector("h1, h2");
  if (title) { title.id ||= "dialog-title"; dialog.setAttribute("aria-labelledby", title.id); }
  dialog.addEventListener("close", () => { dialog.remove(); from.focus(); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
}
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  for (const button of form.querySelectorAll("button:not([type=button])")) button.setAttribute("aria-disabled", "true");
});
// Back from the page after: the forms may be sent again.
addEventListener("pageshow", () => { for (const form of document.querySelectorAll("form[data-sent]")) {
  delete form.dataset.sent;
  for (const button of form.querySelectorAll("[aria-disabled]")) button.removeAttribute("aria-disabled"); } });
// The user menu closes at a click beside it and at Escape.
document.addEventListener("click", (event) => { for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); } });
