// The other language opens at the same section: ids are the same in both.
for (const link of document.querySelectorAll("a.folo-language")) {
  link.addEventListener("click", () => {
    link.hash = location.hash;
  });
}
