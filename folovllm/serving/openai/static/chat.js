// The page at /: sends a conversation to /v1/chat/completions, or eight questions at once to /v1/completions, and shows the
// answers as they come. live.js draws the engine beside them, steps.js what it did in each step. Streams are read with
// fetch: an EventSource could not send the key.
"use strict";

const FIELDS = ["temperature", "top_p", "max_tokens", "seed", "system", "key"];
const $ = (id) => document.getElementById(id);
const conversation = [];
let model = "other", longest = 0, answering = null;

// What the browser forbids to keep (a private window) is then not kept.
const kept = {
  get(name) { try { return localStorage.getItem("folovllm." + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem("folovllm." + name, value); } catch { /* see above */ } },
};
function translate() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", text(element.dataset.label));
  for (const element of document.querySelectorAll("[data-placeholder]")) element.placeholder = text(element.dataset.placeholder);
  $("language").textContent = language === "en" ? "中文" : "English";
  $("language").lang = language === "en" ? "zh" : "en";
  if (newest) show(newest);
  if ($("messages").querySelector(".empty")) showEmpty();
  showWalk();
}

// What an empty field stands for: the server's values, of which the model's makers may have named some.
function showDefaults() {
  const made = newest.sampling_defaults;
  $("temperature").placeholder = model === "embedded" ? 0 : made.temperature ?? 1;
  $("top_p").placeholder = made.top_p ?? 1;
  $("max_tokens").placeholder = made.max_tokens ?? (longest ? `≤ ${whole(longest)}` : "");
}

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}

// The data of each server-sent event, until [DONE] or the end.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// The hint, and questions to click on.
function showEmpty() {
  const hints = ["empty", ...(model === "embedded" ? ["small"] : [])].map((name) => element("p", text(name)));
  const examples = document.createElement("div"), box = document.createElement("div");
  box.className = "empty";
  examples.className = "examples";
  for (const question of QUESTIONS[model][language].slice(0, 4)) {
    const button = element("button", question);
    button.type = "button";
    button.addEventListener("click", () => answering || ask(question));
    examples.append(button);
  }
  box.append(...hints, examples);
  $("messages").replaceChildren(box);
}

function addMessage(role, content, place) {
  $("messages").querySelector(".empty")?.remove();
  const box = document.createElement("article"), body = document.createElement("div"), footer = document.createElement("footer");
  box.className = "message " + role;
  body.className = "body";
  body.textContent = content;
  box.append(body, footer);
  (place || $("messages")).append(box);
  scrollDown();
  return { box, body, footer };
}

function scrollDown() {
  $("messages").scrollTop = $("messages").scrollHeight;
}

// An answer to be filled: `take` gets its pieces, `draw` shows so many of its tokens.
function addAnswer(place) {
  const answer = { ...addMessage("assistant", "", place), pieces: [], prompt: null, cached: 0, tokens: 0, seq: null };
  Object.assign(answer, { asked: performance.now(), first: 0, last: 0, reason: null, shown: null, text: "" });
  answer.take = (content, usage, reason) => {
    answer.last = performance.now();
    answer.first ||= answer.last;
    answer.text += content;
    answer.reason = reason || answer.reason;
    if (usage) [answer.prompt, answer.tokens] = [usage.prompt_tokens, usage.completion_tokens];
    if (usage?.prompt_tokens_details) answer.cached = usage.prompt_tokens_details.cached_tokens;
    answer.pieces.push([answer.tokens, content]);
    if (!walk.isSlow) answer.draw(Infinity);
  };
  answer.draw = (tokens) => {
    const said = answer.pieces.filter(([upTo]) => upTo <= tokens).map(([, piece]) => piece).join("");
    if (said === answer.shown) return;
    const isAtEnd = $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 80;
    answer.shown = said;
    answer.body.replaceChildren(markdown(said));
    if (isAtEnd) scrollDown();
  };
  return answer;
}

function finish(answer) {
  const copy = element("button", text("copy")), notes = [text("tokens", answer.tokens)];
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", async () => {
    await copyText(answer.text);
    copy.textContent = text("copied");
    setTimeout(() => { copy.textContent = text("copy"); }, 1500);
  });
  if (answer.first) notes.push(text("first", milliseconds(answer.first - answer.asked)));
  if (answer.tokens > 1 && answer.last > answer.first) {
    notes.push(text("rate", whole((answer.tokens - 1) * 1000 / (answer.last - answer.first))));
  }
  if (answer.cached) notes.push(text("found", answer.cached, answer.prompt));
  if (answer.reason === "cut" || answer.reason === "length") notes.push(text(answer.reason));
  answer.footer.replaceChildren(copy, ...notes.map((note) => element("span", note)));
}

