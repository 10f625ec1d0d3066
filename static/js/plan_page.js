// A plan's page: the sentence of what will be deleted follows the ticks. Without scripts the page says so in other words as soon as a tick changes.
import { joined, size } from "./sizes.js";

function say() {
  for (const group of document.querySelectorAll("[data-purge-kinds]")) {
    const sentence = group.querySelector("[data-purge-sentence]");
    if (!sentence) continue;
    group.dataset.live = "";
    const ticked = [...group.querySelectorAll("input[name=purge_kinds]:checked")];
    const bytes = ticked.reduce((sum, box) => sum + Number(box.dataset.bytes), 0);
    const words = ticked.length ? `${joined(ticked.map((box) => box.dataset.words))}, ${size(bytes)}, will be deleted for good.` : sentence.dataset.none;
    if (sentence.textContent !== words) sentence.textContent = words;
  }
}
document.addEventListener("change", (event) => { if (event.target.matches("input[name=purge_kinds]")) say(); });
document.addEventListener("fragment", say);
say();  // a browser may have kept ticks over a reload
