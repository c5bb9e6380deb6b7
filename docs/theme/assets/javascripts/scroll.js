// On a phone a wide figure, table or formula scrolls in its column. One that does is marked, and the style sheet says so above it.
(() => {
  const WIDE = ".md-content :is(figure.drawing, p:has(> img[src$='.svg']:only-child), .md-typeset__scrollwrap, div.arithmatex)";

  function mark() {
    for (const box of document.querySelectorAll(WIDE)) {
      box.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 1);
    }
  }

  // Images come late, and the theme wraps tables when it gets to it.
  addEventListener("load", mark);
  addEventListener("resize", mark);
  new MutationObserver(mark).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
  mark();
})();
