// The theme draws each diagram in a closed shadow tree. An open one looks the same, and its size can be asked for.
{
  const attachShadow = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function (options) {
    return attachShadow.call(this, this.classList.contains("mermaid") ? { ...options, mode: "open" } : options);
  };
}
