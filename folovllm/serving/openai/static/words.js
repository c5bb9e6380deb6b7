// What the page says, and the questions that it offers, in two languages.
"use strict";

const TEXTS = {
  en: {
    engine: "Engine", settings: "Settings", theme: "light or dark", temperature: "Temperature", top_p: "Top-p",
    max_tokens: "Most tokens", seed: "Seed", system: "System message", key: "API key", send: "Send", stop: "Stop",
    clear: "Clear", copy: "Copy", copied: "Copied", placeholder: "Ask something. Enter sends, Shift+Enter breaks the line.",
    no_seed: "random", no_system: "none is sent", no_key: "only where the server asks for one",
    empty: "Ask the model something, and watch the engine at work.",
    small: "This model of 2 MB knows the terms of the course and tells short stories. What else it answers is not to be relied on.", running: "Running", waiting: "Waiting",
    speed: "Tokens/s", hits: "Found in cache", preemptions: "Preemptions", steps: "Steps", gained: "Tokens a draft", last_minute: "Tokens/s, last minute",
    blocks: "KV blocks", used: "in use", shared: "shared", cached: "kept for a hit", free: "free",
    block_range: "%1 to %2 of %3", block_cells: ", %1 in a cell", offline: "The server does not answer. The page tries again.",
    tokens: "%1 tokens", cut: "stopped", length: "the limit of tokens was reached", first: "first after %1", rate: "%1 tokens/s",
    found: "%1 of the prompt's %2 from the cache", replicas: "Replicas", up: "%1 running, %2 waiting", down: "down",
    eight: "Eight at once", slow: "Slow motion", walk: "The last answer, step by step", walk_eight: "The last answers, step by step",
    play: "play", pause: "pause", back: "one step back", forward: "one step on", slider: "step",
    step: "Step %1 of %2 · %3", sequences: "%1 in the batch", prefill: "prefill: %1 tokens", found_row: " (%1 found)", decode: "decode: token %1", guesses: " (%1 guessed, %2 kept)",
    more: "and %1 more", row_blocks: "%1 blocks", others: "of others", no_steps: "Ask something: its steps appear here.",
  },
  zh: {
    engine: "引擎", settings: "设置", theme: "浅色或深色", temperature: "温度", top_p: "Top-p", max_tokens: "最多 token 数",
    seed: "随机种子", system: "系统消息", key: "API 密钥", send: "发送", stop: "停止", clear: "清空", copy: "复制", copied: "已复制",
    placeholder: "问点什么。回车发送，Shift+回车换行。", no_seed: "随机", no_system: "不发送", no_key: "服务器要求时才填", empty: "向模型提个问题，看看引擎怎样工作。",
    small: "这个模型只有 2 MB，会解释课程里的术语，会讲小故事；别的回答不可靠。", running: "运行中", waiting: "等待中",
    speed: "token/秒", hits: "缓存命中率", preemptions: "抢占次数", steps: "步数", gained: "每次猜测得到的 token", last_minute: "最近一分钟的 token/秒",
    blocks: "KV 块", used: "使用中", shared: "共享", cached: "留待命中", free: "空闲",
    block_range: "第 %1 到 %2 块，共 %3 块", block_cells: "，每格 %1 块", offline: "服务器没有应答，页面会重试。",
    tokens: "%1 个 token", cut: "已停止", length: "达到 token 上限", first: "首个 token %1", rate: "%1 token/秒",
    found: "提示词 %2 个 token，其中 %1 个来自缓存", replicas: "副本", up: "运行 %1，等待 %2", down: "已停止",
    eight: "同时问八个", slow: "慢动作", walk: "上一个回答，逐步看", walk_eight: "这几个回答，逐步看",
    play: "播放", pause: "暂停", back: "后退一步", forward: "前进一步", slider: "步",
    step: "第 %1 步，共 %2 步 · %3", sequences: "批里有 %1 条", prefill: "预填充：%1 个 token", found_row: "（命中 %1 个）", decode: "解码：第 %1 个 token", guesses: "（猜 %1 个，中 %2 个）",
    more: "另有 %1 条", row_blocks: "%1 块", others: "别人的", no_steps: "问点什么，步骤就会列在这里。",
  },
};

// The small model knows the course's terms; another model is asked what any knows.
const QUESTIONS = {
  embedded: {
    en: ["What is a KV cache?", "What is continuous batching?", "What is paged attention?", "What is prefix caching?",
      "What is chunked prefill?", "What is preemption?", "What is beam search?", "Tell me a story about a cat."],
    zh: ["什么是 KV 缓存？", "什么是连续批处理？", "什么是分页注意力？", "什么是前缀缓存？",
      "什么是分块预填充？", "什么是抢占？", "什么是束搜索？", "讲一个小猫的故事。"],
  },
  other: {
    en: ["What is the capital of France?", "Why is the sky blue?", "Name three planets.", "What is a prime number?",
      "Write two lines about the sea.", "How does a bicycle stay upright?", "What do bees eat?", "Tell me a short story about a cat."],
    zh: ["法国的首都是哪里？", "天空为什么是蓝色的？", "说出三颗行星。", "什么是质数？",
      "写两句关于大海的话。", "自行车为什么不倒？", "蜜蜂吃什么？", "讲一个小猫的短故事。"],
  },
};

let language = "en";
// text("up", 3, 1): the words, with what is given in the place of %1 and %2.
const text = (name, ...given) => given.reduce((said, each, place) => said.replace(`%${place + 1}`, each), TEXTS[language][name]);
const whole = (value) => Math.round(value).toLocaleString("en");
const milliseconds = (value) => (value < 1000 ? `${whole(value)} ms` : `${(value / 1000).toFixed(2)} s`);
