"use strict";
// Three strips under the timeline, on the same axis: tokens against the budget, blocks, and what a step took. The caption
// of each is beside it, or above it where there is no room.

const STRIP = 44, GAP = 14, CAPTION = 14;

class Charts {
  constructor(panel, canvas) {
    this.panel = panel;
    this.canvas = canvas;
    this.aside = document.createElement("canvas");
    const { steps, header } = panel.trace, all = header.num_blocks;
    const time = (part) => (step) => steps.times[step * 5 + part];
    this.strips = [
      { name: "budget", limit: header.max_num_batched_tokens, format: (n) => n.toLocaleString(), parts: [
        ["prefill", "prefill", (step) => steps.prefill[step]], ["decode", "decode", (step) => steps.decode[step]]] },
      { name: "cache", limit: all, format: (n) => n.toLocaleString(), parts: [
        ["used", "used", (step) => all - steps.free[step]], ["findable", "found", (step) => this.freeFindable(step)]] },
      { name: "time", limit: null, format: milliseconds, parts: PARTS.map((part, i) => [part, part, time(i)]) },
    ];
    listenToPointer(canvas, panel, (event, x, y) => this.hover(event, x, y), () => undefined);
  }

  // Findable blocks that no table names, at most all that are free.
  freeFindable(step) { return Math.min(this.panel.trace.steps.free[step], this.panel.trace.idleFindable(step)); }

  draw() {
    const { trace, app } = this.panel, { width, left, row, tops } = this.layout();
    const height = row * 3 + 4, scale = scaleOf(app, left, width), byTime = app.byTime;
    // The strips stay as they are while only the cursor moves: they are drawn aside, and copied.
    const key = [width, ...app.range, byTime, app.language, COLOURS.page, window.devicePixelRatio].join();
    if (key !== this.drawn) {
      this.drawn = key;
      const aside = prepare(this.aside, width, height), columns = this.columns(trace, scale, left, width, byTime);
      this.strips.forEach((strip, i) => this.drawStrip(aside, strip, tops[i], left, width, columns));
    }
    const pen = prepare(this.canvas, width, height);
    pen.drawImage(this.aside, 0, 0, width, height);
    if (!this.panel.isBeyond) {
      const x = scale.x(trace.left(this.panel.step, byTime));
      if (x >= left && x <= width) for (const top of tops) line(pen, COLOURS.cursor, x + 0.5, top, x + 0.5, top + STRIP + 4);
    }
  }

  layout() {
    const width = this.canvas.parentElement.clientWidth - 20, left = gutterOf(width), caption = left > 50 ? 0 : CAPTION;
    const row = STRIP + GAP + caption;
    return { width, left, row, tops: this.strips.map((_, i) => i * row + 4 + caption) };
  }

  // [x, width, first step, step behind the last]: a column for each step, or for each pixel.
  columns(trace, scale, left, width, byTime) {
    const first = trace.stepAt(scale.invert(left), byTime), last = trace.stepAt(scale.invert(width), byTime), found = [];
    for (let step = first; step <= last;) {
      const x = Math.max(left, scale.x(trace.left(step, byTime)));
      let next = step + 1, right = scale.x(trace.right(step, byTime));
      if (right - x < 1) {
        next = Math.max(next, trace.stepAt(scale.invert(x + 1), byTime));
        right = x + 1;
      }
      found.push([x, Math.min(width, right) - x, step, next]);
      step = next;
    }
    return found;
  }

  drawStrip(pen, strip, top, left, width, columns) {
    const bottom = top + STRIP;
    const total = (step) => strip.parts.reduce((sum, [, , value]) => sum + value(step), 0);
    // Of the steps in one pixel, the one that has most of it.
    const shown = columns.map(([x, w, first, next]) => {
      let best = first, most = total(first);
      for (let step = first + 1; step < next; step++) {
        const here = total(step);
        if (here > most) [best, most] = [step, here];
      }
      return [x, w, best, most];
    });
    const most = shown.reduce((a, column) => Math.max(a, column[3]), 0);
    const near = strip.limit && strip.limit <= most * 3, top_ = Math.max(1, near ? strip.limit : most);
    for (const [x, w, step] of shown) {
      let y = bottom;
      for (const [, colour, value] of strip.parts) {
        const h = (value(step) / top_) * STRIP;
        pen.fillStyle = COLOURS[colour];
        pen.fillRect(x, y - h, w > 4 ? w - 1 : w, h);
        y -= h;
      }
    }
    line(pen, COLOURS.line, left, bottom + 0.5, width, bottom + 0.5);
    if (near) {
      pen.setLineDash([4, 3]);
      line(pen, COLOURS.dim, left, top + 0.5, width, top + 0.5);
      pen.setLineDash([]);
    }
    pen.fillStyle = COLOURS.dim;
    pen.textAlign = "left";
    const w = this.panel.app.w, limit = strip.limit ? ` / ${strip.format(strip.limit)}` : "";
    if (left > 50) {
      pen.fillText(w[strip.name], 2, top + 8);
      pen.fillText(`${strip.format(most)}${limit}`, 2, top + 24);
    } else {
      pen.fillText(`${w[strip.name]} ${strip.format(most)}${limit}`, 2, top - 8);
    }
  }

  hover(event, x, y) {
    const { trace, app } = this.panel, w = app.w, { width, left, row } = this.layout();
    const strip = this.strips[Math.floor(y / row)];
    if (!strip || x < left) return tip.hide();
    const step = trace.stepAt(scaleOf(app, left, width).invert(x), app.byTime);
    const most = Math.max(...strip.parts.map(([, , value]) => value(step)));
    const parts = strip.parts.map(([name, , value]) => `${w.chart[name]}: ${strip.format(value(step), most)}`);
    return tip.show(event, [`${w.slider} ${trace.steps.number[step]}`, ...parts]);
  }
}

// How many findable blocks no table names, by step: counted once, from the first step to the last.
TraceData.prototype.idleFindable = function idleFindable(step) {
  if (!this.idle) this.idle = countIdle(this);
  return this.idle[step];
};

function countIdle(trace) {
  const refs = new Map(), state = { step: -1, tables: new Map(), findable: new Set() }, idle = new Int32Array(trace.count);
  let free = 0; // findable and named by none
  const add = (block, by) => {
    const before = refs.get(block) || 0, after = before + by;
    refs.set(block, after);
    if (state.findable.has(block)) free += (after === 0) - (before === 0);
  };
  for (let step = 0; step < trace.count; step++) {
    const news = trace.news[step];
    if (news.restarted) { state.tables.clear(); refs.clear(); }
    if (news.restarted || news.forgotten) { state.findable.clear(); free = 0; }
    for (const block of news.kept || []) if (!state.findable.has(block)) { state.findable.add(block); free += !refs.get(block); }
    for (const block of news.evicted || []) if (state.findable.delete(block)) free -= !refs.get(block);
    for (const [lane, place, blocks] of news.tables || []) {
      const table = state.tables.get(lane) || [];
      for (const block of table.splice(place)) add(block, -1);
      for (const block of blocks) { add(block, 1); table.push(block); }
      state.tables.set(lane, table);
    }
    idle[step] = free;
  }
  return idle;
}
