// Lists: filters apply when they are changed; the jobs list follows what happens.
import { stream } from "./stream.js";
import { debounced, refresh } from "./fragments.js";

for (const form of document.querySelectorAll("[data-auto-submit]")) {
  form.querySelector("[data-filter-button]").hidden = true;
  form.addEventListener("change", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true; // a short address
    form.requestSubmit();
  });
}
const again = debounced(() => { for (const element of document.querySelectorAll("[data-fragment]")) refresh(element); }, 200, 1500);
stream?.on("jobs", ({ job }) => { if (job) again(); });
