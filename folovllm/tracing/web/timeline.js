"use strict";
// The timeline: one lane a sequence. Only lanes and steps that are on the screen are drawn, and of segments narrower than
// a pixel one for each pixel, so that a frame costs what the screen holds and not what the trace holds.

const RULER = 20;

function gutterOf(width) { return width < 600 ? 34 : 96; }

class Timeline {
  constructor(panel, box) {
    this.panel = panel;
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.spacer = box.querySelector(".spacer");
    this.row = 18;
    this.foundAt = new Map(); // lane -> Map(step -> tokens)
    panel.trace.news.forEach((news, step) => {
      for (const [lane, num] of news.found || []) {
        if (!this.foundAt.has(lane)) this.foundAt.set(lane, new Map());
        this.foundAt.get(lane).set(step, num);
      }
    });
    box.addEventListener("scroll", () => panel.app.redraw());
    listenToPointer(this.canvas, panel, (event, x, y) => this.hover(event, x, y), (x, y) => this.choose(y));
  }

  // Lanes that have a segment in the part of the axis that is shown: the rows, from above to below.
  rows() {
    const { trace, app } = this.panel, key = [...app.range, app.byTime].join();
    if (key !== this.rowsOf) {
      this.rowsOf = key;
      const first = trace.stepAt(app.range[0], app.byTime), last = trace.stepAt(app.range[1], app.byTime);
      this.shown = trace.order.filter((lane) => lives(trace.lanes[lane], first, last));
    }
    return this.shown;
  }

  // Scroll to the lanes that are there at the step, if none of them is on the screen.
  reveal() {
    const { trace, step } = this.panel, rows = this.rows(), top = Math.floor(this.box.scrollTop / this.row);
    const visible = rows.slice(top, top + Math.floor((this.box.clientHeight - RULER) / this.row));
    if (visible.some((lane) => lives(trace.lanes[lane], step, step))) return;
    const place = rows.findIndex((lane) => lives(trace.lanes[lane], step, step));
    if (place >= 0) this.box.scrollTop = place * this.row;
  }

  get width() { return this.box.clientWidth; }
  get gutter() { return gutterOf(this.width); }

