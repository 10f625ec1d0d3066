// The theme switch: system, then light, then dark. A classic script in <head>, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const read = () => { try { return localStorage.getItem("theme"); } catch { return null; } }; // storage can be forbidden
  const write = (value) => { try { value ? localStorage.setItem("theme", value) : localStorage.removeItem("theme"); } catch { /* lasts for this page only */ } };
  const name = () => { for (const button of document.querySelectorAll("[data-theme-switch]")) {
    const words = `Theme: ${root.dataset.theme ?? "system"}`;
    button.setAttribute("aria-label", words); button.title = words; } };
  const stored = read();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  document.addEventListener("DOMContentLoaded", name);
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-switch]")) return;
    const next = { undefined: "light", light: "dark", dark: undefined }[root.dataset.theme];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    write(next);
    name();
    document.dispatchEvent(new Event("themechange"));
  });
})();
