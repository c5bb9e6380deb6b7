"""Draws the running example's steps as a moving picture: SVG with CSS animation, no script.

rows      a request each; dark where it computes prompt tokens, light where one token decodes, dashed while it waits
bars      how many tokens each step computes, by request
below     what the milestone is about: one cache, slots, blocks, or the lanes of host and device

The same code draws in the reader's browser what other requests and settings come to (milestones/site/live/driver.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.example_svg import ACCENT, EMPTY, LINE, MUTED, WIDTH, Picture, box, line, text
from workshop.example_trace import REQUESTS

LEFT, COLUMN = 164, 48
ROW, CELL, TOP = 40, 34, 74
DARK = {"A": "#7fb3a6", "B": "#8fa8d0", "C": "#d9a06b", "D": "#b596c9", "E": "#a8ad5c", "F": "#d08f9d"}
LIGHT = {"A": "#cfe5df", "B": "#d6e1f2", "C": "#f3dfc8", "D": "#e8dcf0", "E": "#e6e8c4", "F": "#f4dce1"}
PER_TOKEN, HIGHEST = 2.8, 78  # pixels of a bar: for each token, and at most

TITLES = {
    "m0": ("M0: three requests and their states; nothing computes yet", "M0：三个请求和它们的状态，还没有什么在计算"),
    "m1": ("M1: one request after the other", "M1：一个请求跑完，再跑下一个"),
    "m2": ("M2: requests join and leave between steps", "M2：请求在步与步之间加入和离开"),
    "m3": ("M3: the same memory in blocks, and C need not wait", "M3：同样的内存改按块发放，C 不用再等"),
    "m4": ("M4: the next step is planned while this one runs", "M4：这一步还在算，下一步已经排好"),
    "m5": ("M5: a long prompt comes in by chunks", "M5：长提示词分段进来"),
    "m6": ("M6: C starts from what B has computed", "M6：C 从 B 已经算好的地方开始"),
    "m8": ("M8: guesses are checked beside the last token", "M8：猜测与最后一个 token 一起验证"),
}


def column(step: int) -> float:
    """Left edge of a step's column; steps count from 1."""
    return LEFT + (step - 1) * COLUMN


def draw(milestone: str, trace: dict[str, Any]) -> str:
    """The SVG of one milestone's trace."""
    return _states(trace["states"]) if milestone == "m0" else _steps(milestone, trace)


