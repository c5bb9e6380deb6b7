// An exercise below its box: written, judged and kept in the browser. The judge is that of `check`
// (milestones/site/live/exercise_driver.py), and so are its words.
(() => {
  const { say, element } = LIVE;
  const KEPT = "folovllm-exercise:";
  const PATIENCE = 20; // seconds beyond a test's own, until a loop that Python cannot stop is ended with its worker
  let turn = Promise.resolve(); // the boxes of a page share a Python

  function kept(id) {
    try {
      return JSON.parse(localStorage.getItem(KEPT + id)) ?? {};
    } catch {
      return {};
    }
  }

  function keep(id, entry) {
    try {
      localStorage.setItem(KEPT + id, JSON.stringify(entry));
      return true;
    } catch {
      return false; // a browser that keeps nothing, as in a private window
    }
  }

  function takeAlong() {
    const ids = Object.keys(localStorage).filter((key) => key.startsWith(KEPT)).map((key) => key.slice(KEPT.length));
    const written = Object.fromEntries(ids.sort().map((id) => [id, { text: kept(id).text, solved: Boolean(kept(id).solved) }]));
    const file = new Blob([`${JSON.stringify({ exercises: written }, null, 1)}\n`], { type: "application/json" });
    const link = element("a", { href: URL.createObjectURL(file), download: "folovllm-exercises.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  class Exercise {
    constructor(box, data) {
      Object.assign(this, { box, data, entry: { text: data.text, hints: 0, ...kept(data.id) } });
      const button = (words, onclick, more) => element("button", { type: "button", className: `md-button ${more ?? ""}`, onclick }, words);
      const code = (text) => element("pre", {}, element("code", {}, text));
      this.area = element("textarea", { spellcheck: false, wrap: "off", value: this.entry.text, oninput: () => this.keep() });
      this.area.ariaLabel = say("your code; Escape, then Tab leaves it", "你的代码；先按 Escape 再按 Tab 离开");
      this.area.setAttribute("autocapitalize", "off");
      this.area.setAttribute("autocorrect", "off");
      LIVE.typing(this.area, () => this.begin());
      this.fit();
      this.button = button(say("Check", "检查"), () => this.begin(), "md-button--primary");
      this.more = button(say("A hint", "提示"), () => this.hint(this.entry.hints + 1));
      this.bar = element("progress", { max: 1, hidden: true, ariaLabel: say("loading Python", "加载 Python") });
      this.status = element("span", { className: "live__status", role: "status" });
      this.result = element("div", { className: "lab__result", ariaLive: "polite" });
      this.hints = element("ol", { className: "lab__hints" });
      this.along = element("p", { className: "lab__along", hidden: true });
      const back = button(say("Start again", "重新开始"), () => this.reset());
      const take = button(say("Take along", "带走"), () => this.take());
      const task = element("div", { className: "lab__task" });
      task.innerHTML = data.task;
      const rest = element("details", { className: "lab__rest" }, element("summary", {}, say(`The rest of ${data.file}`, `${data.file} 的其余部分`)), code(data.rest));
      this.whole = element("details", { className: "lab__whole", open: this.entry.text !== data.text });
      const title = element("summary", {}, say("Solve it here", "在这里做"), (this.mark = element("b")));
      const row = element("div", { className: "live__row" }, this.button, this.more, back, take, this.bar, this.status);
      this.whole.append(title, task, this.area, row, this.along, this.result, this.hints, rest);
      box.append(this.whole);
      for (let at = 1; at <= this.entry.hints; at++) this.hint(at);
      this.solved(this.entry.solved);
      this.status.textContent = say("Python comes from this site, 9 MB.", "Python 从本站加载，共 9 MB。");
    }

    fit() {
      this.area.rows = Math.min(30, this.area.value.split("\n").length + 2);
    }

    keep(more = { solved: "" }) {
      Object.assign(this.entry, { text: this.area.value }, more);
      if (!keep(this.data.id, this.entry)) this.status.textContent = say("This browser keeps nothing.", "这个浏览器不保存内容。");
      this.fit();
      this.solved(this.entry.solved);
    }

    solved(is) {
      this.mark.textContent = is ? " ✔" : "";
    }

    reset() {
      if (this.area.value !== this.data.text && !confirm(say("Throw your code away?", "丢弃你写的代码？"))) return;
      this.area.value = this.data.text;
      this.result.replaceChildren();
      this.keep();
    }

    hint(number) {
      if (number > this.data.hints.length) return;
      const item = element("li", {});
      item.innerHTML = this.data.hints[number - 1];
      this.hints.append(item);
      this.more.disabled = number === this.data.hints.length;
      if (number > this.entry.hints) this.keep({ hints: number });
    }

    take() {
      takeAlong();
      const [milestone] = this.data.id.split("/");
      const next = `m${Number(milestone.slice(1)) + 1}`;
      const command = `python -m milestones start ${next} ../${next}-lab --from folovllm-exercises.json`;
      this.along.replaceChildren(say("All that you have written here, saved. In the repository: ", "你在这里写的都已保存为文件。在仓库里运行："), element("code", {}, command));
      this.along.hidden = false;
    }

    begin() {
      if (this.button.disabled) return;
      this.button.disabled = true;
      turn = turn.then(() => this.check());
    }

    async check() {
      const { id, seconds } = this.data;
      const [text, language] = [this.area.value, say("en", "zh")];
      const python = LIVE.shared(`exercises-${id.split("/")[0]}`);
      this.bar.removeAttribute("value");
      this.bar.hidden = false;
      let found;
      try {
        if (!python.worker) {
          this.status.textContent = say("Python is being loaded …", "正在加载 Python……");
          await python.start(this.bar);
        }
        this.status.textContent = say("being judged …", "正在评判……");
        const spec = { id, language, text, seconds: this.seconds ?? seconds };
        const answer = await python.ask("check", spec, spec.seconds + (this.patience ?? PATIENCE), () => {});
        found = answer.found ?? { facts: [["", answer.error, "red"]], marks: [], asked: [], printed: [] };
      } catch (error) {
        found = { facts: [["", error.message, "red"]], marks: [], asked: [], printed: [] };
      }
      this.bar.hidden = true;
      this.status.textContent = "";
      this.button.disabled = false;
      this.show(found);
      if (this.area.value === text) this.keep({ solved: found.outcome === "solved" });
    }

    show(found) {
      const { figure, invariants, mistakes } = this.data;
      const html = (text, className) => {
        const made = element("div", { className });
        made.innerHTML = text;
        return made;
      };
      const marks = found.marks.map(([mark, style]) => element("span", { className: `lab__${style}` }, `${mark} `));
      const parts = [element("p", { className: "lab__marks" }, ...marks)];
      const style = found.outcome === "solved" ? "lab__green" : "lab__red";
      if (found.heading) parts.push(element("p", {}, element("b", { className: style }, found.heading)));
      if (found.invariant) parts.push(html(invariants[found.invariant - 1], "lab__said"));
      if (found.asked.length) parts.push(element("pre", { className: "lab__asked" }, element("code", {}, found.asked.join("\n"))));
      const rows = found.facts.map(([label, value, style]) => {
        const cells = [element("th", { scope: "row" }, label), element("td", { className: `lab__${style}` }, value)];
        return element("tr", {}, ...cells);
      });
      if (rows.length) parts.push(element("table", { className: "lab__facts" }, element("tbody", {}, ...rows)));
      if (found.mistake) parts.push(html(mistakes[found.mistake], "lab__said lab__mistake"));
      const [head, ...printed] = found.printed;
      if (head) parts.push(element("p", {}, head), element("pre", {}, element("code", {}, printed.join("\n"))));
      if (found.figure != null) {
        const [yours, { ours, best }] = [found.figure, figure];
        const words = say(`measured ${yours} · ours ${ours} · best known ${best}`, `测得 ${yours} · 我们的 ${ours} · 已知最好 ${best}`);
        parts.push(element("p", { className: "lab__figure" }, words));
      }
      this.result.replaceChildren(...parts);
      this.result.dataset.outcome = found.outcome ?? "none";
    }
  }

  for (const box of document.querySelectorAll(".lab")) box.lab = new Exercise(box, JSON.parse(box.dataset.lab));
})();
