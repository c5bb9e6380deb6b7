// A live box of a scheduler: settings and requests above the picture, below it the steps, one by one.
(() => {
  const { say, element, starting } = LIVE;
  const NAMES = ["A", "B", "C", "D", "E", "F"];
  const COLUMNS = [
    ["prompt", say("prompt", "提示词"), 1, 31],
    ["output", say("output", "输出"), 1, 31],
    ["arrival", say("comes after step", "在第几步之后到达"), 0, 20],
    ["shared", say("shared beginning", "共同的开头"), 0, 31],
  ];
  class Box {
    constructor(box, data) {
      const sent = LIVE.address.read(data.spec);
      Object.assign(this, { box, code: data.code, spec: sent ?? structuredClone(data.spec), first: data.spec, texts: {} });
      if (sent) requestAnimationFrame(() => box.scrollIntoView());
      this.milestone = Number(this.spec.milestone.slice(1));
      this.step = 1;
      this.seen = Infinity;
      this.right = this.asked = 0;
    }

    async open(python) {
      this.python = python;
      if (!(await this.compute())) throw new Error(this.error.textContent);
    }

    build() {
      this.error = element("p", { className: "live__error", role: "alert", hidden: true });
      this.picture = element("div", { className: "live__picture", tabIndex: 0, onkeydown: (event) => this.key(event) });
      this.picture.attachShadow({ mode: "open" });
      this.ask = element("form", { className: "live__ask", hidden: true, onsubmit: (event) => this.judge(event) });
      this.told = element("div", { className: "live__told", ariaLive: "polite" });
      this.box.append(this.settings(), this.requests(), this.error, this.picture, this.steps(), this.ask, this.told);
      if (this.code.length) this.box.append(LIVE.editor(this));
    }

    // Settings and requests ------------------------------------------------------------------------------------------

    settings() {
      const slider = (name, words, low, high) => {
        const shown = element("output", {}, this.spec[name]);
        const input = element("input", { type: "range", min: low, max: high, value: this.spec[name], name });
        input.oninput = () => this.set(name, Number((shown.value = input.value)));
        return element("label", {}, element("span", {}, words), input, shown);
      };
      const switched = (name, words) => {
        const input = element("input", { type: "checkbox", checked: this.spec[name], name });
        input.onchange = () => this.set(name, input.checked);
        return element("label", {}, input, element("span", {}, words));
      };
      const low = this.milestone < 5 ? this.spec.longest : 2; // a whole prompt has to fit
      const budget = say("budget of a step", "每步预算");
      const all = [slider("budget", budget, low, Math.max(48, this.spec.budget))];
      all.push(slider("seqs", this.milestone === 2 ? say("slots", "槽") : "max_num_seqs", 1, 6));
      if (this.milestone > 2) all.push(slider("blocks", say("blocks of 4", "块，每块 4 个"), 4, 32));
      if (this.milestone === 3) all.push(switched("swap", say("swap", "换出（swap）")));
      if (this.milestone >= 5) all.push(switched("chunks", say("chunked prefill", "分块预填充")));
      if (this.milestone >= 6) all.push(switched("caching", say("prefix caching", "前缀缓存")));
      const reset = element("button", { type: "button", onclick: () => this.reset() }, say("reset", "恢复原样"));
      return (this.bar = element("div", { className: "live__bar" }, ...all, reset));
    }

    requests() {
      const columns = COLUMNS.slice(0, this.milestone >= 6 ? 4 : 3);
      const head = element("tr", {}, element("th"), ...columns.map(([, words]) => element("th", { scope: "col" }, words)));
      const rows = this.spec.requests.map((request, row) => {
        const cells = columns.map(([name, words, low, high], column) => {
          const input = element("input", { type: "number", min: low, max: high, value: request[column + 1] });
          input.ariaLabel = `${request[0]}: ${words}`;
          input.inputMode = "numeric";
          input.oninput = () => {
            if (input.value === "" || !input.validity.valid) return;
            this.spec.requests[row][column + 1] = Number(input.value);
            this.changed();
          };
          return element("td", {}, input);
        });
        const words = say(`remove ${request[0]}`, `去掉 ${request[0]}`);
        const remove = element("button", { type: "button", title: words, ariaLabel: words }, "×");
        remove.onclick = () => this.list(this.spec.requests.filter((other) => other !== request));
        remove.disabled = this.spec.requests.length === 1;
        return element("tr", {}, element("th", { scope: "row" }, request[0]), ...cells, element("td", {}, remove));
      });
      const table = element("table", { className: "live__requests" }, element("tbody", {}, head, ...rows));
      const add = element("button", { type: "button" }, say("one more request", "再加一个请求"));
      add.disabled = this.spec.requests.length === NAMES.length;
      add.onclick = () => {
        const name = NAMES.find((free) => !this.spec.requests.some(([taken]) => taken === free));
        this.list([...this.spec.requests, [name, 6, 4, 0, 0]]);
      };
      return (this.table = element("div", { className: "live__scroll" }, table, add));
    }

    list(requests) {
      this.spec.requests = requests;
      this.table.replaceWith(this.requests()); // the old one, since it is asked first
      this.changed();
    }

    set(name, value) {
      this.spec[name] = value;
      this.changed();
    }

    reset() {
      this.spec = structuredClone(this.first);
      this.bar.replaceWith(this.settings());
      this.list(this.spec.requests);
    }

    changed() {
      LIVE.address.write(this.spec, this.first);
      if (this.predicts.checked) this.forget();
      this.compute();
    }

    // The run --------------------------------------------------------------------------------------------------------

    async compute() {
      if (this.busy) return (this.again = true);
      this.busy = true;
      let answer;
      do {
        this.again = false;
        try {
          answer = await this.python.ask("watch", { ...this.spec, code: this.texts }, this.patience);
        } catch (error) {
          answer = { error: error.message, lines: [] };
        }
      } while (this.again);
      this.busy = false;
      this.patience ??= 20; // seconds, once Python has answered
      if (!this.picture) this.build();
      const line = answer.lines?.length ? say(`line ${answer.lines.at(-1)}: `, `第 ${answer.lines.at(-1)} 行：`) : "";
      this.complain(answer.error && line + answer.error);
      this.box.classList.toggle("live--stale", Boolean(answer.error));
      if (answer.found) this.draw(answer.found);
      return answer.found;
    }

    complain(words) {
      this.error.hidden = !words;
      this.error.textContent = words ?? "";
      const editor = this.box.querySelector(".live__code[open]"); // where the reader looks
      editor ? editor.append(this.error) : this.picture.before(this.error);
    }

    draw({ trace, svg }) {
      this.trace = trace;
      const root = this.picture.shadowRoot;
      root.innerHTML = svg;
      const drawn = root.firstElementChild;
      drawn.setAttribute("width", drawn.viewBox.baseVal.width);
      drawn.querySelector("style").append("svg{display:block}g{animation:none!important}");
      if (say(0, 1)) {
        for (const text of drawn.querySelectorAll("[data-zh]")) text.textContent = text.dataset.zh;
      }
      this.count = trace.steps.length;
      this.slider.max = this.count;
      if (trace.unfinished) {
        this.complain(say(`not ended after ${this.count} steps`, `${this.count} 步之后还没有结束`));
      }
      this.show(Math.min(this.step, this.count));
    }

    // The steps ------------------------------------------------------------------------------------------------------

    steps() {
      const button = (sign, words, act) =>
        element("button", { type: "button", title: words, ariaLabel: words, onclick: act }, sign);
      this.slider = element("input", { type: "range", min: 1, max: 1, ariaLabel: say("step", "步") });
      this.slider.oninput = () => this.go(Number(this.slider.value));
      this.where = element("output");
      this.player = button("▶", say("play", "播放"), () => this.play());
      this.predicts = element("input", { type: "checkbox", name: "predict" });
      this.predicts.onchange = () => (this.predicts.checked ? this.begin() : this.end());
      return element(
        "div",
        { className: "live__steps" },
        button("◀", say("a step back", "上一步"), () => this.go(this.step - 1)),
        this.slider,
        button("▶|", say("a step on", "下一步"), () => this.go(this.step + 1)),
        this.player,
        this.where,
        element("button", { type: "button", onclick: () => LIVE.keepRun(this) }, say("keep above", "留在上方")),
        element("label", {}, this.predicts, element("span", {}, say("predict first", "先预测"))),
      );
    }

    key(event) {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      this.go(this.step + move);
    }

    play() {
      clearInterval(this.timer);
      if (this.player.textContent === "❚❚") return (this.player.textContent = "▶");
      this.player.textContent = "❚❚";
      if (this.step >= this.count) this.go(1);
      this.timer = setInterval(() => {
        this.go(this.step + 1);
        if (this.step < this.count && this.ask.hidden) return;
        clearInterval(this.timer);
        this.player.textContent = "▶";
      }, 800);
    }

    go(step) {
      step = Math.max(this.predicts.checked ? 0 : 1, Math.min(step, this.count));
      if (this.predicts.checked && step > this.seen) this.question(this.seen + 1);
      else this.show(step);
      this.follow();
    }

    follow() {
      const right = 164 + 48 * this.step; // the step's column stays in view
      const { scrollLeft, clientWidth } = this.picture;
      this.picture.scrollLeft = Math.max(Math.min(scrollLeft, right - 60), right + 60 - clientWidth);
      if (this.kept) this.kept.picture.scrollLeft = this.picture.scrollLeft;
    }

    show(step) {
      this.step = step;
      this.slider.value = step;
      this.where.value = say(`step ${step} of ${this.count}`, `第 ${step} 步，共 ${this.count} 步`);
      const pictures = [this.picture, ...(this.kept ? [this.kept.picture] : [])];
      for (const group of pictures.flatMap((picture) => [...picture.shadowRoot.querySelectorAll("g[class]")])) {
        const [, first, last] = group.getAttribute("class").match(/^(?:from|in)(\d+)(?:-(\d+))?/);
        group.style.opacity = first <= step && step <= (last ?? Infinity) ? 1 : 0;
      }
      this.told.replaceChildren(...(step ? LIVE.words(this, step) : []));
    }

    // Predict first --------------------------------------------------------------------------------------------------

    begin() {
      this.forget();
      this.show(0);
      this.question(1);
    }

    end() {
      this.seen = Infinity;
      this.ask.hidden = true;
      this.show(this.count);
    }

    forget() {
      this.seen = this.step = this.right = this.asked = 0;
      this.ask.hidden = true;
    }

    here(step) {
      const gone = this.trace.more.slice(0, step - 1).flatMap((more) => more.ended);
      return Object.keys(this.trace.arrived).filter((name) => this.trace.arrived[name] <= step && !gone.includes(name));
    }

    question(step) {
      if (this.seen >= this.count) return;
      const fields = this.here(step).map((name) => {
        const comes = this.trace.arrived[name] === step ? say(" (comes now)", "（刚到）") : "";
        const input = element("input", { type: "number", min: 0, max: 99, required: true, name, inputMode: "numeric" });
        return element("label", {}, element("b", {}, name), comes, " ", input);
      });
      const words = say(
        `Step ${step}: how many tokens does each compute? 0: it waits.`,
        `第 ${step} 步：每个请求算多少个 token？等待填 0。`,
      );
      const check = element("button", { className: "md-button", type: "submit" }, say("Show the step", "看这一步"));
      this.ask.replaceChildren(element("p", {}, words), ...fields, check);
      this.ask.hidden = false;
      this.show(this.seen);
      this.ask.querySelector("input")?.focus({ preventScroll: true });
    }

    judge(event) {
      event.preventDefault();
      const step = ++this.seen;
      const marks = [...this.ask.querySelectorAll("input")].map((input) => {
        const is = this.trace.steps[step - 1].find((part) => part.r === input.name)?.n ?? 0;
        const good = Number(input.value) === is;
        this.asked += 1;
        this.right += good ? 1 : 0;
        const words = good ? `${is} ✓` : say(`${is}, you said ${input.value} ✗`, `${is}，你填的是 ${input.value} ✗`);
        return element("span", { className: good ? "live__good" : "live__bad" }, element("b", {}, input.name), ` ${words}`);
      });
      const sum = say(`${this.right} of ${this.asked} right`, `${this.asked} 个里对了 ${this.right} 个`);
      const next = element("button", { type: "button", className: "md-button" }, say("Next step", "下一步"));
      next.onclick = () => this.question(this.seen + 1);
      this.ask.replaceChildren(...marks, element("span", {}, sum), ...(step < this.count ? [next] : []));
      this.show(step);
      this.follow();
      next.focus({ preventScroll: true });
    }
  }

  for (const box of document.querySelectorAll(".live")) {
    const data = JSON.parse(box.dataset.live);
    if (data.load) continue;
    box.live = new Box(box, data);
    const name = data.spec.milestone.toUpperCase();
    const hint = say("Change requests, settings and code, step by step.", "改请求、改设置、改代码，一步一步看。");
    const words = say(`Run ${name}'s scheduler here`, `在这里运行 ${name} 的调度器`);
    starting(box, words, hint, data.spec.milestone, (python) => box.live.open(python));
  }
})();