  draw() {
    const { trace, app } = this.panel, rows = this.rows(), total = rows.length * this.row + RULER;
    const height = Math.min(total, Math.max(160, window.innerHeight * 0.46)) | 0;
    this.spacer.style.height = `${Math.max(0, total - height)}px`;
    const width = this.width, pen = prepare(this.canvas, width, height);
    const scale = scaleOf(app, this.gutter, width), byTime = app.byTime;
    const firstStep = trace.stepAt(scale.invert(this.gutter), byTime), lastStep = trace.stepAt(scale.invert(width), byTime);
    const firstLane = Math.floor(this.box.scrollTop / this.row);
    const lastLane = Math.min(rows.length - 1, firstLane + Math.ceil(height / this.row));
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, RULER, width - this.gutter, height - RULER);
    pen.clip();
    const cursor = this.panel.isBeyond ? null : [scale.x(trace.left(this.panel.step, byTime)), scale.x(trace.right(this.panel.step, byTime))];
    if (cursor) {
      pen.fillStyle = COLOURS.line;
      pen.fillRect(cursor[0], RULER, Math.max(1, cursor[1] - cursor[0]), height);
    }
    for (let place = firstLane; place <= lastLane; place++) {
      this.drawLane(pen, scale, rows[place], RULER + place * this.row - this.box.scrollTop, firstStep, lastStep);
    }
    if (cursor) line(pen, COLOURS.cursor, cursor[0] + 0.5, RULER, cursor[0] + 0.5, height);
    pen.restore();
    this.drawGutter(pen, firstLane, lastLane, height);
    drawRuler(pen, scale, this.gutter, width, trace, app);
  }

  drawLane(pen, scale, number, y, firstStep, lastStep) {
    const { trace, app } = this.panel, byTime = app.byTime, lane = trace.lanes[number], segments = lane.segments;
    const top = y + 3, height = this.row - 6;
    if (number === this.panel.lane) {
      pen.fillStyle = COLOURS.idle;
      pen.fillRect(this.gutter, y, this.width, this.row);
    }
    if (byTime) this.drawArrival(pen, scale, lane, top, height);
    let at = trace.segmentFrom(lane, firstStep);
    while (at < segments.length && segments[at + 1] <= lastStep) {
      const kind = KINDS[segments[at]], first = segments[at + 1];
      const x0 = scale.x(trace.left(first, byTime)), x1 = scale.x(trace.right(segments[at + 2], byTime));
      if (x1 - x0 < 1) {
        pen.fillStyle = COLOURS[kind];
        pen.fillRect(Math.floor(x0), top, 1, height);
        const next = trace.stepAt(scale.invert(Math.floor(x0) + 1), byTime);
        at = Math.max(at + FIELDS, trace.segmentFrom(lane, next));
        continue;
      }
      const gap = x1 - x0 > 4 ? 1 : 0; // so that one chunk is told from the next
      bar(pen, kind, x0, top, x1 - x0 - gap, height);
      const found = this.foundAt.has(number) && this.foundAt.get(number).get(first);
      if (found && x1 - x0 > 2) {
        pen.fillStyle = COLOURS.found;
        pen.fillRect(x0, top + height - 4, x1 - x0 - gap, 4);
      }
      const isRun = segments[at + 4] > segments[at + 2] - first + 1 && kind === "decode"; // draft tokens were accepted
      if (segments[at + 4] && x1 - x0 > (isRun ? 9 : 26) && (isRun || kind === "prefill")) {
        pen.fillStyle = COLOURS[isRun ? "on-dark" : "on-light"];
        pen.textAlign = "center";
        pen.fillText(String(segments[at + 4]), (x0 + x1) / 2, top + height / 2 - (found ? 2 : 0));
      }
      at += FIELDS;
    }
    if (lane.ended !== null && lane.ended >= firstStep && lane.ended <= lastStep) {
      const x = scale.x(trace.right(lane.ended, byTime));
      line(pen, COLOURS.ink, x, top - 1, x, top + height + 1);
    }
  }

  // Between its arrival and the first step that knew of it, a sequence waits as well.
  drawArrival(pen, scale, lane, top, height) {
    const request = this.panel.trace.requestOf.get(lane.request);
    if (!request || !lane.segments.length || !lane.id.endsWith("-0")) return;
    const x0 = scale.x(request.t), x1 = scale.x(this.panel.trace.left(lane.segments[1], true));
    if (x1 > x0) bar(pen, "waiting", x0, top, x1 - x0, height);
  }

  drawGutter(pen, firstLane, lastLane, height) {
    const { trace } = this.panel, wide = this.gutter > 50;
    pen.save();
    pen.beginPath();
    pen.rect(0, RULER, this.gutter - 4, height);
    pen.clip();
    pen.textAlign = "left";
    for (let place = firstLane; place <= lastLane; place++) {
      const number = this.shown[place], y = RULER + place * this.row - this.box.scrollTop + this.row / 2;
      pen.fillStyle = number === this.panel.lane ? COLOURS.ink : COLOURS.dim;
      pen.fillText(wide ? fitted(pen, `${number}  `, trace.lanes[number].id, this.gutter - 8) : String(number), 2, y);
    }
    pen.restore();
  }

  laneAt(y) {
    const place = Math.floor((y - RULER + this.box.scrollTop) / this.row);
    return y > RULER && place in this.rows() ? this.rows()[place] : null;
  }

  choose(y) {
    const lane = this.laneAt(y);
    if (lane !== null) this.panel.choose(lane);
  }

  hover(event, x, y) {
    const { trace, app } = this.panel, lane = this.laneAt(y);
    if (lane === null || x < this.gutter) return tip.hide();
    const step = trace.stepAt(scaleOf(app, this.gutter, this.width).invert(x), app.byTime);
    return tip.show(event, this.describe(lane, step));
  }

  describe(lane, step) {
    const { trace, app } = this.panel, w = app.w, doing = trace.tokensAt(trace.lanes[lane], step);
    const table = doing ? trace.stateAt(step).tables.get(lane) || [] : [];
    const found = this.foundAt.has(lane) && this.foundAt.get(lane).get(step);
    return [
      `${w.seq(lane)} (${trace.lanes[lane].id})`,
      `${w.slider} ${trace.steps.number[step]}`,
      doing && w.doing(w.kinds[doing.kind], doing.start, doing.num),
      doing && found && w.foundLane(found),
      doing && w.tableOf(table.length, listed(table, w)),
    ];
  }
}

