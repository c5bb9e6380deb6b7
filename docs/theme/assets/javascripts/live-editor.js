// The code of a live box: what its milestone has, what the reader makes of it, and a button that runs that.
{
  const { say, element } = LIVE;

  // Python's indentation at the keys: Enter goes on below the line's beginning, Tab is four spaces, Shift+Tab takes them
  // back. Escape lets the next Tab leave, for those who have no mouse. Ctrl+Enter runs.
  LIVE.typing = (area, run) => {
    let leaves = false;
    const write = (text) => document.execCommand("insertText", false, text); // which can be undone
    area.onkeydown = (event) => {
      const before = area.value.slice(0, area.selectionStart).split("\n").pop();
      if (event.key === "Escape") return (leaves = true);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        run();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        write(`\n${before.match(/^ */)[0]}${/:\s*(#.*)?$/.test(before) ? "    " : ""}`);
      } else if (event.key === "Tab" && !leaves) {
        event.preventDefault();
        const spaces = before.match(/ {0,4}$/)[0].length;
        if (!event.shiftKey) write(" ".repeat(4 - (before.length % 4)));
        else if (spaces) {
          area.selectionStart -= spaces;
          document.execCommand("delete");
        }
      }
      leaves = false;
    };
  };

  LIVE.editor = (box) => {
    const choice = element("select", { ariaLabel: say("which code", "哪段代码") });
    for (const { where } of box.code) choice.append(element("option", { value: where }, where.replace(" ", " · ")));
    const area = element("textarea", { spellcheck: false, wrap: "off", ariaLabel: say("the code", "代码") });
    const answer = element("em");
    const reveal = element("button", { type: "button", className: "md-button" }, say("Show it", "显示"));
    const seen = new Set();
    reveal.onclick = () => {
      seen.add(choice.value);
      load();
    };
    const load = () => {
      const piece = box.code.find(({ where }) => where === choice.value);
      area.value = box.texts[piece.where] ?? piece.text;
      area.rows = Math.min(30, area.value.split("\n").length + 1);
      answer.textContent = piece.answer;
      reveal.hidden = !piece.answer || seen.has(choice.value);
      area.hidden = run.disabled = !reveal.hidden; // no answer in view before its exercise
    };
    LIVE.typing(area, () => run.click());
    const run = element("button", { type: "button", className: "md-button" }, say("Run it", "运行"));
    run.onclick = () => {
      box.texts[choice.value] = area.value;
      box.changed();
    };
    const back = element("button", { type: "button", className: "md-button" }, say("The milestone's own", "恢复原代码"));
    back.onclick = () => {
      delete box.texts[choice.value];
      load();
      box.changed();
    };
    choice.onchange = load;
    load();
    const name = box.spec.milestone.toUpperCase();
    const spoils = box.code.some((piece) => piece.answer) ? say(" (answers to exercises)", "（含练习的答案）") : "";
    const words = say(`The code of ${name} that decides this: change it and run it`, `做出决定的 ${name} 代码：改一改，运行`) + spoils;
    const row = element("div", { className: "live__row" }, choice, answer, reveal);
    const buttons = element("div", { className: "live__row" }, run, back);
    return element("details", { className: "live__code" }, element("summary", {}, words), row, area, buttons);
  };
}
