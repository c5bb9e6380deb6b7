// What a live box has beside its run: the settings in the address, so that they can be sent to somebody, and the run
// before, one above the other.
{
  const { say, element } = LIVE;
  const MARK = "#live?"; // a page has one box of a scheduler

  const packed = (value) => (Array.isArray(value) ? value.map((request) => request.join(".")).join("_") : Number(value));

  function unpacked(text, like) {
    if (typeof like === "boolean") return text === "1";
    if (!Array.isArray(like)) return Number(text);
    return text.split("_").map((request) => request.split(".").map((part, at) => (at ? Number(part) : part)));
  }

  LIVE.address = {
    write(spec, first) {
      const changed = Object.keys(first).filter((name) => JSON.stringify(spec[name]) !== JSON.stringify(first[name]));
      const told = changed.map((name) => `${name}=${packed(spec[name])}`).join("&");
      history.replaceState(history.state, "", told ? MARK + told : "#");
    },
    // The settings that a page was opened with; undefined: none.
    read(first) {
      if (!location.hash.startsWith(MARK)) return undefined;
      const told = [...new URLSearchParams(location.hash.slice(MARK.length))].filter(([name]) => name in first);
      return { ...structuredClone(first), ...Object.fromEntries(told.map(([name, text]) => [name, unpacked(text, first[name])])) };
    },
  };

  // Keeps the run that is shown above those to come: the same steps of both are in view.
  LIVE.keepRun = (box) => {
    box.kept?.remove();
    const { budget, seqs, blocks } = box.spec;
    const settings = [say(`budget ${budget}`, `预算 ${budget}`), say(`${seqs} sequences`, `${seqs} 条序列`)];
    if (box.milestone > 2) settings.push(say(`${blocks} blocks`, `${blocks} 个块`));
    const words = say(`Kept: ${settings.join(", ")}; ${box.count} steps`, `留下的一次：${settings.join("，")}；${box.count} 步`);
    const close = say("remove the kept run", "去掉留下的一次");
    const remove = element("button", { type: "button", title: close, ariaLabel: close }, "×");
    const picture = element("div", { className: "live__picture" });
    picture.attachShadow({ mode: "open" }).innerHTML = box.picture.shadowRoot.innerHTML;
    box.kept = element("div", { className: "live__kept" }, element("div", { className: "live__row" }, words, remove), picture);
    box.kept.picture = picture;
    remove.onclick = () => {
      box.kept.remove();
      box.kept = undefined;
    };
    box.picture.before(box.kept);
  };
}
