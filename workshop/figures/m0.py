"""M0: what temperature, filters and penalties do to five tokens; the state machine; padding left and right."""

from __future__ import annotations

import math

from workshop.figures.paper import (
    ACCENT,
    BLUE,
    EMPTY,
    GREEN,
    HALO,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LINE,
    MUTED,
    ORANGE,
    TEXT,
    Paper,
)  # fmt: skip

TOKENS = "ABCDE"
PARTS = {"A": 10.0, "B": 5.0, "C": 3.0, "D": 1.5, "E": 0.5}
LOGITS = {token: math.log(n) for token, n in PARTS.items()}
PROMPT, OUTPUT = ["E"], ["A", "C", "A"]


def softmax(logits: dict[str, float]) -> dict[str, float]:
    top = max(logits.values())
    powers = {token: math.exp(value - top) for token, value in logits.items()}
    return {token: power / sum(powers.values()) for token, power in powers.items()}


def at(temperature: float) -> dict[str, float]:
    return softmax({token: value / temperature for token, value in LOGITS.items()})


def bars(
    paper: Paper, x: float, base: float, height: float, values: dict[str, float], kept: str = TOKENS,
    colour: str = BLUE, step: float = 34,
) -> None:  # fmt: skip
    """One bar per token on the line `base`; what is not in `kept` is grey with a dashed edge. `height` is 1.0's."""
    for i, (token, value) in enumerate(values.items()):
        left, tall = x + i * step, height * value
        if token in kept:
            paper.rect(left, base - tall, step - 8, max(tall, 1), colour)
        else:
            paper.rect(left, base - tall, step - 8, max(tall, 1), EMPTY, LINE, attributes='stroke-dasharray="3 3"')
        share = f"{value + 1e-9:.2f}".removeprefix("0")
        paper.text(left + (step - 8) / 2, base - tall - 5, share, anchor="middle", size=13,
                   fill=TEXT if token in kept else MUTED, attributes=HALO)  # fmt: skip
        paper.text(left + (step - 8) / 2, base + 17, token, anchor="middle", fill=TEXT if token in kept else MUTED)
    paper.line(x - 6, base, x + len(values) * step, base)


def temperature() -> str:
    paper = Paper(860, 270, ("The five probabilities at temperatures 2, 1, 0.5 and 0.1: from flat to a single bar",
                             "温度 2、1、0.5、0.1 时的五个概率：从平缓到只剩一根"))  # fmt: skip
    for i, (value, colour) in enumerate(((2.0, GREEN), (1.0, BLUE), (0.5, ORANGE), (0.1, ACCENT))):
        x = 36 + i * 208
        paper.text(x, 34, (f"T = {value:g}", f"T = {value:g}"), bold=True)
        bars(paper, x, 226, 160, at(value), colour=colour)
    return paper.svg()


def filtered(values: dict[str, float], kept: str) -> dict[str, float]:
    mass = sum(values[token] for token in kept)
    return {token: value / mass if token in kept else value for token, value in values.items()}


def top_p(values: dict[str, float], p: float) -> str:
    kept, before = "", 0.0
    for token, value in values.items():  # in falling order already
        if before < p - 1e-9:
            kept += token
        before += value
    return kept


def min_p(values: dict[str, float], ratio: float) -> str:
    return "".join(token for token, value in values.items() if value >= ratio * max(values.values()))


def truncation() -> str:
    paper = Paper(860, 420, ("What top_k=3, top_p=0.8 and min_p=0.2 keep at temperature 1 and at temperature 2",
                             "温度 1 和 2 时，top_k=3、top_p=0.8、min_p=0.2 各留下哪些"))  # fmt: skip
    for column, name in enumerate(("top_k=3", "top_p=0.8", "min_p=0.2")):
        paper.text(130 + column * 240, 34, name, bold=True, code=True)
    for row, value in enumerate((1.0, 2.0)):
        values, base = at(value), 196 + row * 176
        paper.text(26, base - 60, f"T = {value:g}", bold=True)
        for column, kept in enumerate(("ABC", top_p(values, 0.8), min_p(values, 0.2))):
            x = 130 + column * 240
            if column == 2:
                line = base - 230 * 0.2 * max(values.values())
                paper.line(x - 6, line, x + 190, line, ACCENT, 1.5, "5 4")
            bars(paper, x, base, 230, values, kept, (GREEN, BLUE, ORANGE)[column])
    paper.text(26, 404, ("grey: cut; the rest is divided by its sum. The line: 0.2 times the best",
                         "灰色：砍掉，其余除以自己的总和。虚线：第一名的 0.2 倍"), size=13, fill=MUTED)  # fmt: skip
    return paper.svg()


def penalised() -> list[tuple[tuple[str, str], dict[str, float]]]:
    seen = {*PROMPT, *OUTPUT}

    def presence(z: dict[str, float]) -> dict[str, float]:
        return {token: value - 0.5 * (token in OUTPUT) for token, value in z.items()}

    def frequency(z: dict[str, float]) -> dict[str, float]:
        return {token: value - 0.5 * OUTPUT.count(token) for token, value in z.items()}

    def repetition(z: dict[str, float]) -> dict[str, float]:
        return {t: (v / 1.2 if v > 0 else v * 1.2) if t in seen else v for t, v in z.items()}

    return [
        (("the model", "模型"), LOGITS),
        (("presence 0.5", "存在 0.5"), presence(LOGITS)),
        (("frequency 0.5", "频率 0.5"), frequency(LOGITS)),
        (("repetition 1.2", "重复 1.2"), repetition(LOGITS)),
        (("all three", "三个一起"), presence(frequency(repetition(LOGITS)))),
    ]


