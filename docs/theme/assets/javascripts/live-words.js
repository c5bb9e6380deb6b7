// What a live box says of a step: who computes what, who waits and why, and where the blocks are.
LIVE.words = (() => {
  const { say, element } = LIVE;
  const WHY = {
    budget: () => say("too little of the budget is left", "预算剩得不够"),
    seqs: () => say("as many sequences run as may", "同时运行的序列已到上限"),
    blocks: () => say("there are too few free blocks", "空闲块不够"),
    preemption: () => say("no request comes in while another gives way", "有请求让位的这一步，其他请求都不能加入"),
    "passed over": () => say("this step passes it over", "这一步跳过了它"),
    swapped: () => say("its blocks lie in the swap space", "它的块在交换空间里"),
    "gave way": () => say("it gave its blocks back", "它交回了自己的块"),
  };
  const why = (reason) => {
    if (reason in WHY) return WHY[reason]();
    const first = reason.replace("behind ", "");
    return say(`${first} is before it in the line`, `${first} 排在它前面`);
  };

  function words(box, step) {
    const parts = box.trace.steps[step - 1];
    const { waits, ended, free, kept, evicted } = box.trace.more[step - 1];
    const lines = parts.filter((part) => part.n).map((part) => [part.r, work(box, part, step)]);
    for (const [name, reason] of Object.entries(waits)) {
      const sign = reason === "gave way" ? say("gives way", "让位") : say("waits", "等待");
      lines.push([name, `${sign}${say(": ", "：")}${why(reason)}`]);
    }
    for (const name of ended) lines.push([name, say("has ended after this step", "在这一步之后结束")]);
    const total = parts.reduce((sum, part) => sum + part.n, 0);
    const list = lines.map(([name, words]) => element("li", {}, element("b", {}, name), ` ${words}`));
    const sum = say(`${total} of ${box.spec.budget} tokens`, `预算 ${box.spec.budget} 个 token，用了 ${total} 个`);
    const told = [element("ul", {}, ...list, element("li", {}, sum))];
    if (free === null) return told;
    const tables = parts.map((part) => `${part.r} [${part.blocks.join(", ")}]`).join("  ");
    const line = (words, value) => element("div", {}, `${words}${say(": ", "：")}`, element("code", {}, value));
    told.push(line(say("block tables", "块表"), tables || "–"));
    told.push(line(say("free, the next first", "空闲块，先用的在前"), free.join(" ") || "–"));
    if (box.spec.caching && box.milestone >= 6) {
      told.push(line(say("of these with a content that can be found", "其中内容还找得到的"), kept.join(" ") || "–"));
      told.push(line(say("evicted so far", "至此已淘汰"), evicted));
    }
    return told;
  }

  function work(box, { r, start, n }, step) {
    const [, prompt] = box.trace.requests.find(([name]) => name === r) ?? [r, 0];
    const before = box.trace.steps.slice(0, step - 1).flat().some((part) => part.r === r && part.n);
    if (start >= prompt && n === 1) return say(`one token, at position ${start}`, `一个 token，位置 ${start}`);
    const last = start + n - 1;
    const lost = before && box.trace.more.slice(0, step).some((more) => more.gave_way.includes(r));
    const kind = lost ? say("tokens again", "个 token，重算") : say("prompt tokens", "个提示词 token");
    const found = !before && start ? say(`; ${start} were found`, `；前 ${start} 个已经算过`) : "";
    const draws = last + 1 >= prompt ? say("; it draws its next token", "；接着采样出下一个 token") : "";
    return say(`${n} ${kind}, ${start} to ${last}`, `${n} ${kind}，位置 ${start} 到 ${last}`) + found + draws;
  }

  return words;
})();