async function copyText(content) {
  if (navigator.clipboard) return navigator.clipboard.writeText(content);
  const area = document.createElement("textarea");  // without https the clipboard is closed, and this way is open
  area.value = content;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// What the settings say. The small model's answers are best where nothing is drawn.
function asked() {
  const fields = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const name of FIELDS.slice(0, 4)) if ($(name).value !== "") fields[name] = Number($(name).value);
  return model === "embedded" ? { temperature: 0, ...fields } : fields;
}

function messagesOf(turns) {
  const system = $("system").value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...turns];
}

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal: answering.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

// Fills `answers` with what `request()` streams; the engine's work for them is walked through beside. False if it failed.
async function fill(answers, request) {
  answering = new AbortController();
  $("send").hidden = $("eight").disabled = true;
  $("stop").hidden = false;
  beginWalk(answers, $("slow").getAttribute("aria-pressed") === "true");
  try {
    for await (const chunk of events(await request())) {
      if (chunk.error) throw new Error(chunk.error.message);
      for (const choice of chunk.choices) {
        const content = choice.delta ? choice.delta.content : choice.text;
        answers[choice.index].take(content || "", chunk.usage, choice.finish_reason);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      endSlow();
      for (const answer of answers) {
        answer.box.classList.add("error");
        answer.body.textContent = error.message;
      }
      return false;
    }
    for (const answer of answers) answer.reason ||= "cut";
  } finally {
    answering = null;
    $("send").hidden = $("eight").disabled = false;
    $("stop").hidden = true;
    walkDone();
  }
  for (const answer of answers) finish(answer);
  scrollDown();
  return true;
}

async function ask(question) {
  addMessage("user", question);
  conversation.push({ role: "user", content: question });
  const answer = addAnswer();
  const body = { messages: messagesOf(conversation), ...asked() };
  const isThere = await fill([answer], () => post("v1/chat/completions", body));
  if (!answer.box.isConnected) return;  // the conversation was cleared meanwhile
  if (isThere) conversation.push({ role: "assistant", content: answer.text });
  else conversation.pop();
}

// One request with eight prompts: a browser opens six connections to a server at most, so eight would not run at once.
async function askEight() {
  const questions = QUESTIONS[model][language], grid = document.createElement("div");
  grid.className = "grid";
  $("messages").querySelector(".empty")?.remove();
  $("messages").append(grid);
  const answers = questions.map((question, place) => {
    const answer = addAnswer(grid);
    answer.box.prepend(element("h3", `${place + 1}  ${question}`));
    return answer;
  });
  await fill(answers, async () => {
    const prompts = await Promise.all(questions.map(async (question) => {
      const turns = messagesOf([{ role: "user", content: question }]);
      return (await (await post("tokenize", { messages: turns })).json()).tokens;
    }));
    for (const answer of answers) answer.asked = performance.now();
    return post("v1/completions", { prompt: prompts, max_tokens: 256, ...asked() });
  });
}

function toggle(button, element, change) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-expanded", String(change(element)));
    draw();
  });
}

function start() {
  language = kept.get("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
  const theme = kept.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  for (const name of FIELDS) {
    $(name).value = kept.get(name) || "";
    $(name).addEventListener("change", () => { if (name !== "key") kept.set(name, $(name).value); });
  }
  translate();
  $("language").addEventListener("click", () => {
    language = language === "en" ? "zh" : "en";
    kept.set("language", language);
    translate();
  });
  $("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    kept.set("theme", document.documentElement.dataset.theme);
    draw();
  });
  toggle($("settings-toggle"), $("settings"), (form) => { form.hidden = !form.hidden; return !form.hidden; });
  toggle($("panel-toggle"), $("engine"), (panel) => panel.classList.toggle("open"));
  $("settings").addEventListener("submit", (event) => event.preventDefault());
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = $("question").value.trim();
    if (!question || answering) return;
    $("question").value = "";
    ask(question);
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("ask").requestSubmit();
    }
  });
  // A browser that keeps the page for "back" keeps its streams open for a minute, of the few it has for a server.
  addEventListener("pagehide", () => [watching, answering].forEach((stream) => stream && stream.abort()));
  $("stop").addEventListener("click", () => answering && answering.abort());
  $("clear").addEventListener("click", () => {
    if (answering) answering.abort();
    conversation.length = 0;
    beginWalk([], false);
    showEmpty();
  });
  $("eight").addEventListener("click", askEight);
  const setSlow = (isSlow) => $("slow").setAttribute("aria-pressed", String(isSlow));
  setSlow(kept.get("slow") === "true");
  $("slow").addEventListener("click", () => {
    setSlow($("slow").getAttribute("aria-pressed") !== "true");
    kept.set("slow", $("slow").getAttribute("aria-pressed"));
  });
  listenToWalk();
  addEventListener("resize", draw);
  showEmpty();
  watch();
}

start();
