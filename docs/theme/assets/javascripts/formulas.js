// Formulas arrive as \( ... \) and \[ ... \] inside .arithmatex elements (pymdownx.arithmatex, generic).
for (const element of document.querySelectorAll(".arithmatex")) {
  renderMathInElement(element, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
    throwOnError: false,
  });
}
