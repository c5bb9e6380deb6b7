// The page at /: sends a conversation to /v1/chat/completions, and shows the answer as it comes. live.js draws the engine
// beside it. Streams are read with fetch: an EventSource could not send the key.
"use strict";

const TEXTS = {
  en: {
    engine: "Engine", settings: "Settings", theme: "light or dark", temperature: "Temperature", top_p: "Top-p",
    max_tokens: "Most tokens", seed: "Seed", system: "System message", key: "API key", send: "Send", stop: "Stop",
    clear: "Clear", copy: "Copy", copied: "Copied", placeholder: "Ask something. Enter sends, Shift+Enter breaks the line.",
    empty: "Ask the model something, and watch the engine at work.", running: "Running", waiting: "Waiting",
    speed: "Tokens/s", hits: "Found in cache", preemptions: "Preemptions", steps: "Steps", last_minute: "Tokens/s, last minute",
    blocks: "KV blocks", used: "in use", shared: "shared", cached: "kept for a hit", free: "free",
    offline: "The server does not answer. The page tries again.", tokens: "tokens", cut: "stopped",
    length: "the limit of tokens was reached", prompt: "prompt of %1, of which %2 from the cache",
    replicas: "Replicas", up: "%1 running, %2 waiting", down: "down",
  },
  zh: {
    engine: "引擎", settings: "设置", theme: "浅色或深色", temperature: "温度", top_p: "Top-p", max_tokens: "最多 token 数",
    seed: "随机种子", system: "系统消息", key: "API 密钥", send: "发送", stop: "停止", clear: "清空", copy: "复制", copied: "已复制",
    placeholder: "问点什么。回车发送，Shift+回车换行。", empty: "向模型提个问题，看看引擎怎样工作。", running: "运行中", waiting: "等待中",
    speed: "token/秒", hits: "缓存命中率", preemptions: "抢占次数", steps: "步数", last_minute: "最近一分钟的 token/秒",
    blocks: "KV 块", used: "使用中", shared: "共享", cached: "留待命中", free: "空闲",
    offline: "服务器没有应答，页面会重试。", tokens: "个 token", cut: "已停止",
    length: "达到 token 上限", prompt: "提示词 %1 个 token，其中 %2 个来自缓存",
    replicas: "副本", up: "运行 %1，等待 %2", down: "已停止",
  },
};
const FIELDS = ["temperature", "top_p", "max_tokens", "seed", "system", "key"];
const $ = (id) => document.getElementById(id);
const conversation = [];
let language = "en", answering = null;

// What the browser forbids to keep (a private window) is then not kept.
const kept = {
  get(name) { try { return localStorage.getItem("folovllm." + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem("folovllm." + name, value); } catch { /* see above */ } },
};
const text = (name) => TEXTS[language][name];

function translate() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", text(element.dataset.label));
  for (const element of document.querySelectorAll("[data-placeholder]")) element.placeholder = text(element.dataset.placeholder);
  $("language").textContent = language === "en" ? "中文" : "English";
  $("language").lang = language === "en" ? "zh" : "en";
  if (newest) showReplicas(newest.replicas);
  if (!conversation.length) showEmpty();
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

function showEmpty() {
  const hint = document.createElement("p");
  hint.className = "empty";
  hint.textContent = text("empty");
  $("messages").replaceChildren(hint);
}

function addMessage(role, content) {
  if (!conversation.length) $("messages").replaceChildren();
  const box = document.createElement("article");
  box.className = "message " + role;
  const paragraph = document.createElement("p");
  paragraph.textContent = content;
  const footer = document.createElement("footer");
  box.append(paragraph, footer);
  $("messages").append(box);
  box.scrollIntoView({ block: "end" });
  return { box, paragraph, footer };
}

function finish(message, note) {
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = text("copy");
  copy.addEventListener("click", async () => {
    await copyText(message.paragraph.textContent);
    copy.textContent = text("copied");
    setTimeout(() => { copy.textContent = text("copy"); }, 1500);
  });
  const said = document.createElement("span");
  said.textContent = note;
  message.footer.replaceChildren(copy, said);
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

function body() {
  const system = $("system").value.trim();
  const asked = { messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation] };
  for (const name of FIELDS.slice(0, 4)) {
    if ($(name).value !== "") asked[name] = Number($(name).value);
  }
  return { ...asked, stream: true, stream_options: { include_usage: true } };
}

async function ask(question) {
  addMessage("user", question);
  conversation.push({ role: "user", content: question });
  const message = addMessage("assistant", "");
  answering = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  let reason = null, usage = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body()), signal: answering.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage || usage;
      for (const choice of chunk.choices) {
        message.paragraph.textContent += choice.delta.content || "";
        reason = choice.finish_reason || reason;
      }
      message.box.scrollIntoView({ block: "end" });
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      if (message.box.isConnected) conversation.pop();
      message.box.classList.add("error");
      message.paragraph.textContent = error.message;
      return;
    }
    reason = "cut";
  } finally {
    answering = null;
    $("send").hidden = false;
    $("stop").hidden = true;
  }
  if (!message.box.isConnected) return;  // the conversation was cleared meanwhile
  conversation.push({ role: "assistant", content: message.paragraph.textContent });
  const notes = [];
  if (usage) {
    notes.push(`${usage.completion_tokens} ${text("tokens")}`);
    const cached = usage.prompt_tokens_details.cached_tokens;
    if (cached) notes.push(text("prompt").replace("%1", usage.prompt_tokens).replace("%2", cached));
  }
  if (reason === "cut" || reason === "length") notes.push(text(reason));
  finish(message, notes.join(" · "));
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
    showEmpty();
  });
  addEventListener("resize", draw);
  watch();
}

start();
