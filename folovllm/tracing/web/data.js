"use strict";
// A trace in the page: who does what at a step, whose blocks are whose, where a step lies on the axis.

const KINDS = ["waiting", "prefill", "decode", "idle", "preempted", "swapped"];
const PARTS = ["schedule", "launch", "wait", "update", "output"];
const FIELDS = 5; // numbers of a segment: kind, first step, last step, tokens before it, tokens in it

class TraceData {
  constructor(data) {
    Object.assign(this, data);
    this.count = this.steps.t.length;
    this.requestOf = new Map(this.requests.map((request) => [request.number, request]));
    const { t, times } = this.steps;
    const last = this.count - 1;
    this.end = this.count ? t[last] + times.slice(last * 5).reduce((a, b) => a + b, 0) : 1;
    // Lanes of one request stand together: a fork beside its parent.
    this.order = this.lanes.map((_, lane) => lane).sort((a, b) => this.lanes[a].request - this.lanes[b].request || a - b);
    this.topBlock = 1; // no block beyond it is ever used
    for (const news of this.news) {
      for (const [, , blocks] of news.tables || []) for (const block of blocks) this.topBlock = Math.max(this.topBlock, block);
    }
    this.makeKeyframes();
  }

  // The segment of a lane at a step: the index of its first number, or -1.
  segmentAt(lane, step) {
    const at = this.segmentFrom(lane, step);
    return at < lane.segments.length && lane.segments[at + 1] <= step ? at : -1;
  }

  // The first segment that does not end before the step.
  segmentFrom(lane, step) {
    const segments = lane.segments;
    let low = 0, high = segments.length / FIELDS;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (segments[middle * FIELDS + 2] < step) low = middle + 1;
      else high = middle;
    }
    return low * FIELDS;
  }

  // Tokens that a lane has computed before a step, and how many it computes in it.
  tokensAt(lane, step) {
    const at = this.segmentAt(lane, step);
    if (at < 0) return null;
    const [kind, first, last, start, num] = lane.segments.slice(at, at + FIELDS);
    const name = KINDS[kind];
    if (name === "decode" && last > first) return { kind: name, start: start + step - first, num: 1 };
    return { kind: name, start, num };
  }

  // The axis counts steps, or microseconds.
  left(step, byTime) { return byTime ? this.steps.t[step] : step; }
  right(step, byTime) {
    if (!byTime) return step + 1;
    return step + 1 < this.count ? Math.max(this.steps.t[step + 1], this.steps.t[step]) : this.end;
  }
  extent(byTime) { return byTime ? this.end : this.count; }

  // The step at a place of the axis, within the trace.
  stepAt(x, byTime) {
    if (!byTime) return Math.max(0, Math.min(this.count - 1, Math.floor(x)));
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps.t[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  // Block tables and findable blocks while a step computes: {tables: Map(lane -> blocks), findable: Set}.
  stateAt(step) {
    if (this.state === undefined || step < this.state.step || step - this.state.step > this.every) {
      const frame = this.frames[Math.floor(step / this.every)];
      this.state = {
        step: frame.step,
        tables: new Map(frame.tables.map(([lane, blocks]) => [lane, blocks.slice()])),
        findable: new Set(frame.findable),
      };
    }
    while (this.state.step < step) this.apply(this.state, this.state.step + 1);
    return this.state;
  }

  // A whole state every so many steps: going back starts from one of them.
  makeKeyframes() {
    this.every = Math.max(16, Math.ceil(this.count / 64));
    this.frames = [];
    const state = { step: -1, tables: new Map(), findable: new Set() };
    for (let step = 0; step < this.count; step++) {
      this.apply(state, step);
      if (step % this.every === 0) {
        this.frames.push({
          step,
          tables: Array.from(state.tables, ([lane, blocks]) => [lane, blocks.slice()]),
          findable: Int32Array.from(state.findable),
        });
      }
    }
  }

  apply(state, step) {
    const news = this.news[step];
    if (news.restarted) state.tables.clear();
    if (news.restarted || news.forgotten) state.findable.clear();
    for (const block of news.kept || []) state.findable.add(block);
    for (const block of news.evicted || []) state.findable.delete(block);
    for (const [lane, place, blocks] of news.tables || []) {
      const table = (state.tables.get(lane) || []).slice(0, place).concat(blocks);
      if (table.length) state.tables.set(lane, table);
      else state.tables.delete(lane);
    }
    state.step = step;
  }

  // When the tokens of a step had come.
  drawnAt(step) {
    const times = this.steps.times;
    return this.steps.t[step] + times[step * 5] + times[step * 5 + 1] + times[step * 5 + 2] + times[step * 5 + 3];
  }
}
