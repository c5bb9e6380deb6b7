"use strict";
// The block map: a cell for each block that is ever used, as it is while the step computes.

class Blocks {
  constructor(panel, box) {
    this.panel = panel;
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.canvas.addEventListener("click", (event) => {
      const owners = this.ownersOf(this.blockAt(event));
      if (owners.length) panel.choose(owners[0][0]);
    });
  }

  layout() {
    const count = this.panel.trace.topBlock, width = this.box.clientWidth;
    let cell = Math.max(28, Math.min(52, Math.floor(width / count)));
    while (cell > 5 && Math.ceil(count / Math.floor(width / cell)) * cell > 330) cell -= 1;
    const columns = Math.max(1, Math.floor(width / cell));
    return { count, width, cell, columns, height: Math.min(16000, Math.ceil(count / columns) * cell) };
  }

  draw() {
    const { trace, app, step, lane, isBeyond } = this.panel, { count, width, cell, columns, height } = this.layout();
    const pen = prepare(this.canvas, width, height), state = trace.stateAt(step);
    const refs = new Int32Array(count + 1), owner = new Int32Array(count + 1); // how many tables name it, and the last of them
    if (!isBeyond) {
      for (const [number, table] of state.tables) {
        for (const block of table) {
          refs[block] += 1;
          owner[block] = number;
        }
      }
    }
    this.copies = new Map((trace.news[step].copies || []).map(([from, to]) => [to, from]));
    const size = cell - (cell > 8 ? 2 : 1), place = (block) => [((block - 1) % columns) * cell, Math.floor((block - 1) / columns) * cell];
    // One colour after the other: changing the pen costs more than a cell.
    const groups = { free: [], found: [], used: [], neighbour: [], shared: [] }, dotted = [];
    let used = 0;
    for (let block = 1; block <= count; block++) {
      const findable = !isBeyond && state.findable.has(block);
      if (refs[block]) used += 1;
      if (refs[block] && findable) dotted.push(block);
      const group = refs[block] > 1 ? "shared" : refs[block] ? (owner[block] % 2 ? "neighbour" : "used") : findable ? "found" : "free";
      groups[group].push(block);
    }
    for (const [group, blocks] of Object.entries(groups)) {
      pen.fillStyle = COLOURS[group === "neighbour" ? "used" : group];
      pen.globalAlpha = group === "neighbour" ? 0.78 : 1; // neighbours of two owners differ a little
      this.fill(pen, blocks, place, 0, size, size);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = COLOURS.found; // in use, and can be found
    if (size > 8) this.fill(pen, dotted, place, size - 4, size, 4);
    if (size >= 17) this.drawNumbers(pen, place, size, refs, owner);
    for (const block of this.copies.keys()) this.frame(pen, COLOURS.copy, ...place(block), size);
    for (const block of (!isBeyond && state.tables.get(lane)) || []) this.frame(pen, COLOURS.cursor, ...place(block), size);
    const all = trace.header.num_blocks, idle = groups.found.length, beyond = all > count ? app.w.never(all - count) : "";
    this.panel.find(".blockline").textContent = app.w.blockline(used, groups.shared.length, idle, all - used - idle) + beyond;
  }

  fill(pen, blocks, place, down, width, height) {
    pen.beginPath();
    for (const block of blocks) {
      const [x, y] = place(block);
      pen.rect(x, y + down, width, height);
    }
    pen.fill();
  }

  // Whose a block is; of a shared one, how many share it.
  drawNumbers(pen, place, size, refs, owner) {
    pen.textAlign = "center";
    refs.forEach((count, block) => {
      if (!count) return;
      const [x, y] = place(block);
      pen.fillStyle = COLOURS[count > 1 ? "on-light" : "on-dark"];
      pen.fillText(count > 1 ? `×${count}` : String(owner[block]), x + size / 2, y + size / 2, size);
    });
  }

  // [[lane, place], ...] of the tables that name a block at this step.
  ownersOf(block) {
    if (this.panel.isBeyond || block === null) return [];
    return Array.from(this.panel.trace.stateAt(this.panel.step).tables, ([lane, table]) => [lane, table.indexOf(block)])
      .filter(([, place]) => place >= 0);
  }

  frame(pen, colour, x, y, size) {
    pen.strokeStyle = colour;
    pen.lineWidth = size > 12 ? 3 : 2;
    pen.strokeRect(x + 1, y + 1, size - 2, size - 2);
    pen.lineWidth = 1;
  }

  blockAt(event) {
    const box = this.canvas.getBoundingClientRect(), { cell, columns, count } = this.layout();
    const column = Math.floor((event.clientX - box.left) / cell);
    const block = Math.floor((event.clientY - box.top) / cell) * columns + column + 1;
    return column < columns && block <= count ? block : null;
  }

  hover(event) {
    const block = this.blockAt(event), w = this.panel.app.w;
    if (block === null) return tip.hide();
    const owners = this.ownersOf(block), findable = this.panel.trace.stateAt(this.panel.step).findable.has(block);
    return tip.show(event, [
      w.block(block),
      ...owners.slice(0, 12).map(([lane, place]) => w.owner(lane, place)),
      owners.length > 12 && w.more(owners.length - 12),
      !owners.length && w.isFree,
      findable && w.isFindable,
      this.copies.has(block) && w.copied(this.copies.get(block)),
    ]);
  }
}
