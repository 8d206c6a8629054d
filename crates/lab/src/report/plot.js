// Says what is at the mark that a person points at, or reaches by the arrow keys.
"use strict";
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg");
  const marks = [...svg.querySelectorAll("[data-tip]")];
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  plot.append(tip);
  let shown = -1;
  const show = (index) => {
    if (shown >= 0) marks[shown].classList.remove("on");
    shown = index;
    tip.hidden = index < 0;
    if (index < 0) return;
    const mark = marks[index];
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    const at = mark.getBoundingClientRect(), frame = plot.getBoundingClientRect();
    const half = tip.offsetWidth / 2;
    const x = at.left + at.width / 2 - frame.left;
    tip.style.left = Math.max(half, Math.min(frame.width - half, x)) + "px";
    tip.style.top = at.top - frame.top + "px";
  };
  svg.addEventListener("pointermove", (event) => {
    let best = -1, least = 40 * 40;
    marks.forEach((mark, index) => {
      const at = mark.getBoundingClientRect();
      const x = Math.max(at.left - event.clientX, 0, event.clientX - at.right);
      const y = Math.max(at.top - event.clientY, 0, event.clientY - at.bottom);
      if (x * x + y * y < least) [best, least] = [index, x * x + y * y];
    });
    show(best);
  });
  svg.addEventListener("pointerleave", () => show(-1));
  svg.addEventListener("blur", () => show(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (!step || marks.length === 0) return;
    event.preventDefault();
    show(shown < 0 ? 0 : (shown + step + marks.length) % marks.length);
  });
}
