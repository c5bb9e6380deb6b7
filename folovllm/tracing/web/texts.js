"use strict";
// What the sequences of a step have said so far: the prompt, the answer, and marked what this step added. All of it goes
// in as text, never as markup.

const MOST_TEXTS = 24, MOST_CHARACTERS = 400; // of each, unless it is the chosen one

class Texts {
  constructor(panel, list) {
    this.panel = panel;
    this.list = list;
    this.section = list.closest("section");
  }

  draw() {
    const { trace, app, step, lane, isBeyond } = this.panel, key = [step, lane, isBeyond, app.language].join();
    if (key === this.drawn) return;
    this.drawn = key;
    const lanes = trace.texts ? this.lanes() : [];
    this.panel.find(".notexts").textContent = trace.texts ? (lanes.length ? "" : app.w.silent) : app.w.noTexts;
    const items = lanes.slice(0, MOST_TEXTS).map((number) => this.item(number));
    if (lanes.length > MOST_TEXTS) {
      const more = document.createElement("li");
      more.textContent = app.w.more(lanes.length - MOST_TEXTS);
      items.push(more);
    }
    this.list.replaceChildren(...items);
  }

  // The chosen one first, then those that are there at this step.
  lanes() {
    const { trace, step, lane, isBeyond } = this.panel;
    const living = isBeyond ? [] : trace.order.filter((number) => number !== lane && trace.segmentAt(trace.lanes[number], step) >= 0);
    return lane === null ? living : [lane, ...living];
  }

  item(number) {
    const { trace, app, step, lane, isBeyond } = this.panel, isChosen = number === lane;
    const request = trace.requestOf.get(trace.lanes[number].request) || {}, said = trace.texts[number] || { runs: [], pieces: [] };
    const [before, upTo] = [piecesUntil(said.runs, step - 1), piecesUntil(said.runs, step)];
    const add = (name, text, kind) => {
      const element = document.createElement(name);
      element.textContent = text;
      if (kind) element.className = kind;
      item.append(element);
    };
    const cut = (text) => (isChosen || text.length <= MOST_CHARACTERS ? text : `…${text.slice(-MOST_CHARACTERS)}`);
    const item = document.createElement("li");
    if (isChosen) item.className = "chosen-lane";
    add("b", `${number}  ${trace.lanes[number].id}  `);
    if (request.prompt) add("span", cut(request.prompt), "prompt");
    add("span", cut(said.pieces.slice(0, isBeyond ? said.pieces.length : before).join("")));
    if (!isBeyond && upTo > before) add("mark", said.pieces.slice(before, upTo).join(""));
    item.addEventListener("click", () => this.panel.choose(number));
    return item;
  }
}

// How many pieces of a sequence were drawn up to a step, that one included. runs: first step, how many, ...
function piecesUntil(runs, step) {
  let count = 0;
  for (let at = 0; at < runs.length && runs[at] <= step; at += 2) count += Math.min(runs[at + 1], step - runs[at] + 1);
  return count;
}
