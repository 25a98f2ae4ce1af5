"use strict";
// The edges of a box fade where there is more to scroll to.
const scrolled = (box) => {
  const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = box;
  box.classList.toggle("more-left", scrollLeft > 1);
  box.classList.toggle("more-right", scrollWidth - clientWidth - scrollLeft > 1);
  box.classList.toggle("more-below", scrollHeight - clientHeight - scrollTop > 1);
};
const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => target.isConnected && scrolled(target.closest(".scroll"))));
function watch(box) {
  for (const own of [box, ...box.children]) resized.observe(own);
  return box;
}
document.addEventListener("scroll", ({ target }) => target.matches?.(".scroll") && scrolled(target), true);
document.querySelectorAll(".scroll").forEach(watch);
