"""The drawn figures of M2's notes: the processes of a server, and what examples/m2_load.py computes of its load.

python -m workshop.figures_m2           # writes docs/figures/m2
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from workshop.figure_card import ACCENT, EMPTY, MUTED, PALE_BLUE, PALE_GREEN, PALE_ORANGE, PALE_VIOLET, PAPER, Card

ROOT = Path(__file__).parents[1]


def load_example() -> ModuleType:
    """examples/m2_load.py as a module."""
    examples = ROOT / "examples"
    sys.path.insert(0, str(examples))
    try:
        spec = importlib.util.spec_from_file_location("m2_load", examples / "m2_load.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["m2_load"] = module  # dataclasses look for their module there
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(examples))
    return module


def processes() -> Card:
    card = Card(860, 356, ("API process, engine core and workers", "API 进程、引擎核心与 worker"))
    # Columns: users 24 to 104, API 150 to 330, core 480 to 640, workers 770 to 836 and behind.
    for i, y in enumerate((96, 156, 216)):
        card.box(24, y, 74, 36, PALE_VIOLET)
        card.text(61, y + 23, (f"user {i + 1}", f"用户 {i + 1}"), anchor="middle")
        card.line([(98, y + 18), (146, 174)], color=MUTED)
    stages = [
        (150, 170, PALE_BLUE, ("API process", "API 进程"), [
            ("HTTP, chat template", "HTTP、聊天模板"), ("text to token ids", "文本变成 token id"),
            ("token ids to text", "token id 变成文本"), ("a collector per stream", "每个流一个收集器")]),
        (430, 150, PALE_GREEN, ("engine core", "引擎核心"), [
            ("input queue", "输入队列"), ("Scheduler", "Scheduler"), ("block tables", "块表"),
            ("the step loop", "步循环")]),
        (708, 128, PALE_ORANGE, ("worker per GPU", "worker，每卡一个"), [
            ("weights", "权重"), ("KV cache", "KV 缓存"), ("ModelRunner", "ModelRunner"), ("Sampler", "Sampler")]),
    ]  # fmt: skip
    for shift in (16, 8):  # more workers behind the first
        card.box(708 + shift / 2, 66 - shift / 2, 128, 216, EMPTY)
    for x, width, fill, name, lines in stages:
        card.box(x, 66, width, 216, fill)
        card.text(x + width / 2, 92, name, anchor="middle", bold=True, size=14 if width > 130 else 13)
        for row, words in enumerate(lines):
            card.box(x + 10, 108 + 42 * row, width - 20, 32, PAPER)
            card.text(x + width / 2, 129 + 42 * row, words, anchor="middle", size=13)
    for left, right, there, back in (
        (320, 430, [("requests, aborts", "请求、中止"), ("as token ids", "以 token id 传")],
         [("token ids,", "token id，"), ("why it ended", "结束原因")]),
        (580, 708, [("SchedulerOutput", "SchedulerOutput"), ("blocks, counts", "块号、个数")],
         [("ModelRunner-", "ModelRunner-"), ("Output", "Output")]),
    ):  # fmt: skip
        middle = (left + right) / 2
        for row, words in enumerate(there):
            card.text(middle, 108 + 17 * row, words, anchor="middle", size=13)
        card.line([(left + 4, 136), (right - 4, 136)], color=ACCENT, width=1.8, arrow=True)
        card.line([(right - 4, 206), (left + 4, 206)], color=ACCENT, width=1.8, arrow=True)
        for row, words in enumerate(back):
            card.text(middle, 226 + 17 * row, words, anchor="middle", size=13)
    card.text(
        24, 36, ("three kinds of processes, and sockets between them", "三种进程，之间是套接字"), bold=True, size=15
    )
    for x, width, words in (
        (150, 170, ("event loop's thread", "事件循环的线程")), (430, 406, ("step's thread", "步的线程")),
    ):  # fmt: skip
        card.line([(x, 296), (x, 304), (x + width, 304), (x + width, 296)], color=MUTED)
        card.text(x + width / 2, 328, words, anchor="middle", color=MUTED)
    card.text(24, 328, ("in this engine:", "在这个引擎里："), color=MUTED)
    return card


def arrivals(example: ModuleType) -> Card:
    card = Card(860, 440, ("Three ways to arrive, and the line that each makes", "三种到达方式，以及各自排出的队"))
    left, right, seconds = 176, 830, 100.0
    rows = [
        ("closed loop", "闭环", example.serve(users=8, total=120)),
        ("Poisson", "泊松", example.serve(example.arrivals(1.2, 1, 120))),
        ("bursty", "突发", example.serve(example.arrivals(1.2, 0.1, 120))),
    ]

    def at(ms: float) -> float:
        return left + (right - left) * min(1.0, ms / 1e3 / seconds)

    for number, (english, chinese, served) in enumerate(rows):
        top = 44 + 124 * number
        card.text(24, top + 12, (english, chinese), bold=True)
        card.text(24, top + 30, ("arrivals", "到达"), color=MUTED, size=13)
        for times in served.times:
            card.line([(at(times.arrival), top), (at(times.arrival), top + 20)], color="#3f6fb0", width=1.1)
        base = top + 96
        most = max(waiting for _, waiting in served.line)
        outline = [(at(0), base)]
        for ms, waiting in served.line:
            if ms <= seconds * 1e3 and (y := base - 2.8 * waiting) != outline[-1][1]:
                outline += [(at(ms), outline[-1][1]), (at(ms), y)]
        outline.append((outline[-1][0], base))
        card.line(outline, color=ACCENT, width=1, fill=PALE_ORANGE)
        card.line([(left, base), (right, base)])
        card.text(24, base - 4, (f"waiting: at most {most}", f"等待：至多 {most}"), color=MUTED, size=13)
    for second in range(0, 101, 20):
        card.text(at(second * 1e3), 424, f"{second} s", anchor="middle", color=MUTED, size=13)
    return card


def goodput(example: ModuleType) -> Card:
    card = Card(860, 400, ("Throughput and goodput against the offered load", "吞吐与有效吞吐随负载的变化"))
    rates = (0.6, 0.9, 1.2, 1.4, 1.5, 1.6, 1.8)
    served = [example.serve(example.arrivals(rate, 1)) for rate in rates]

    def at(rate: float, value: float) -> tuple[float, float]:
        return 90 + (rate - 0.5) / 1.4 * 660, 340 - value / 1.8 * 290

    for value in (0.0, 0.5, 1.0, 1.5):
        card.line([at(0.5, value), at(1.9, value)], color=EMPTY)
        card.text(80, at(0, value)[1] + 5, f"{value:.1f}", anchor="end", color=MUTED, size=13)
    for rate in rates:
        card.text(at(rate, 0)[0], 362, f"{rate:.1f}", anchor="middle", color=MUTED, size=13)
    card.text(390, 386, ("offered requests per second", "每秒到达的请求"), anchor="middle", color=MUTED, size=13)
    card.text(24, 30, ("requests per second", "每秒请求数"), bold=True)
    card.line([at(0.5, 0.5), at(1.8, 1.8)], color=MUTED, dashed=True)
    lines = [
        ([len(run.times) / run.seconds for run in served], "#3f6fb0", ("served", "完成")),
        ([run.goodput for run in served], ACCENT, ("goodput", "有效吞吐")),
    ]
    for values, color, name in lines:
        points = [at(rate, value) for rate, value in zip(rates, values, strict=True)]
        card.line(points, color=color, width=2.6)
        for x, y in points:
            card.box(x - 4, y - 4, 8, 8, color, edge=color, rx=4)
        card.text(points[-1][0] + 16, points[-1][1] + 5, name, bold=True, color=color)
    x, y = at(1.8, 1.8)
    card.text(x + 16, y + 5, ("all that came", "到达的全部"), color=MUTED)
    return card


def cards() -> dict[str, Card]:
    example = load_example()
    return {"processes": processes(), "arrivals": arrivals(example), "goodput": goodput(example)}


if __name__ == "__main__":
    for name, card in cards().items():
        card.save(ROOT / "docs" / "figures" / "m2" / f"{name}.svg")
