"use strict";
// Puts the page together: a panel for each trace, one axis, one cursor and one set of controls for all of them.

class Panel {
  constructor(app, data, name) {
    this.app = app;
    this.trace = new TraceData(data);
    this.lane = null; // the chosen one
    this.step = 0;
    this.isBeyond = false;
    this.name = name;
    this.article = document.getElementById("panel").content.cloneNode(true).querySelector("article");
    document.getElementById("traces").append(this.article);
    this.parts = [
      new Timeline(this, this.find(".lanes")),
      new Charts(this, this.find(".charts")),
      new Blocks(this, this.find(".map")),
      new Latencies(this, this.find(".latencies")),
      new Texts(this, this.find(".texts")),
    ];
  }

  find(selector) { return this.article.querySelector(selector); }

  choose(lane) {
    this.lane = this.lane === lane ? null : lane;
    this.app.redraw();
  }

  draw() {
    const { trace, app } = this;
    this.step = trace.stepAt(app.cursor, app.byTime);
    this.isBeyond = app.cursor >= trace.extent(app.byTime);
    if (app.saidStep.get(this) !== `${this.step} ${this.isBeyond} ${app.language}`) this.say();
    for (const part of this.parts) part.draw();
    if (app.isRevealing) this.parts[0].reveal(); // scrolling draws once more
  }

  say() {
    const { trace, app, step } = this, w = app.w, { prefill, decode, drawn } = trace.steps;
    app.saidStep.set(this, `${step} ${this.isBeyond} ${app.language}`);
    this.find("h2").textContent = app.panels.length > 1 ? `${this.name}: ${trace.name}` : trace.name;
    this.find(".facts").textContent = w.facts(trace.header, trace.requests.length, trace.lanes.length, trace.count)
      + (trace.header.clock === "real" ? "" : w.simulated) + (trace.torn ? w.torn : "");
    this.find(".headline").textContent = this.isBeyond ? w.beyond : w.headline(decode[step], prefill[step], drawn[step]);
    const items = this.isBeyond ? [] : describe(trace, step, w);
    this.find(".words").replaceChildren(...items.map(({ kind, text }) => {
      const item = document.createElement("li");
      item.dataset.kind = kind;
      item.textContent = text;
      return item;
    }));
  }
}

class App {
  constructor(traces) {
    this.saidStep = new Map();
    this.panels = [];
    this.byTime = false;
    this.index = 0;
    const wished = new URLSearchParams(location.hash.slice(1)); // #lang=zh&theme=dark&axis=time&step=12&lane=3; steps from 1
    this.language = wished.get("lang") in WORDS ? wished.get("lang") : (navigator.language || "").startsWith("zh") ? "zh" : "en";
    this.theme = ["light", "dark"].includes(wished.get("theme")) ? wished.get("theme") : "auto";
    traces.forEach((data, i) => this.panels.push(new Panel(this, data, "AB"[i])));
    document.getElementById("traces").className = this.panels.length > 1 ? "two" : "one";
    this.listen();
    this.setAxis(wished.get("axis") === "time");
    const lane = Number(wished.get("lane"));
    if (wished.has("lane") && this.panels[0].trace.lanes[lane]) this.panels[0].lane = lane;
    this.setTheme();
    this.setLanguage();
    this.select((Number(wished.get("step")) || 1) - 1);
  }

  get w() { return WORDS[this.language]; }
  get cursor() { return this.stops[this.index] || 0; }
  get full() { return Math.max(1, ...this.panels.map((panel) => panel.trace.extent(this.byTime))); }

  // Where the cursor can be: at every step, or at every time at which a step of one of the traces begins.
  setAxis(byTime) {
    this.byTime = byTime;
    const all = this.panels.flatMap(({ trace }) => Array.from({ length: trace.count }, (_, step) => trace.left(step, byTime)));
    this.stops = Array.from(new Set(all)).sort((a, b) => a - b);
    document.getElementById("slider").max = Math.max(1, this.stops.length);
    this.range = [0, this.full];
  }

  select(index) {
    this.index = Math.max(0, Math.min(this.stops.length - 1, index));
    document.getElementById("slider").value = this.index + 1;
    const [a, b] = this.range;
    this.isRevealing = true;
    if (this.cursor < a || this.cursor >= b) this.show(this.cursor - (b - a) / 2, this.cursor + (b - a) / 2);
    this.redraw();
  }

