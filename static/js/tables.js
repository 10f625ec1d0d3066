// A table that is wider than its box can be scrolled by keyboard; one that fits takes no place in the order of focus.
const watch = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const box = target.matches(".table-scroll") ? target : target.closest(".table-scroll");
    if (!box) continue;
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0; else box.removeAttribute("tabindex");
  }
});
function look() {
  for (const box of document.querySelectorAll(".table-scroll")) { watch.observe(box); if (box.firstElementChild) watch.observe(box.firstElementChild); }
}
look();
document.addEventListener("fragment", look);
document.addEventListener("htmx:afterSwap", look);
