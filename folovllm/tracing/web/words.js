"use strict";
// What happened in a step, in words, in two languages. Everything from a trace goes in as it is, and out as text.

const WORDS = {
  en: {
    title: "A run of FoloVLLM, step by step", language: "中文", theme: { auto: "theme: auto", light: "theme: light", dark: "theme: dark" },
    timeline: "Timeline: one lane a sequence", charts: "Each step: budget, cache, time", words: "What happens in this step",
    blocks: "Block map", texts: "Texts up to this step",
    noTexts: "Not in this page: the trace was made without texts, or there was no tokenizer for it.", silent: "No text yet.",
    latencies: "Time to first token, and gaps between tokens, by request",
    keys: "Keys: ← → one step, with Shift ten · Home End · space plays · + − zoom, 0 all of it. Click: go to a step. Drag: move along.",
    byStep: "axis: steps", byTime: "axis: time", fit: "all", play: "play", pause: "pause",
    first: "to the first step", back: "one step back", forward: "one step on", slider: "step", zoomIn: "zoom in", zoomOut: "zoom out",
    kinds: { waiting: "waits", prefill: "prefill", decode: "decode", idle: "computes nothing", preempted: "preempted", swapped: "swapped",
      found: "found in the cache", shared: "shared block", findable: "free, can be found", free: "free block", copy: "copied in this step", used: "block in use" },
    where: (step, last, ms) => `step ${step} of ${last} · ${ms}`,
    facts: (h, r, s, n) => `${h.model} on ${h.device}, ${h.dtype} · ${h.num_blocks.toLocaleString()} blocks of ${h.block_size} tokens · at most ${h.max_num_batched_tokens.toLocaleString()} tokens and ${h.max_num_seqs} sequences a step · ${r} requests, ${s} sequences, ${n.toLocaleString()} steps`,
    simulated: " · simulated times", torn: " · the file's last line is cut off",
    beyond: "This trace has ended.",
    headline: (d, p, n) => [d ? `${d} decode` : "", p ? `${p} prompt ${p === 1 ? "token" : "tokens"}` : "", `${n} ${n === 1 ? "token" : "tokens"} drawn`].filter(Boolean).join(" · "),
    arrive: (s, n) => `${s} comes with a prompt of ${n} tokens`,
    found: (s, n) => `${s} finds ${n} tokens computed already`,
    chunk: (s, n, a, b, all) => n === all ? `${s} computes its prompt: ${n} tokens` : `${s} computes tokens ${a} to ${b} of its ${all}`,
    again: (s, n) => `${s} computes ${n} tokens once more`,
    fork: (p, c) => `${c} forks from ${p}: it shares its blocks and draws from the same logits`,
    branch: (p, c) => `${c} branches from ${p}, a beam: it shares its blocks`,
    copy: (s, a, b) => s ? `${s} writes into a shared block: block ${a} is copied to ${b}` : `block ${a} is copied to ${b}`,
    recompute: (s) => `${s} is preempted: its blocks are freed, to be computed again`,
    swap: (s) => `${s} is preempted: its blocks move to the swap space`,
    moved: (n) => `${n} ${n === 1 ? "block moves" : "blocks move"} out`,
    resume: (s) => `${s} comes back from the swap space`,
    decode: (n, names) => `${n} ${n === 1 ? "sequence decodes" : "sequences decode"}: ${names}`,
    draft: (s, n, m) => `${s} verifies ${n} draft token${n === 1 ? "" : "s"}: ${m} accepted`,
    kept: (n, names) => `${n === 1 ? "block" : "blocks"} ${names} can be found from here on`,
    evict: (n, names) => `${n === 1 ? "block" : "blocks"} ${names} can be found no more: handed out`,
    forgot: () => "the prefix cache was reset", restart: () => "a step failed: all requests wait again", failed: () => "this step failed",
    end: { stop: (s) => `${s} ends: a stop token or string`, length: (s) => `${s} ends: its length`, abort: (s) => `${s} is aborted`, ignored: (s) => `${s} ends and is not returned`, error: (s) => `${s} ends in an error` },
    waits: (n) => `${n} ${n === 1 ? "request waits" : "requests wait"}`, more: (n) => `and ${n} more`,
    seq: (n) => `sequence ${n}`, blockline: (u, s, c, f) => `${u} in use, ${s} of them shared · ${c} free and findable · ${f} free`,
    never: (n) => ` · ${n.toLocaleString()} more are never used`, list: ", ", block: (b) => `block ${b}`, owner: (n, p) => `sequence ${n}, place ${p}`,
    isFindable: "can be found by its content", isFree: "free", copied: (a) => `copy of ${a}`,
    doing: (k, a, n) => n > 1 ? `${k}: tokens ${a} to ${a + n - 1}` : n ? `${k}: token ${a}` : k,
    tableOf: (n, names) => n ? `${n} ${n === 1 ? "block" : "blocks"}: ${names}` : "no blocks", foundLane: (n) => `${n} tokens found in the cache`,
    prompt: (p) => `prompt: ${p}`, budget: "tokens", cache: "blocks", time: "time",
    chart: { prefill: "prefill", decode: "decode", used: "in use", findable: "free, findable", schedule: "schedule", launch: "launch (on a CPU: the forward)", wait: "wait for the device", update: "update", output: "output" },
    ttft: "first token after", gap: "gaps: dark the median, light 95%, the line the longest", chosen: (r, t, g) => `${r}: first token after ${t}${g ? `; gaps ${g}` : ""}`,
  },
  zh: {
    title: "FoloVLLM 的一次运行，逐步看", language: "English", theme: { auto: "主题：自动", light: "主题：浅色", dark: "主题：深色" },
    timeline: "时间线：一条序列一行", charts: "每一步：预算、缓存、用时", words: "这一步发生了什么",
    blocks: "块的分布", texts: "到这一步为止的文字",
    noTexts: "这一页没有文字：记录时没有保存，或者找不到分词器（tokenizer）。", silent: "还没有任何文字。",
    latencies: "各请求首个 token 的用时与相邻 token 的间隔",
    keys: "按键：← → 前后一步，加 Shift 为十步 · Home End 到头到尾 · 空格播放 · + − 缩放，0 看全部。单击跳到某一步，拖动平移。",
    byStep: "横轴：步", byTime: "横轴：时间", fit: "全部", play: "播放", pause: "暂停",
    first: "到第一步", back: "后退一步", forward: "前进一步", slider: "步", zoomIn: "放大", zoomOut: "缩小",
    kinds: { waiting: "等待", prefill: "prefill", decode: "decode", idle: "这一步不计算", preempted: "被抢占", swapped: "已换出",
      found: "命中缓存", shared: "共享的块", findable: "空闲、可再次找到", free: "空闲的块", copy: "这一步里复制出来的", used: "在用的块" },
    where: (step, last, ms) => `第 ${step} 步，共 ${last} 步 · ${ms}`,
    facts: (h, r, s, n) => `${h.model}，${h.device}，${h.dtype} · ${h.num_blocks.toLocaleString()} 块，每块 ${h.block_size} 个 token · 每步至多 ${h.max_num_batched_tokens.toLocaleString()} 个 token、${h.max_num_seqs} 条序列 · ${r} 个请求，${s} 条序列，${n.toLocaleString()} 步`,
    simulated: " · 时间是模拟的", torn: " · 文件最后一行不完整",
    beyond: "这份记录到此为止。",
    headline: (d, p, n) => [d ? `${d} 条序列 decode` : "", p ? `prefill ${p} 个 token` : "", `得到 ${n} 个新 token`].filter(Boolean).join(" · "),
    arrive: (s, n) => `${s}到来，提示词有 ${n} 个 token`,
    found: (s, n) => `${s}有 ${n} 个 token 已经算过，直接取用`,
    chunk: (s, n, a, b, all) => n === all ? `${s}计算整个提示词：${n} 个 token` : `${s}计算第 ${a} 到第 ${b} 个 token，共 ${all} 个`,
    again: (s, n) => `${s}重新计算 ${n} 个 token`,
    fork: (p, c) => `${c}从${p}分叉：共享它的块，用同一份 logits 采样`,
    branch: (p, c) => `${c}从束${p}分出：共享它的块`,
    copy: (s, a, b) => s ? `${s}要写共享的块：先把块 ${a} 复制到 ${b}` : `块 ${a} 复制到 ${b}`,
    recompute: (s) => `${s}被抢占：块被释放，以后重算`,
    swap: (s) => `${s}被抢占：块换出到内存`,
    moved: (n) => `换出 ${n} 块`,
    resume: (s) => `${s}从内存换回`,
    decode: (n, names) => `${n} 条序列 decode：${names}`,
    draft: (s, n, m) => `${s}验证 ${n} 个草稿 token：接受 ${m} 个`,
    kept: (n, names) => `块 ${names} 从此可以按内容找到`,
    evict: (n, names) => `块 ${names} 被分配出去，不再能找到`,
    forgot: () => "前缀缓存被清空", restart: () => "有一步失败了：所有请求重新等待", failed: () => "这一步失败了",
    end: { stop: (s) => `${s}结束：遇到停止 token 或停止字符串`, length: (s) => `${s}结束：达到长度上限`, abort: (s) => `${s}被中止`, ignored: (s) => `${s}结束，不返回`, error: (s) => `${s}出错结束` },
    waits: (n) => `${n} 个请求在等待`, more: (n) => `另有 ${n} 条`,
    seq: (n) => `序列 ${n} `, blockline: (u, s, c, f) => `在用 ${u} 块，其中共享 ${s} 块 · 空闲可找到 ${c} 块 · 空闲 ${f} 块`,
    never: (n) => ` · 另有 ${n.toLocaleString()} 块从未用到`, list: "、", block: (b) => `块 ${b}`, owner: (n, p) => `序列 ${n}，块表第 ${p} 项`,
    isFindable: "可按内容找到", isFree: "空闲", copied: (a) => `由块 ${a} 复制而来`,
    doing: (k, a, n) => n > 1 ? `${k}：第 ${a} 到第 ${a + n - 1} 个 token` : n ? `${k}：第 ${a} 个 token` : k,
    tableOf: (n, names) => n ? `${n} 块：${names}` : "没有块", foundLane: (n) => `${n} 个 token 命中缓存`,
    prompt: (p) => `提示词：${p}`, budget: "token 数", cache: "块数", time: "用时",
    chart: { prefill: "prefill", decode: "decode", used: "在用", findable: "空闲、可找到", schedule: "调度", launch: "发起（CPU 上即前向计算）", wait: "等设备", update: "更新", output: "输出" },
    ttft: "首个 token 用时", gap: "间隔：深色为中位数，浅色为 95%，横线为最长", chosen: (r, t, g) => `${r}：首个 token 用时 ${t}${g ? `；间隔 ${g}` : ""}`,
  },
};

