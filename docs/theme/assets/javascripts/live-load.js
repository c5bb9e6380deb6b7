// The live box of the simulator: a load on a GPU that is not here, its waits as curves, and a line for each run.
(() => {
  const { say, element, starting } = LIVE;
  const COLOURS = ["#3f7fbf", "#d9822b", "#4f9d69", "#9b6bb3"]; // of the newest run, the one before it, …
  const CHOICES = [
    ["device", say("GPU", "GPU"), ["h200", "h100", "a100", "rtx-4090"]],
    ["model", say("model", "模型"), ["llama-3.1-8b", "qwen3-8b", "qwen3-0.6b"]],
    ["load", say("load", "负载"), ["chat", "documents", "agents", "batch"]],
    ["rate", say("requests a second", "每秒请求数"), [1, 2, 4, 8, 16, 24, 32, 40, 60, 80, 120, 200]],
    ["budget", say("budget of a step", "每步预算"), [256, 512, 1024, 2048, 4096, 8192, 16384]],
    ["seqs", "max_num_seqs", [16, 32, 64, 128, 256, 512]],
    ["count", say("requests", "请求数"), [200, 1000, 4000]],
  ];
  const SWITCHES = [
    ["chunks", say("chunked prefill", "分块预填充")],
    ["caching", say("prefix caching", "前缀缓存")],
  ];
  const FIRST = { device: "h200", model: "llama-3.1-8b", load: "documents", rate: 8, budget: 2048, seqs: 256, count: 1000 };

  const milliseconds = (seconds) => {
    const ms = 1000 * seconds;
    return ms >= 10000 ? `${(ms / 1000).toFixed(0)} s` : `${ms.toPrecision(ms >= 100 ? 4 : 3).replace(/e\+.*/, "")} ms`;
  };

  // The share of requests (or gaps) that are no longer than x, x in powers of ten.
  function plot(title, runs, name) {
    const [wide, high, left, top, bottom] = [400, 230, 38, 26, 196];
    const all = runs.flatMap((run) => run[name]).filter((value) => value > 0);
    const low = Math.floor(Math.log10(Math.min(...all))), most = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...all))));
    const x = (value) => left + ((Math.log10(Math.max(value, 1e-9)) - low) / (most - low)) * (wide - left - 12);
    const y = (percent) => bottom - (percent / 100) * (bottom - top);
    const parts = [`<text x="${left}" y="14" font-weight="bold">${title}</text>`];
    for (const percent of [0, 50, 90, 100]) {
      parts.push(`<line class="grid" x1="${left}" x2="${wide - 12}" y1="${y(percent)}" y2="${y(percent)}"/>`);
      parts.push(`<text x="${left - 6}" y="${y(percent) + 4}" text-anchor="end">${percent}%</text>`);
    }
    for (let power = low; power <= most; power++) {
      const at = x(10 ** power);
      const anchor = power === most ? "end" : "middle";
      parts.push(`<line class="grid" x1="${at}" x2="${at}" y1="${top}" y2="${bottom}"/>`);
      parts.push(`<text x="${at}" y="${bottom + 18}" text-anchor="${anchor}">${power < 0 ? 1000 * 10 ** power + " ms" : 10 ** power + " s"}</text>`);
    }
    runs.forEach((run, age) => {
      const points = run[name].map((value, percent) => `${x(value).toFixed(1)},${y(percent).toFixed(1)}`).join(" ");
      parts.push(`<polyline points="${points}" fill="none" stroke="${COLOURS[age]}" stroke-width="${age ? 1.5 : 2.5}"/>`);
    });
    return `<svg viewBox="0 0 ${wide} ${high}" role="img" aria-label="${title}">${parts.join("")}</svg>`;
  }

  class Load {
    constructor(box) {
      Object.assign(this, { box, runs: [] });
      this.spec = { ...FIRST, chunks: true, caching: true };
    }

    async open(python) {
      this.python = python;
      const fields = CHOICES.map(([name, words, values]) => {
        const input = element("select", { name, onchange: () => (this.spec[name] = values[input.selectedIndex]) });
        input.append(...values.map((value) => element("option", { selected: value === this.spec[name] }, value.toLocaleString("en"))));
        return element("label", {}, element("span", {}, words), input);
      });
      for (const [name, words] of SWITCHES) {
        const input = element("input", { type: "checkbox", checked: true, name });
        input.onchange = () => {
          this.spec[name] = input.checked;
          // A whole prompt has to fit into a step, so without chunks the engine chooses the budget.
          if (name === "chunks") this.box.querySelector("[name=budget]").disabled = !input.checked;
        };
        fields.push(element("label", {}, input, element("span", {}, words)));
      }
      this.button = element("button", { type: "button", className: "md-button", onclick: () => this.run() }, say("Simulate", "模拟"));
      this.progress = element("progress", { max: 1, value: 0, ariaLabel: say("progress", "进度"), hidden: true });
      this.error = element("p", { className: "live__error", role: "alert", hidden: true });
      this.plots = element("div", { className: "live__plots" });
      this.table = element("div", { className: "live__runs", ariaLive: "polite" });
      const row = element("div", { className: "live__row" }, this.button, this.progress);
      this.box.append(element("div", { className: "live__bar" }, ...fields), row, this.error, this.plots, this.table);
      await this.run();
    }

    async run() {
      const spec = { ...this.spec };
      this.button.disabled = true;
      this.progress.hidden = false;
      this.progress.value = 0;
      let answer;
      try {
        answer = await this.python.ask("load", spec, 300, (done) => (this.progress.value = done / spec.count));
      } catch (error) {
        answer = { error: error.message };
      }
      this.button.disabled = false;
      this.progress.hidden = true;
      this.error.hidden = !answer.error;
      this.error.textContent = answer.error ?? "";
      if (answer.found) this.show({ spec, ...answer.found });
    }

    show(run) {
      this.runs = [run, ...this.runs].slice(0, COLOURS.length);
      this.plots.innerHTML =
        plot(say("TTFT: requests that had their first token within", "TTFT：在多久之内拿到首个 token 的请求"), this.runs, "ttft") +
        plot(say("ITL: gaps between tokens no longer than", "ITL：不超过多久的 token 间隔"), this.runs, "itl");
      const heads = ["", say("run", "这一次"), "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", say("tokens/s", "token/s")];
      heads.push(say("in a step", "每步序列"), say("hits", "命中"), say("preempted", "抢占"));
      const head = element("tr", {}, ...heads.map((words) => element("th", { scope: "col" }, words)));
      const rows = this.runs.map(({ spec, ttft, itl, row }, age) => {
        const mark = element("span", { className: "live__mark" });
        mark.style.background = COLOURS[age];
        const off = SWITCHES.filter(([name]) => !spec[name]).map(([, words]) => say(`no ${words}`, `无${words}`));
        const name = [spec.device, spec.model, spec.load, `${spec.rate}/s`, row.budget, `≤${spec.seqs}`, ...off].join(" · ");
        const values = [milliseconds(ttft[50]), milliseconds(ttft[99]), milliseconds(itl[50]), milliseconds(itl[99])];
        values.push(Math.round(row.output_tokens_per_s).toLocaleString("en"), row.running.toFixed(0));
        values.push(`${(100 * row.hit_rate).toFixed(0)}%`, row.preempted);
        return element("tr", {}, ...[mark, name, ...values].map((value) => element("td", {}, value)));
      });
      this.table.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
    }
  }

  for (const box of document.querySelectorAll(".live")) {
    if (!JSON.parse(box.dataset.live).load) continue;
    const hint = say("1,000 requests in some seconds.", "几秒钟模拟 1,000 个请求。");
    starting(box, say("Simulate here", "在这里模拟"), hint, "root", (python) => (box.live = new Load(box)).open(python));
  }
})();