// A name that is too long is shown by its end, where the names of requests differ.
function fitted(pen, before, name, width) {
  if (pen.measureText(before + name).width <= width) return before + name;
  const room = width - pen.measureText(`${before}…`).width;
  let end = name.slice(-Math.floor(width / 4));
  while (end && pen.measureText(end).width > room) end = end.slice(1);
  return `${before}…${end}`;
}

function lives(lane, first, last) {
  const segments = lane.segments;
  return segments.length > 0 && segments[1] <= last && segments[segments.length - FIELDS + 2] >= first;
}

// Places of the axis to pixels and back.
function scaleOf(app, left, right) {
  const [a, b] = app.range, unit = (right - left) / (b - a);
  return { unit, x: (value) => left + (value - a) * unit, invert: (x) => a + (x - left) / unit };
}

function drawRuler(pen, scale, left, width, trace, app) {
  pen.fillStyle = COLOURS.dim;
  pen.textAlign = "center";
  const [a, b] = app.range, room = pen.measureText(app.byTime ? tickOf(b, 100) : String(Math.ceil(b))).width + 16; // for a label
  const rough = ((b - a) * room) / (width - left), power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const tick = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough));
  const first = app.byTime ? 0 : trace.steps.number[0]; // at the axis's 0
  for (let at = Math.ceil((a + first) / tick) * tick; at <= b + first; at += tick) {
    const x = scale.x(at - first) + (app.byTime ? 0 : Math.min(scale.unit, 40) / 2);
    const label = app.byTime ? tickOf(at, tick) : String(at), half = pen.measureText(label).width / 2;
    if (x < left + half || x > width - half) continue;
    pen.fillText(label, x, RULER / 2);
    line(pen, COLOURS.line, x, RULER - 4, x, RULER);
  }
}

// A place of the time axis: whole numbers, but where ticks stand closer.
function tickOf(at, tick) {
  const unit = tick >= 1e6 ? 1e6 : 1000;
  return `${(at / unit).toFixed(Math.max(0, -Math.floor(Math.log10(tick / unit) + 1e-9)))} ${unit === 1000 ? "ms" : "s"}`;
}

// Hovering tells, a click chooses the step (and a lane), dragging moves along, control and the wheel zoom.
function listenToPointer(canvas, panel, hover, choose) {
  let drag = null;
  const app = panel.app;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top, box.width];
  };
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, range: app.range.slice(), moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y, width] = at(event);
    if (!drag) return hover(event, x, y);
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 4) drag.moved = true;
    if (drag.moved) {
      tip.hide();
      const unit = (drag.range[1] - drag.range[0]) / (width - gutterOf(width));
      app.show(drag.range[0] - by * unit, drag.range[1] - by * unit);
    }
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y, width] = at(event);
    if (drag && !drag.moved && x > gutterOf(width)) {
      app.goTo(scaleOf(app, gutterOf(width), width).invert(x), panel.trace);
      choose(x, y);
      hover(event, x, y);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) return;
    event.preventDefault();
    const [x, , width] = at(event);
    app.zoom(Math.exp(event.deltaY / 300), scaleOf(app, gutterOf(width), width).invert(x));
  }, { passive: false });
}