const MOST_LINES = 60; // of one step; more are counted
const MOST_NAMES = 24;

// A time of so many microseconds, with as many digits as `most`, the largest of those that stand beside it, has three.
function milliseconds(us, most = us) {
  const ms = most / 1000;
  return ms >= 1000 ? `${(us / 1e6).toFixed(2)} s` : `${(us / 1000).toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

function listed(names, w) {
  const shown = names.slice(0, MOST_NAMES).join(w.list);
  return names.length > MOST_NAMES ? `${shown}${w.list}${w.more(names.length - MOST_NAMES)}` : shown;
}

// [{kind, text}] for one step of a trace.
function describe(trace, step, w) {
  const news = trace.news[step], lines = [];
  const say = (kind, text) => lines.push({ kind, text });
  const promptOf = (lane) => (trace.requestOf.get(trace.lanes[lane].request) || { prompt_tokens: 0 }).prompt_tokens;
  if (news.restarted) say("preempted", w.restart());
  if (news.forgotten) say("found", w.forgot());
  for (const [lane] of news.seqs || []) {
    const isForked = [...(news.forks || []), ...(news.branched || [])].some(([, child]) => child === lane);
    const siblings = trace.lanes.length > lane && lane > 0 && trace.lanes[lane - 1].request === trace.lanes[lane].request;
    if (!isForked && !siblings) say("waiting", w.arrive(w.seq(lane), promptOf(lane)));
  }
  for (const [lane, reason] of news.left || []) say("end", w.end[reason](w.seq(lane)));
  for (const [lane, how] of news.preempted || []) say(how === "swap" ? "swapped" : "preempted", (how === "swap" ? w.swap : w.recompute)(w.seq(lane)));
  if (news.swapped_out) say("swapped", w.moved(news.swapped_out.length));
  for (const lane of news.resumed || []) say("swapped", w.resume(w.seq(lane)));
  for (const [parent, child] of news.branched || []) say("shared", w.branch(w.seq(parent), w.seq(child)));
  for (const [lane, num] of news.found || []) say("found", w.found(w.seq(lane), num));
  for (const [lane, start, num] of news.prefill || []) {
    const all = promptOf(lane);
    if (start + num > all) say("prefill", w.again(w.seq(lane), num));
    else say("prefill", w.chunk(w.seq(lane), num, start, start + num - 1, all));
  }
  for (const [parent, child] of news.forks || []) say("shared", w.fork(w.seq(parent), w.seq(child)));
  for (const [from, to] of news.copies || []) {
    const writer = (news.tables || []).find(([, , blocks]) => blocks.includes(to));
    say("copy", w.copy(writer ? w.seq(writer[0]) : "", from, to));
  }
  const decoding = decodingAt(trace, step);
  if (decoding.length) say("decode", w.decode(decoding.length, listed(decoding, w)));
  for (const [lane, num] of news.drafted || []) say("decode", w.draft(w.seq(lane), num, (news.later || []).filter(([of]) => of === lane).length));
  if (news.evicted) say("waiting", w.evict(news.evicted.length, listed(news.evicted, w)));
  if (news.kept) say("found", w.kept(news.kept.length, listed(news.kept, w)));
  if (trace.steps.waiting[step]) say("waiting", w.waits(trace.steps.waiting[step]));
  for (const [lane, reason] of news.ended || []) say("end", w.end[reason](w.seq(lane)));
  if (news.failed) say("preempted", w.failed());
  if (lines.length > MOST_LINES) lines.splice(MOST_LINES, Infinity, { kind: "end", text: w.more(lines.length - MOST_LINES) });
  return lines;
}

function decodingAt(trace, step) {
  const decoding = [];
  trace.lanes.forEach((lane, number) => {
    const at = trace.segmentAt(lane, step);
    if (at >= 0 && KINDS[lane.segments[at]] === "decode") decoding.push(number);
  });
  return decoding;
}
