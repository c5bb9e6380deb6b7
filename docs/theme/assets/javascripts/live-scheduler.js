// A live box of a scheduler: settings and requests above the picture, the steps below it, then the code that decides.
(() => {
  const { say, element, starting, Python } = LIVE;
  const NAMES = ["A", "B", "C", "D", "E", "F"];
  const COLUMNS = [
    ["prompt", say("prompt", "提示词"), 1, 31],
    ["output", say("output", "输出"), 1, 31],
    ["arrival", say("comes after step", "在第几步之后到达"), 0, 20],
    ["shared", say("shared beginning", "共同的开头"), 0, 31],
  ];
  const WHY = {
    budget: () => say("the step's budget is spent", "这一步的预算用完了"),
    seqs: () => say("as many sequences run as may", "同时运行的序列已到上限"),
    blocks: () => say("there are too few free blocks", "空闲块不够"),
    prompt: () => say("another prompt has begun and not ended", "另一个提示词还没有算完"),
    preemption: () => say("no request comes in while another gives way", "有请求让位的这一步，其他请求都不能加入"),
    "passed over": () => say("this step passes it over", "这一步跳过了它"),
    "gave way": () => say("it gave its blocks back", "它交回了自己的块"),
  };
  const why = (reason) => {
    if (reason in WHY) return WHY[reason]();
    const first = reason.replace("behind ", "");
    return say(`${first} is before it in the line`, `${first} 排在它前面`);
  };

  class Box {
    constructor(box, data) {
      Object.assign(this, { box, code: data.code, spec: structuredClone(data.spec), first: data.spec });
      this.milestone = Number(this.spec.milestone.slice(1));
      this.step = this.seen = Infinity;
      this.right = this.asked = 0;
      this.texts = {};
    }

    async open(python) {
      this.python = python;
      const found = await this.compute();
      if (!found) throw new Error(this.error.textContent);
    }

    build() {
      this.error = element("p", { className: "live__error", role: "alert", hidden: true });
      this.picture = element("div", { className: "live__picture", tabIndex: 0, onkeydown: (event) => this.key(event) });
      this.picture.attachShadow({ mode: "open" });
      this.ask = element("form", { className: "live__ask", hidden: true, onsubmit: (event) => this.judge(event) });
      this.told = element("div", { className: "live__told", ariaLive: "polite" });
      this.box.append(this.settings(), this.requests(), this.error, this.picture, this.steps(), this.ask, this.told);
      if (this.code.length) this.box.append(this.editor());
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
      if (this.milestone >= 5) all.push(switched("chunks", say("chunked prefill", "分块预填充")));
      if (this.milestone >= 6) all.push(switched("caching", say("prefix caching", "前缀缓存")));
      const reset = element("button", { type: "button", onclick: () => this.reset() }, say("as at first", "恢复原样"));
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
      const old = this.table;
      old.replaceWith(this.requests());
      this.changed();
    }

    set(name, value) {
      this.spec[name] = value;
      this.changed();
    }

    reset() {
      this.spec = structuredClone(this.first);
      const bar = this.bar;
      bar.replaceWith(this.settings());
      this.list(this.spec.requests);
    }

    changed() {
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
          answer = await this.python.ask("watch", { ...this.spec, code: this.texts }, 20);
        } catch (error) {
          answer = { error: error.message, lines: [] };
        }
      } while (this.again);
      this.busy = false;
      if (!this.picture) this.build();
      const line = answer.lines?.length ? say(`line ${answer.lines.at(-1)}: `, `第 ${answer.lines.at(-1)} 行：`) : "";
      this.error.hidden = !answer.error;
      this.error.textContent = line + (answer.error ?? "");
      this.box.classList.toggle("live--stale", Boolean(answer.error));
      if (answer.found) this.draw(answer.found);
      return answer.found;
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
        this.error.hidden = false;
        this.error.textContent = say(`not ended after ${this.count} steps`, `${this.count} 步之后还没有结束`);
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
    }

    show(step) {
      this.step = step;
      this.slider.value = step;
      this.where.value = say(`step ${step} of ${this.count}`, `第 ${step} 步，共 ${this.count} 步`);
      for (const group of this.picture.shadowRoot.querySelectorAll("g[class]")) {
        const [, first, last] = group.getAttribute("class").match(/^(?:from|in)(\d+)(?:-(\d+))?/);
        group.style.opacity = first <= step && step <= (last ?? Infinity) ? 1 : 0;
      }
      const right = 164 + 48 * step; // its column stays in view
      this.picture.scrollLeft = Math.max(0, Math.min(this.picture.scrollLeft, right - 60));
      if (right > this.picture.scrollLeft + this.picture.clientWidth) this.picture.scrollLeft = right - this.picture.clientWidth + 60;
      this.told.replaceChildren(...(step ? this.words(step) : []));
    }

    words(step) {
      const parts = this.trace.steps[step - 1];
      const { waits, ended, free, kept, evicted } = this.trace.more[step - 1];
      const lines = parts.filter((part) => part.n).map((part) => [part.r, this.work(part, step)]);
      for (const [name, reason] of Object.entries(waits)) {
        const sign = reason === "gave way" ? say("gives way", "让位") : say("waits", "等待");
        lines.push([name, `${sign}${say(": ", "：")}${why(reason)}`]);
      }
      for (const name of ended) lines.push([name, say("has ended after this step", "在这一步之后结束")]);
      const total = parts.reduce((sum, part) => sum + part.n, 0);
      const list = lines.map(([name, words]) => element("li", {}, element("b", {}, name), ` ${words}`));
      const sum = say(`${total} tokens of ${this.spec.budget}`, `预算 ${this.spec.budget} 个 token，用了 ${total} 个`);
      const told = [element("ul", {}, ...list, element("li", {}, sum))];
      if (free === null) return told;
      const tables = parts.map((part) => `${part.r} [${part.blocks.join(", ")}]`).join("  ");
      const line = (words, value) => element("div", {}, `${words}${say(": ", "：")}`, element("code", {}, value));
      told.push(line(say("block tables", "块表"), tables || "–"));
      told.push(line(say("free, the next first", "空闲块，先用的在前"), free.join(" ") || "–"));
      if (this.spec.caching && this.milestone >= 6) {
        told.push(line(say("of these with a content that can be found", "其中内容还找得到的"), kept.join(" ") || "–"));
        told.push(line(say("evicted so far", "至此已淘汰"), evicted));
      }
      return told;
    }

    work({ r, start, n }, step) {
      const [, prompt] = this.spec.requests.find(([name]) => name === r) ?? [r, 0];
      const before = this.trace.steps.slice(0, step - 1).flat().some((part) => part.r === r && part.n);
      if (start >= prompt && n === 1) return say(`one token, at position ${start}`, `一个 token，位置 ${start}`);
      const last = start + n - 1;
      const lost = before && this.trace.more.slice(0, step).some((more) => more.gave_way.includes(r));
      const kind = lost ? say("tokens again", "个 token，重算") : say("prompt tokens", "个提示词 token");
      const found = !before && start ? say(`; ${start} were found`, `；前 ${start} 个已经算过`) : "";
      const draws = last + 1 >= prompt ? say("; it draws its next token", "；接着抽出下一个 token") : "";
      return say(`${n} ${kind}, ${start} to ${last}`, `${n} ${kind}，位置 ${start} 到 ${last}`) + found + draws;
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
      this.seen = this.step = 0;
      this.right = this.asked = 0;
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
        this.right += good;
        const words = good ? `${is} ✓` : say(`${is}, you said ${input.value} ✗`, `${is}，你填的是 ${input.value} ✗`);
        return element("span", { className: good ? "live__good" : "live__bad" }, element("b", {}, input.name), ` ${words}`);
      });
      const sum = say(`${this.right} of ${this.asked} right`, `${this.asked} 个里对了 ${this.right} 个`);
      const next = element("button", { type: "button", className: "md-button" }, say("Next step", "下一步"));
      next.onclick = () => this.question(this.seen + 1);
      this.ask.replaceChildren(...marks, element("span", {}, sum), ...(step < this.count ? [next] : []));
      this.show(step);
      next.focus({ preventScroll: true });
    }

    // The code -------------------------------------------------------------------------------------------------------

    editor() {
      const choice = element("select", { ariaLabel: say("which code", "哪段代码") });
      for (const { where } of this.code) choice.append(element("option", { value: where }, where.replace(" ", " · ")));
      const area = element("textarea", { spellcheck: false, wrap: "off", ariaLabel: say("the code", "代码") });
      const answer = element("em");
      const load = () => {
        const piece = this.code.find(({ where }) => where === choice.value);
        area.value = this.texts[piece.where] ?? piece.text;
        area.rows = Math.min(30, area.value.split("\n").length + 1);
        answer.textContent = piece.answer;
      };
      area.onkeydown = (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.ctrlKey) return;
        event.preventDefault(); // a new line begins below the one before
        const indent = area.value.slice(0, area.selectionStart).match(/(?:^|\n)( *)[^\n]*$/)[1];
        area.setRangeText(`\n${indent}`, area.selectionStart, area.selectionEnd, "end");
      };
      const run = element("button", { type: "button", className: "md-button" }, say("Run it", "运行"));
      run.onclick = () => {
        this.texts[choice.value] = area.value;
        this.changed();
      };
      const back = element("button", { type: "button", className: "md-button" }, say("The milestone's own", "恢复原代码"));
      back.onclick = () => {
        delete this.texts[choice.value];
        load();
        this.changed();
      };
      choice.onchange = load;
      load();
      const name = this.spec.milestone.toUpperCase();
      const words = say(`The code of ${name} that decides this: change it and run it`, `做出决定的 ${name} 代码：改一改，运行`);
      const row = element("div", { className: "live__row" }, choice, answer);
      const buttons = element("div", { className: "live__row" }, run, back);
      return element("details", { className: "live__code" }, element("summary", {}, words), row, area, buttons);
    }
  }

  for (const box of document.querySelectorAll(".live")) {
    const data = JSON.parse(box.dataset.live);
    if (!data.spec) continue;
    const made = new Box(box, data);
    const name = data.spec.milestone.toUpperCase();
    const words = say(`Run ${name}'s scheduler here`, `在这里运行 ${name} 的调度器`);
    starting(box, words, data.spec.milestone, (python) => made.open(python));
  }
})();
