// Lists: htmx asks for them again when a filter or the page changes; here they follow what happens.
import { stream } from "./stream.js";
import { localise } from "./clock.js";
import { debounced, refresh } from "./fragments.js";

const list = document.getElementById("list");
for (const button of document.querySelectorAll("[data-filter-button]")) button.hidden = true; // filters apply when they are changed
document.addEventListener("htmx:beforeRequest", () => { if (list) list.dataset.fragment = ""; }); // a refresh on its way is of the old address
list?.addEventListener("htmx:afterSwap", () => localise(list));
list?.addEventListener("fragment", () => window.htmx?.process(list));
// What cannot be swapped in (signed out, a fault) is shown as the page that it is.
document.addEventListener("htmx:responseError", (event) => location.assign(event.detail.pathInfo.finalRequestPath));
const again = debounced(() => { list.dataset.fragment = location.pathname + location.search; refresh(list); }, 200, 1500);
stream?.on("jobs", ({ job }) => { if (list && job) again(); });
