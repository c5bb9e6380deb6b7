"use strict";
// What all canvases share: their size on the screen, the colours of the theme, patterns, a bubble under the pointer.

let COLOURS = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "panel", "ink", "dim", "line", "cursor", "waiting", "prefill", "decode", "idle", "preempted", "swapped",
    "found", "shared", "copy", "free", "used", "on-dark", "on-light", "schedule", "launch", "wait", "update", "output", "median", "most"];
  COLOURS = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const FONT = '12px system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif';

// A canvas of this size in CSS pixels, cleared; returns its context.
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return pen;
}

// A bar of what a sequence does. Shape tells as well as colour: waiting is thin, idle thinner, preempted is striped, swapped dotted.
function bar(pen, kind, x, y, width, height) {
  pen.fillStyle = COLOURS[kind];
  if (kind === "waiting") return pen.fillRect(x, y + height * 0.4, width, Math.max(1, height * 0.2));
  if (kind === "idle") return pen.fillRect(x, y + height * 0.3, width, Math.max(1, height * 0.4));
  pen.fillRect(x, y, width, height);
  if (width < 6 || height < 6) return undefined;
  if (kind === "preempted") stripes(pen, x, y, width, height);
  if (kind === "swapped") dots(pen, x, y, width, height);
  return undefined;
}

function stripes(pen, x, y, width, height) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = COLOURS.page;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let at = x - height - ((x - height) % 7); at < x + width; at += 7) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

function dots(pen, x, y, width, height) {
  pen.fillStyle = COLOURS.page;
  for (let at = x + 3; at < x + width - 2; at += 7) pen.fillRect(at, y + height / 2 - 1, 2, 2);
}

function line(pen, colour, x0, y0, x1, y1) {
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

// Lines of text under the pointer. Text only: what a trace says is never markup.
const tip = {
  show(event, lines) {
    const bubble = document.getElementById("tip");
    bubble.textContent = lines.filter(Boolean).join("\n");
    bubble.hidden = false;
    const box = bubble.getBoundingClientRect();
    bubble.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 4))}px`;
    const below = event.clientY + 16;
    bubble.style.top = `${below + box.height > window.innerHeight ? Math.max(4, event.clientY - box.height - 12) : below}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};
