"use strict";
// A column for each request: above, how long its first token took; below, the gaps between its tokens.

class Latencies {
  constructor(panel, canvas) {
    this.panel = panel;
    this.canvas = canvas;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("click", (event) => {
      const request = this.requestAt(event);
      const lane = request ? this.laneOf(request) : -1;
      if (lane >= 0) panel.choose(lane);
    });
  }

  laneOf(request) { return this.panel.trace.lanes.findIndex((lane) => lane.request === request.number); }

  width() { return this.canvas.parentElement.clientWidth; }

  columnWidth() { return (this.width() - gutterOf(this.width())) / Math.max(1, this.panel.trace.requests.length); }

  draw() {
    const { requests } = this.panel.trace, w = this.panel.app.w, width = this.width(), left = gutterOf(width), column = this.columnWidth();
    const key = [width, this.panel.lane, this.panel.app.language, COLOURS.page].join();
    if (key === this.drawn) return; // it does not change with the step
    this.drawn = key;
    const pen = prepare(this.canvas, width, column > 16 ? 170 : 150), half = 75, height = 56;
    const most = requests.reduce((a, request) => Math.max(a, request.ttft || 0), 1);
    const longest = requests.reduce((a, request) => Math.max(a, request.gaps ? request.gaps[2] : 0), 1);
    const chosen = this.panel.lane === null ? null : this.panel.trace.lanes[this.panel.lane].request;
    requests.forEach((request, i) => {
      const bar_ = Math.max(1, Math.min(120, column - (column > 3 ? 1 : 0))), x = left + i * column + (column > 121 ? (column - bar_) / 2 : 0), up = (value, all) => (value / all) * height;
      if (request.number === chosen) {
        pen.fillStyle = COLOURS.idle;
        pen.fillRect(x, 0, bar_, 150);
      }
      if (request.ttft !== null) {
        pen.fillStyle = COLOURS.median;
        pen.fillRect(x, half - 4 - up(request.ttft, most), bar_, Math.max(1, up(request.ttft, most)));
      }
      if (column > 16) {
        const fits = pen.measureText(request.id).width < 1.25 * (column - 4), lane = this.laneOf(request);
        pen.fillStyle = COLOURS.dim;
        pen.textAlign = "center";
        pen.fillText(fits || lane < 0 ? request.id : lane, x + bar_ / 2, 160, column - 4);
      }
      if (request.gaps) {
        const [median, high, max] = request.gaps.map((gap) => up(gap, longest)), bottom = 146;
        pen.fillStyle = COLOURS.most;
        pen.fillRect(x, bottom - high, bar_, Math.max(1, high));
        pen.fillStyle = COLOURS.median;
        pen.fillRect(x, bottom - median, bar_, Math.max(1, median));
        pen.fillStyle = COLOURS.ink;
        pen.fillRect(x, bottom - max - 1, bar_, 2);
      }
    });
    pen.fillStyle = COLOURS.dim;
    pen.textAlign = "left";
    const both = Math.max(most, longest);
    const [above, below] = left > 50 ? [20, 96] : [7, 80]; // beside the longest bars, or over them
    pen.fillText(milliseconds(most, both), 2, above);
    pen.fillText(milliseconds(longest, both), 2, below);
    line(pen, COLOURS.line, left, half - 3.5, width, half - 3.5);
    this.panel.find(".chosen").textContent = chosen === null ? `${w.ttft} · ${w.gap}` : this.describe(this.panel.trace.requestOf.get(chosen)).join(" · ");
  }

  describe(request) {
    const w = this.panel.app.w;
    if (!request) return [];
    const most = Math.max(request.ttft || 0, ...(request.gaps || []));
    const ttft = request.ttft === null ? "–" : milliseconds(request.ttft, most);
    return [
      w.chosen(request.id, ttft, request.gaps ? request.gaps.map((gap) => milliseconds(gap, most)).join(" / ") : ""),
      request.prompt === null ? "" : w.prompt(request.prompt),
    ].filter(Boolean);
  }

  requestAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.panel.trace.requests[Math.floor((event.clientX - box.left - gutterOf(this.width())) / this.columnWidth())];
  }

  hover(event) {
    const request = this.requestAt(event);
    if (!request) return tip.hide();
    return tip.show(event, [...this.describe(request), `${this.panel.app.w.ttft} · ${this.panel.app.w.gap}`]);
  }
}