def sizes(trace: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Name, prompt and output of each request, the example's where the trace has none of its own."""
    if "requests" in trace:
        return [(name, prompt, outputs) for name, prompt, outputs, *_ in trace["requests"]]
    return [(name, prompt, outputs) for name, _, prompt, outputs, _ in REQUESTS]


def _heading(picture: Picture, title: tuple[str, str], right: tuple[str, str]) -> tuple[str, str]:
    picture.add(
        text(22, 34, *title, font_size="16", font_weight="bold"),
        text(picture.width - 22, 34, *right, text_anchor="end", fill=MUTED),
    )
    return title


def _steps(milestone: str, trace: dict[str, Any]) -> str:
    steps, frames, requests = trace["steps"], len(trace["steps"]), sizes(trace)
    has_budget = "requests" in trace or milestone in ("m5", "m6", "m8")
    beside = 250 if trace["settings"].get("enable_prefix_caching") else 84 if has_budget else 0  # for words
    picture = Picture(frames, max(WIDTH, int(column(frames + 1)) + beside))
    computed = sum(part["n"] for step in steps for part in step)
    name = milestone.upper()
    title = _heading(
        picture,
        (f"{name}: what it decides", f"{name} 的决定") if "requests" in trace else TITLES[milestone],
        (f"{frames} steps, {computed} tokens computed", f"{frames} 步，共计算 {computed} 个 token"),
    )
    picture.add(text(22, 62, "step", "步", fill=MUTED))
    base = TOP + len(requests) * ROW + 82
    for step in range(1, frames + 1):
        picture.during(step, step, False, box(column(step) - 2, 48, COLUMN - 4, base - 44, "#f3ead6", "none"))
        picture.add(text(column(step) + COLUMN / 2 - 4, 62, str(step), text_anchor="middle", fill=MUTED))
    for row, request in enumerate(requests):
        _request_row(picture, trace, request, TOP + row * ROW)
    _bars(picture, steps, base, budget=trace["settings"]["max_num_batched_tokens"] if has_budget else None)
    below: dict[str, Callable[[Picture, dict[str, Any], int], int]] = {"m1": _cache, "m2": _slots, "m4": _lanes}
    height = below.get(milestone, _blocks)(picture, trace, base + 34)
    return picture.svg(title, height)


def _request_row(picture: Picture, trace: dict[str, Any], request: tuple[str, int, int], y: int) -> None:
    name, size, outputs = request
    picture.add(
        text(22, y + 22, name, font_weight="bold", font_size="15"),
        text(40, y + 22, f"{size} + {outputs} tokens", f"{size} + {outputs} 个 token", fill=MUTED),
    )
    taking = {i: part for i, step in enumerate(trace["steps"], 1) for part in step if part["r"] == name and part["n"]}
    lost = {i for i, more in enumerate(trace.get("more", []), 1) if name in more["gave_way"]}
    last = len(trace["steps"]) if trace.get("unfinished") else max(taking, default=0)
    for step in range(trace["arrived"].get(name, last + 1), last + 1):
        x = column(step) + 2
        if step not in taking:
            cross = [text(x + (COLUMN - 12) / 2, y + 23, "✕", text_anchor="middle", fill=ACCENT, font_weight="bold")]
            dashed = box(x, y, COLUMN - 12, CELL, "none", ACCENT if step in lost else MUTED, stroke_dasharray="4 3")
            picture.from_step(step, dashed, *(cross if step in lost else []))
            continue
        part = taking[step]
        prompt = part["start"] < size
        fill = DARK[name] if prompt else LIGHT[name]
        weight = "bold" if prompt else "normal"
        middle = x + (COLUMN - 12) / 2
        numbers = [text(middle, y + 22, str(part["n"]), text_anchor="middle", font_weight=weight)]
        if not prompt and part["n"] > 1:  # the last token, guesses, and how many tokens come of it
            later = [other["start"] for number, other in sorted(taking.items()) if number > step]
            gained = (later[0] if later else size + outputs - 1) - part["start"]
            numbers = [
                text(middle, y + 15, f"1+{part['n'] - 1}", text_anchor="middle"),
                text(middle, y + 30, f"→ {gained}", text_anchor="middle", fill=ACCENT),
            ]
        picture.from_step(step, box(x, y, COLUMN - 12, CELL, fill), *numbers)
    joins = min(taking, default=0)
    if joins and (found := taking[joins]["start"]):
        frame = box(column(joins) - 0.5, y - 2.5, COLUMN - 7, CELL + 5, "none", ACCENT, stroke_width="2")
        words = (f"{found} of {size} prompt tokens found", f"{size} 个提示词 token 里有 {found} 个已经算过")
        picture.from_step(joins, frame, text(column(max(taking) + 1), y + 22, *words, fill=ACCENT))


def _bars(picture: Picture, steps: list[list[dict[str, Any]]], base: int, budget: int | None) -> None:
    right = column(len(steps) + 1) - 6
    most = max([sum(part["n"] for part in step) for step in steps] + [budget or 0])
    per_token = min(PER_TOKEN, HIGHEST / most)
    picture.add(text(22, base - 2, "tokens in the step", "这一步的 token", fill=MUTED))
    if budget is not None:
        y = base - budget * per_token
        picture.add(
            line(LEFT, right, y, ACCENT, stroke_dasharray="5 4"),
            text(right + 6, y + 4, f"budget {budget}", f"预算 {budget}", fill=ACCENT),
        )
    for number, step in enumerate(steps, 1):
        shapes, y = [], float(base)
        for part in step:
            high = part["n"] * per_token
            y -= high
            shapes.append(box(column(number) + 8, y, COLUMN - 24, high, DARK[part["r"]], "none"))
        total = sum(part["n"] for part in step)
        shapes.append(text(column(number) + COLUMN / 2 - 4, y - 4, str(total), text_anchor="middle", class_="halo"))
        picture.from_step(number, *shapes)
    picture.add(line(LEFT, right, base, LINE))


def _peak(steps: list[list[dict[str, Any]]]) -> int:
    """The step after which the cache holds most."""
    held = [sum(part["start"] + part["n"] for part in step) for step in steps]
    return held.index(max(held)) + 1


def _strip(
    picture: Picture,
    trace: dict[str, Any],
    y: int,
    rows: list[tuple[str, str]],
    place: Callable[[dict[str, Any]], int],
) -> int:
    """Rows of max_model_len positions each, filled by what each step leaves in them."""
    cell, places = 21, trace["settings"]["max_model_len"]
    for row, label in enumerate(rows):
        picture.add(text(22, y + 18 + row * 34, *label, fill=MUTED))
        picture.add(*[box(LEFT + i * cell, y + row * 34, cell - 3, 26, EMPTY, "none") for i in range(places)])
    steps, peak = trace["steps"], _peak(trace["steps"])
    for number, step in enumerate(steps, 1):
        shapes = [
            box(LEFT + i * cell, y + place(part) * 34, cell - 3, 26, DARK[part["r"]], "none")
            for part in step
            for i in range(part["start"] + part["n"])
        ]
        picture.during(number, number, number == peak, *shapes)
    return y + 34 * len(rows) + 14


def _cache(picture: Picture, trace: dict[str, Any], y: int) -> int:
    return _strip(picture, trace, y, [("one KV cache", "一份 KV 缓存")], lambda part: 0)


def _slots(picture: Picture, trace: dict[str, Any], y: int) -> int:
    slots = range(trace["settings"]["max_num_seqs"])
    places = trace["settings"]["max_model_len"]
    rows = [(f"slot {i}: {places} tokens", f"槽 {i}：{places} 个 token") for i in slots]
    return _strip(picture, trace, y, rows, lambda part: part["blocks"][0])


def _blocks(picture: Picture, trace: dict[str, Any], y: int) -> int:
    """All blocks; one that several requests hold is drawn in all their colours."""
    blocks, block_size = trace["settings"]["num_kv_blocks"], trace["settings"]["block_size"]
    wide = COLUMN * 14 / blocks
    picture.add(
        text(22, y + 14, f"{blocks} blocks of", f"{blocks} 个块，"),
        text(22, y + 32, f"{block_size} tokens", f"每块 {block_size} 个 token"),
    )
    for block in range(1, blocks + 1):  # block 0 is the null block, which holds nothing
        x = LEFT + (block - 1) * wide
        label = text(x + (wide - 5) / 2, y + 47, str(block), text_anchor="middle", fill=MUTED)
        picture.add(box(x, y, wide - 5, 30, EMPTY, "none"), label)
    peak = _peak(trace["steps"])
    for number, step in enumerate(trace["steps"], 1):
        holders: dict[int, list[tuple[str, int]]] = {}
        for part in step:
            held = part["start"] + part["n"]
            for place, block in enumerate(part["blocks"]):
                holders.setdefault(block, []).append((part["r"], max(0, min(block_size, held - place * block_size))))
        shapes = []
        for block, owners in holders.items():
            high = 30 / len(owners)
            for place, (name, tokens) in enumerate(owners):
                x, top = LEFT + (block - 1) * wide, y + place * high
                shapes.append(box(x, top, wide - 5, high, LIGHT[name], "none"))
                shapes.append(box(x, top, (wide - 5) * tokens / block_size, high, DARK[name], "none"))
            if len(owners) > 1:
                x = LEFT + (block - 1) * wide - 1.5
                shapes.append(box(x, y - 1.5, wide - 2, 33, "none", ACCENT, stroke_width="2"))
        for block in trace["more"][number - 1]["kept"] if "more" in trace else []:  # free, and can be found again
            x = LEFT + (block - 1) * wide
            shapes.append(box(x + 2, y + 2, wide - 9, 26, "none", MUTED, stroke_dasharray="2 3"))
        picture.during(number, number, number == peak, *shapes)
    return y + 64


def _lanes(picture: Picture, trace: dict[str, Any], y: int) -> int:
    """Host and device, in the order in which the host's calls came. A step's forward runs from its launch on, behind
    the one before it, and is over when its tokens are read."""
    events = trace["events"]
    wide = COLUMN * 14 / len(events)
    picture.add(text(22, y + 18, "host", "主机", fill=MUTED), text(22, y + 58, "device", "设备", fill=MUTED))
    launched = {step: i + 1 for i, (what, step) in enumerate(events) if what == "schedule"}
    read = {step: i for i, (what, step) in enumerate(events) if what == "update"}
    for i, (what, step) in enumerate(events):
        x = LEFT + i * wide
        fill = "#c48fb0" if what == "schedule" else "#e6d9ee"
        letter = f"{'S' if what == 'schedule' else 'U'}{step}"
        label = text(x + wide / 2 - 1.5, y + 18, letter, text_anchor="middle")
        now = next(number for what, number in events[i:] if what == "update")  # a launch ahead is of the step before
        picture.from_step(now, box(x, y, wide - 3, 26, fill, "none"), label)
    busy = 0
    for step in sorted(launched):
        begin, end = max(launched[step], busy), read[step]
        busy = end
        x, long = LEFT + begin * wide, (end - begin) * wide
        picture.from_step(
            step,
            box(x, y + 40, max(long - 3, 4), 26, "#8c8877", "none"),
            text(x + max(long - 3, 4) / 2, y + 58, str(step), text_anchor="middle", fill="#fdfcf9"),
        )
    picture.add(
        text(
            LEFT,
            y + 90,
            "S plans and launches a step, U reads its tokens. The order is the engine's; lengths are not to scale.",
            "S 排好并启动一步，U 读出它的 token。次序是引擎的真实次序，长短不按比例。",
            fill=MUTED,
        )
    )
    return y + 108


def _states(states: list[dict[str, list[Any]]]) -> str:
    """M0: a card for each request, in the column of its state."""
    picture = Picture(len(states))
    title = _heading(picture, TITLES["m0"], ("states are set by hand", "状态由人来设"))
    left, wide = 60, 258
    columns = ["WAITING", "RUNNING", "FINISHED_LENGTH_CAPPED"]
    for i, status in enumerate(columns):
        x = left + i * (wide + 5)
        label = text(x + wide / 2, 74, status, text_anchor="middle", class_="code")
        picture.add(box(x, 52, wide, 284, "#f3efe4", "#d8d4c8"), label)
    still = next(i for i, rows in enumerate(states) if rows["B"][0] == "RUNNING" and rows["B"][2] == 2)
    for row, (name, *_) in enumerate(REQUESTS):
        y = 88 + row * 82
        picture.add(text(26, y + 42, name, font_weight="bold", font_size="16"))
        first = 0
        while first < len(states):
            last = first
            while last + 1 < len(states) and states[last + 1][name] == states[first][name]:
                last += 1
            status, prompt, outputs = states[first][name]
            card = _card(left + columns.index(status) * (wide + 5) + 8, y, wide - 16, name, prompt, outputs)
            picture.during(first + 1, last + 1, first <= still <= last, *card)
            first = last + 1
    return picture.svg(title, 350)


def _card(x: float, y: float, wide: float, name: str, prompt: int, outputs: int) -> list[str]:
    token = (wide - 20) / 26
    shapes = [
        box(x, y, wide, 72, "#fdfcf9"),
        text(x + 10, y + 20, f"prompt_token_ids  [{prompt}]", class_="code"),
        text(x + 10, y + 38, f"output_token_ids  [{outputs}]", class_="code"),
    ]
    for i in range(prompt + outputs):
        fill = (DARK if i < prompt else LIGHT)[name]
        shapes.append(box(x + 10 + i * token, y + 48, token - 2, 14, fill, stroke_width="0.6"))
    return shapes
