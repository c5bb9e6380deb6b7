// The engine beside the conversation: what runs and waits, how fast, and who has which block, twice a second from /live.
// An answer may be over before the next look: what happened between two of them is counted from the steps in between.
// Key and the reading of streams are chat.js's.
"use strict";

const speeds = [];
let watching = null, newest = null, before = null;

function sized(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  const height = Number(canvas.dataset.height ||= canvas.height);  // in the page's pixels, as the HTML says it
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width, height };
}

function draw() {
  if (!newest || !$("engine").clientWidth) return;
  const colours = getComputedStyle(document.documentElement);
  const { pen, width, height } = sized($("blocks"));
  const cells = newest.block_map, columns = Math.max(1, Math.ceil(Math.sqrt(cells.length * width / height)));
  const rows = Math.ceil(cells.length / columns), side = Math.min(width / columns, height / rows);
  for (let place = 0; place < cells.length; place += 1) {
    pen.fillStyle = colours.getPropertyValue("--" + cells[place]);
    const x = (place % columns) * side, y = Math.floor(place / columns) * side;
    pen.fillRect(x, y, Math.max(1, side - 1), Math.max(1, side - 1));
  }
  const line = sized($("speed"));
  const top = Math.max(1, ...speeds), step = line.width / 119;
  line.pen.strokeStyle = colours.getPropertyValue("--main");
  line.pen.lineWidth = 2;
  line.pen.beginPath();
  speeds.forEach((speed, place) => {
    line.pen.lineTo((place + 120 - speeds.length) * step, line.height - 4 - (line.height - 18) * speed / top);
  });
  line.pen.stroke();
  line.pen.fillStyle = colours.getPropertyValue("--dim");
  line.pen.font = "11px system-ui, sans-serif";
  line.pen.fillText(whole(top), 2, 11);
}

// Between two looks: tokens by their counters, requests and blocks by the fullest step.
function taken(look) {
  const seconds = before ? Math.max(0.1, (performance.now() - before.at) / 1000) : 1;
  const tokens = before ? Math.max(0, look.output_tokens - before.tokens) : 0;
  before = { tokens: look.output_tokens, at: performance.now() };
  const most = (now, name) => look.new_steps.reduce((most, step) => Math.max(most, step[name]), now);
  return { ...look, speed: tokens / seconds, running: most(look.running, "running"), used: most(look.kv_blocks_used, "used") };
}

function show(look) {
  newest = look;
  $("v-running").textContent = whole(look.running);
  $("v-waiting").textContent = whole(look.waiting);
  $("v-speed").textContent = whole(look.speed);
  $("v-hits").textContent = whole(look.prefix_hit_rate * 100) + "%";
  $("v-preemptions").textContent = whole(look.preemptions);
  $("v-steps").textContent = whole(look.steps);
  const guesses = look.spec_decode, kept = guesses ? guesses.num_accepted_tokens_per_pos.reduce((a, b) => a + b, 0) : 0;
  $("guesses").hidden = !guesses;
  $("v-gained").textContent = guesses && guesses.num_drafts ? (1 + kept / guesses.num_drafts).toFixed(2) : "–";
  $("v-blocks").textContent = `${whole(look.used)} / ${whole(look.kv_blocks_total)}`;
  const first = look.first_block, cell = look.blocks_per_cell;
  const last = first && Math.min(look.kv_blocks_total, first + look.block_map.length * cell - 1);
  $("v-range").textContent = first
    ? text("block_range", whole(first), whole(last), whole(look.kv_blocks_total)) + (cell > 1 ? text("block_cells", cell) : "") : "";
  showReplicas(look.replicas);
  showDefaults();
  draw();
}

// One engine has no name, and no list. A replica that was just started may have no figures yet.
function showReplicas(replicas) {
  $("replicas-title").hidden = !replicas.length;
  $("replicas").replaceChildren(...replicas.map((replica) => {
    const row = document.createElement("li");
    const name = document.createElement("b"), said = document.createElement("span");
    row.className = replica.state;
    name.textContent = replica.name;
    said.textContent = text(replica.state, replica.running ?? "–", replica.waiting ?? "–");
    row.append(name, said);
    return row;
  }));
}

async function watch() {
  for (;;) {
    try {
      if (!$("model").textContent) {
        const models = await fetch("v1/models", { headers: headers() });
        if (models.ok) {
          const [{ id, root, max_model_len }] = (await models.json()).data;
          $("model").textContent = $("model").title = id;
          longest = max_model_len;
          model = root === "embedded" ? "embedded" : "other";
          if ($("messages").querySelector(".empty")) showEmpty();
        }
      }
      watching = new AbortController();
      const response = await fetch("live", { headers: headers(), signal: watching.signal });
      if (!response.ok) throw new Error(response.statusText);
      for await (const look of events(response)) {
        $("offline").hidden = true;
        const now = taken(look);
        speeds.push(now.speed);
        if (speeds.length > 120) speeds.shift();
        show(now);
        takeSteps(look.new_steps);
      }
    } catch { /* told below */ }
    $("offline").hidden = false;
    await new Promise((later) => { setTimeout(later, 2000); });
  }
}