def penalties() -> str:
    paper = Paper(860, 250, ("Probabilities after each penalty; the output so far is A C A, the prompt contained E",
                             "每种惩罚之后的概率；已有输出是 A C A，提示词里有 E"))  # fmt: skip
    paper.text(26, 34, ("output so far: A C A; prompt: E", "已有输出：A C A；提示词：E"), fill=MUTED)
    for i, (name, logits) in enumerate(penalised()):
        x = 28 + i * 166
        values = softmax(logits)
        bars(paper, x, 186, 200, values, colour=(BLUE, GREEN, GREEN, ORANGE, ACCENT)[i], step=29)
        paper.text(x, 228, name, size=13, bold=True)
    return paper.svg()


def states() -> str:
    paper = Paper(860, 330, ("A swapped sequence comes back to RUNNING by a copy; an arrow to WAITING is wrong",
                             "换出的序列靠拷贝回到 RUNNING；指向 WAITING 的箭头是错的"))  # fmt: skip
    boxes = {"WAITING": (60, 130, LIGHT_BLUE), "RUNNING": (360, 60, LIGHT_GREEN), "SWAPPED": (360, 236, LIGHT_ORANGE),
             "FINISHED": (680, 60, EMPTY)}  # fmt: skip
    for name, (x, y, fill) in boxes.items():
        paper.rect(x, y, 140, 50, fill, LINE, rx=8)
        paper.text(x + 70, y + 31, name, anchor="middle", code=True, bold=True)
    paper.path("M30 155 L58 155", arrow=True)
    paper.path("M150 128 C190 60 270 60 356 72", arrow=True)
    paper.text(178, 54, ("scheduled: a prefill", "被调度：做预填充"), size=13)
    paper.path("M358 100 C310 108 260 116 203 146", arrow=True)
    paper.text(262, 142, ("recompute", "重算"), size=13)
    paper.path("M400 112 L400 234", arrow=True)
    paper.text(392, 180, ("swap out", "换出"), size=13, anchor="end")
    paper.path("M460 234 L460 113", arrow=True)
    paper.text(470, 180, ("swap in: a copy, then it goes on decoding", "换入：拷回来，接着解码"), size=13)
    paper.path("M502 85 L677 85", arrow=True)
    paper.text(590, 76, ("EOS, stop, length", "EOS、停止、长度"), size=13, anchor="middle")
    paper.path("M357 270 C240 280 150 260 132 184", ACCENT, 2, "6 5", arrow=True)
    paper.text(232, 267, "✗", size=26, fill=ACCENT, bold=True, anchor="middle")
    wrong = ("wrong: WAITING means that nothing is cached", "错：WAITING 的意思是什么都没缓存")
    paper.text(60, 308, wrong, size=13, fill=ACCENT)
    return paper.svg()


def padding() -> str:
    paper = Paper(860, 250, ("Three prompts padded on the right, padded on the left, and flat without padding",
                             "三条提示词：右填充、左填充，以及不填充的展平"))  # fmt: skip
    rows = ("abc", "d", "ef")
    colours = (LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE)
    for x, name, left in ((40, ("padded right", "右填充"), False), (330, ("padded left", "左填充"), True)):
        paper.text(x, 36, name, bold=True)
        for r, row in enumerate(rows):
            for c in range(3):
                at_token = c - (3 - len(row)) if left else c
                token = row[at_token] if 0 <= at_token < len(row) else ""
                paper.rect(x + c * 46, 52 + r * 42, 42, 36, colours[r] if token else EMPTY, LINE,
                           attributes="" if token else 'stroke-dasharray="3 3"')  # fmt: skip
                paper.text(x + c * 46 + 21, 75 + r * 42, token or "_", anchor="middle", code=True,
                           fill=TEXT if token else MUTED)  # fmt: skip
            paper.rect(x + 3 * 46 + 14, 52 + r * 42, 42, 36, "none", ACCENT, attributes='stroke-dasharray="4 3"')
            ends = left or len(row) == 3
            paper.text(x + 3 * 46 + 35, 76 + r * 42, "✓" if ends else "✗", anchor="middle", fill=ACCENT, bold=True)
        paper.text(x + 3 * 46 + 35, 198, ("next", "下一个"), anchor="middle", size=13, fill=ACCENT)
    paper.text(40, 228, ("✗: it would follow a padding token", "✗：会接在填充符后面"), size=13, fill=MUTED)
    paper.text(620, 36, ("flat, from M1 on", "展平，M1 起"), bold=True)
    for i, (token, r) in enumerate((t, r) for r, row in enumerate(rows) for t in row):
        paper.rect(620 + i * 36, 94, 32, 36, colours[r], LINE)
        paper.text(636 + i * 36, 117, token, anchor="middle", code=True)
    paper.text(620, 156, ("six places, six tokens", "六个位置，六个 token"), size=13, fill=MUTED)
    return paper.svg()


def figures() -> dict[str, str]:
    drawings = (temperature, truncation, penalties, states, padding)
    return {f"m0/{draw.__name__}.svg": draw() for draw in drawings}
