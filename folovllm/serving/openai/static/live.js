// The engine beside the conversation: what runs and waits, how fast, and who has which block, twice a second from /live.
// Words, key and the reading of streams are chat.js's.
"use strict";

const speeds = [];
let watching = null, newest = null;

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
  line.pen.fillText(Math.round(top).toLocaleString(), 2, 11);
}

function show(look) {
  newest = look;
  const number = (value) => Math.round(value).toLocaleString();
  $("v-running").textContent = number(look.running);
  $("v-waiting").textContent = number(look.waiting);
  $("v-speed").textContent = number(look.tokens_per_s);
  $("v-hits").textContent = Math.round(look.prefix_hit_rate * 100) + "%";
  $("v-preemptions").textContent = number(look.preemptions);
  $("v-steps").textContent = number(look.steps);
  $("v-blocks").textContent = `${number(look.kv_blocks_used)} / ${number(look.kv_blocks_total)}`;
  speeds.push(look.tokens_per_s);
  if (speeds.length > 120) speeds.shift();
  showReplicas(look.replicas);
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
    said.textContent = text(replica.state).replace("%1", replica.running ?? "–").replace("%2", replica.waiting ?? "–");
    row.append(name, said);
    return row;
  }));
}

async function watch() {
  for (;;) {
    try {
      if (!$("model").textContent) {
        const models = await fetch("v1/models", { headers: headers() });
        if (models.ok) $("model").textContent = (await models.json()).data[0].id;
      }
      watching = new AbortController();
      const response = await fetch("live", { headers: headers(), signal: watching.signal });
      if (!response.ok) throw new Error(response.statusText);
      for await (const look of events(response)) {
        $("offline").hidden = true;
        show(look);
      }
    } catch { /* told below */ }
    $("offline").hidden = false;
    await new Promise((later) => { setTimeout(later, 2000); });
  }
}