  // The stop nearest to a place of the axis, as a click on one trace means it.
  goTo(x, trace) {
    const at = trace.left(trace.stepAt(x, this.byTime), this.byTime);
    this.select(this.stops.indexOf(at));
  }

  // The part of the axis that is on the screen.
  show(a, b) {
    const full = this.full, size = Math.min(full, Math.max(b - a, this.byTime ? 1000 : 8));
    const from = Math.max(0, Math.min(full - size, a));
    this.range = [from, from + size];
    this.redraw();
  }

  zoom(by, around = this.cursor) {
    const [a, b] = this.range;
    this.show(around - (around - a) * by, around + (b - around) * by);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    for (const panel of this.panels) panel.draw();
    this.isRevealing = false;
    document.getElementById("where").textContent = this.where();
  }

  where() {
    const { trace, step } = this.panels[0];
    if (!trace.count) return "";
    const last = Math.max(...this.panels.map((panel) => panel.trace.end));
    const at = milliseconds(this.byTime ? this.cursor : trace.steps.t[step], last);
    if (this.panels.length === 1) return this.w.where(trace.steps.number[step], trace.steps.number[trace.count - 1], at);
    const steps = this.panels.map((panel) => `${panel.name} ${panel.isBeyond ? "–" : panel.trace.steps.number[panel.step]}`);
    return this.byTime ? `${steps.join(" · ")} · ${at}` : steps.join(" · ");
  }

  play() {
    clearInterval(this.timer);
    this.timer = this.timer ? null : setInterval(() => {
      if (this.index >= this.stops.length - 1) this.play();
      else this.select(this.index + 1);
    }, 120);
    this.setLanguage();
  }

  setTheme() {
    const dark = this.theme === "dark" || (this.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    readColours();
  }

  setLanguage() {
    const w = this.w, text = (id, value) => { document.getElementById(id).textContent = value; };
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
    document.title = w.title;
    for (const element of document.querySelectorAll("[data-word]")) element.textContent = w[element.dataset.word];
    text("language", w.language);
    text("theme", w.theme[this.theme]);
    text("axis", this.byTime ? w.byTime : w.byStep);
    text("fit", w.fit);
    text("play", this.timer ? "||" : "▶");
    const named = { first: w.first, back: w.back, forward: w.forward, play: this.timer ? w.pause : w.play, slider: w.slider, "zoom-in": w.zoomIn, "zoom-out": w.zoomOut };
    for (const [id, name] of Object.entries(named)) document.getElementById(id).setAttribute("aria-label", name);
    this.makeLegend();
    this.redraw();
  }

  makeLegend() {
    const kinds = [...KINDS, "found", "used", "shared", "copy", "free", ...PARTS];
    document.getElementById("legend").replaceChildren(...kinds.map((kind) => {
      const item = document.createElement("li"), swatch = document.createElement("canvas");
      const pen = prepare(swatch, 26, 12);
      if (kind === "copy") {
        pen.lineWidth = 3;
        pen.strokeStyle = COLOURS.copy;
        pen.strokeRect(2, 2, 22, 8);
      } else bar(pen, kind, 0, 0, 26, 12);
      item.append(swatch, this.w.kinds[kind] || this.w.chart[kind]);
      return item;
    }));
  }

  listen() {
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("first", () => this.select(0));
    on("back", () => this.select(this.index - 1));
    on("forward", () => this.select(this.index + 1));
    on("play", () => this.play());
    on("zoom-in", () => this.zoom(0.5));
    on("zoom-out", () => this.zoom(2));
    on("fit", () => this.show(0, this.full));
    on("axis", () => {
      const { trace, step } = this.panels[0];
      this.setAxis(!this.byTime);
      this.setLanguage();
      this.goTo(trace.left(step, this.byTime), trace);
    });
    on("language", () => {
      this.language = this.language === "en" ? "zh" : "en";
      this.setLanguage();
    });
    on("theme", () => {
      this.theme = { auto: "light", light: "dark", dark: "auto" }[this.theme];
      this.setTheme();
      this.setLanguage();
    });
    document.getElementById("slider").addEventListener("input", (event) => this.select(Number(event.target.value) - 1));
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.setTheme();
      this.setLanguage();
    });
    document.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => this.select(this.index - by), ArrowRight: () => this.select(this.index + by),
      Home: () => this.select(0), End: () => this.select(this.stops.length - 1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(0, this.full),
      " ": () => (event.target.tagName === "BUTTON" ? event.target.click() : this.play()),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

const app = new App(JSON.parse(document.getElementById("data").textContent));
