// A figure that had to be shrunk to fit its column opens at its full size: by a click, or by Enter on it.
// It is moved into a <dialog> and back: a diagram lives in a shadow tree, which a copy would not have.
(() => {
  const FIGURES = ".md-content :is(img, .mermaid)";
  const WORDS = document.documentElement.lang.startsWith("zh")
    ? { open: "放大", close: "关闭" }
    : { open: "Enlarge", close: "Close" };

  function naturalWidth(figure) {
    if (figure.localName === "img") return Number(figure.getAttribute("width")) || figure.naturalWidth;
    if (figure.localName === "svg") return Number(figure.getAttribute("width"));
    return parseFloat(figure.shadowRoot?.querySelector("svg")?.style.maxWidth) || 0;
  }

  // 1.1: a figure a few pixels too wide is read as it is.
  const isShrunk = (figure) => naturalWidth(figure) > 1.1 * figure.getBoundingClientRect().width;

  function mark() {
    for (const figure of document.querySelectorAll(FIGURES)) {
      const shrunk = isShrunk(figure);
      if (shrunk === figure.classList.contains("zoomable")) continue;
      figure.classList.toggle("zoomable", shrunk);
      if (shrunk) {
        figure.tabIndex = 0;
        figure.setAttribute("role", "button");
        figure.title = WORDS.open;
      } else {
        for (const name of ["tabindex", "role", "title"]) figure.removeAttribute(name);
      }
    }
  }

  function open(figure) {
    const box = figure.getBoundingClientRect();
    const place = document.createElement("div");
    place.style.cssText = `display: inline-block; width: ${box.width}px; height: ${box.height}px`;

    const dialog = document.createElement("dialog");
    dialog.className = "zoom md-typeset";
    dialog.setAttribute("aria-label", figure.getAttribute("alt") ?? WORDS.open);
    const close = document.createElement("button");
    close.className = "zoom__close";
    close.textContent = "×";
    close.setAttribute("aria-label", WORDS.close);
    close.onclick = () => dialog.close();
    const sheet = document.createElement("div");
    sheet.className = "zoom__sheet";
    sheet.style.width = `${naturalWidth(figure)}px`;
    sheet.onclick = () => dialog.close();
    dialog.append(close, sheet);

    dialog.onclose = () => {
      place.replaceWith(figure);
      dialog.remove();
      figure.focus({ preventScroll: true });
    };
    figure.replaceWith(place);
    sheet.append(figure);
    document.body.append(dialog);
    dialog.showModal();
  }

  document.addEventListener("click", (event) => {
    const figure = event.target.closest?.(`${FIGURES}.zoomable`);
    if (figure) open(figure);
  });
  document.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && event.target.matches?.(`${FIGURES}.zoomable`)) {
      event.preventDefault();
      open(event.target);
    }
  });

  // Images come late, and the theme draws diagrams when it gets to it.
  addEventListener("load", mark);
  addEventListener("resize", mark);
  new MutationObserver(mark).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
  mark();
})();
