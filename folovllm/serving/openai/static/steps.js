// The steps of the last answers, one after the other: what the batch computes in each, and the texts as far as they had
// come. In slow motion the texts wait for it.
"use strict";

const PACE = 250, MOST_ROWS = 12;  // milliseconds that a step is shown when it is played
const walk = { steps: [], answers: [], at: -1, timer: null, isSlow: false, isDone: true, looks: 0 };

// `answers` are about to be computed; each is {prompt, pieces, seq, draw(tokens)}, and gets its `seq` here.
function beginWalk(answers, isSlow) {
  stopWalk();
  Object.assign(walk, { steps: [], answers, at: -1, isSlow, isDone: false, looks: 0 });
  if (isSlow) playWalk();
  showWalk();
}

// What comes from /live: each step has `rows` of [sequence, tokens before, tokens in it, of the prompt, blocks, tokens drawn].
function takeSteps(steps) {
  walk.steps.push(...steps);
  for (const { rows } of walk.steps) {
    for (const [seq, , , prompt] of rows) {
      if (walk.answers.some((answer) => answer.seq === seq)) continue;
      const answer = walk.answers.find((each) => each.seq === null && each.prompt === prompt);
      if (answer) answer.seq = seq;
    }
  }
  if (walk.isDone) walk.looks += 1;
  if (walk.isSlow && walk.looks > 1 && !ownSteps().length) endSlow();  // of an engine that tells no steps
  if (!walk.timer && !walk.isSlow) walk.at = ownSteps().length - 1;
  showWalk();
}

function ownSteps() {
  const own = new Set(walk.answers.map((answer) => answer.seq));
  return walk.steps.filter(({ rows }) => rows.some(([seq]) => own.has(seq)));
}

function walkDone() {
  walk.isDone = true;
  showWalk();
}

function goTo(at) {
  const steps = ownSteps();
  walk.at = Math.max(-1, Math.min(steps.length - 1, at));
  for (const answer of walk.answers) {
    const drawn = steps.slice(0, walk.at + 1).flatMap(({ rows }) => rows)
      .reduce((count, [seq, , , , , draws]) => count + (seq === answer.seq ? draws : 0), 0);
    answer.draw(walk.isDone && walk.at === steps.length - 1 ? Infinity : drawn);
  }
  showWalk();
}

function playWalk() {
  if (walk.at >= ownSteps().length - 1 && walk.isDone) walk.at = -1;
  walk.timer = setInterval(() => {
    const last = ownSteps().length - 1;
    if (walk.at < last) goTo(walk.at + 1);
    if (walk.isDone && walk.looks > 1 && walk.at >= ownSteps().length - 1) endSlow();
  }, PACE);
  showWalk();
}

function stopWalk() {
  clearInterval(walk.timer);
  walk.timer = null;
}

function endSlow() {
  stopWalk();
  walk.isSlow = false;
  for (const answer of walk.answers) answer.draw(Infinity);
  showWalk();
}

function showWalk() {
  const steps = ownSteps(), step = steps[walk.at];
  $("walk").hidden = !steps.length;
  $("walk-hint").hidden = steps.length > 0;
  $("walk-title").textContent = text(walk.answers.length > 1 ? "walk_eight" : "walk");
  $("walk-slider").max = Math.max(0, steps.length - 1);
  $("walk-slider").value = Math.max(0, walk.at);
  $("walk-play").textContent = walk.timer ? "❚❚" : "▶";
  $("walk-play").setAttribute("aria-label", text(walk.timer ? "pause" : "play"));
  for (const answer of walk.answers) {
    answer.box.classList.toggle("now", !!walk.timer && !!step && step.rows.some(([seq]) => seq === answer.seq));
  }
  $("walk-said").textContent = step ? text("step", walk.at + 1, steps.length, text("sequences", step.rows.length)) : "";
  $("walk-rows").replaceChildren(...(step ? rowsOf(step) : []));
}

function rowsOf(step) {
  const items = step.rows.slice(0, MOST_ROWS).map(([seq, start, num, prompt, blocks, draws]) => {
    const place = walk.answers.findIndex((answer) => answer.seq === seq), isPrefill = start < prompt;
    const item = document.createElement("li"), name = document.createElement("b"), said = document.createElement("span"), bar = document.createElement("i");
    item.className = isPrefill ? "prefill" : "decode";
    name.textContent = place < 0 ? text("others") : walk.answers.length > 1 ? place + 1 : "";
    said.textContent = isPrefill ? text("prefill", num) + (start ? text("found_row", start) : "") : text("decode", start - prompt + 2) + (num > 1 ? text("guesses", num - 1, draws - 1) : "");
    bar.style.setProperty("--blocks", Math.min(blocks, 24));
    bar.title = text("row_blocks", blocks);
    item.append(name, said, bar);
    return item;
  });
  if (step.rows.length > MOST_ROWS) {
    const more = document.createElement("li");
    more.textContent = text("more", step.rows.length - MOST_ROWS);
    items.push(more);
  }
  return items;
}

function listenToWalk() {
  const to = (at) => { stopWalk(); walk.isSlow = false; goTo(at); };
  $("walk-back").addEventListener("click", () => to(Math.max(0, walk.at - 1)));
  $("walk-forward").addEventListener("click", () => to(walk.at + 1));
  $("walk-slider").addEventListener("input", (event) => to(Number(event.target.value)));
  $("walk-play").addEventListener("click", () => (walk.timer ? (stopWalk(), showWalk()) : playWalk()));
}
