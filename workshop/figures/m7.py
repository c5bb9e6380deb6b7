"""M7: eight codes in an int32 in three orders, and GPTQ's three columns."""

from __future__ import annotations

from workshop.figures.paper import (
    ACCENT,
    CARD,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LIGHT_VIOLET,
    LINE,
    MUTED,
    Paper,
)  # fmt: skip

CODES = (3, -6, 1, 7, -2, 0, 5, -4)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FILLS = (LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE, LIGHT_VIOLET) * 2


def formats() -> str:
    paper = Paper(860, 344, ("Eight codes in an int32: along a row or a column in their order, and in AWQ's order",
                             "一个 int32 里的八个码：沿行或沿列按顺序排，以及 AWQ 的次序"))  # fmt: skip
    left, width = 190, 78
    paper.text(26, 46, ("codes", "码"), bold=True)
    for i, code in enumerate(CODES):
        paper.rect(left + i * width, 22, width - 6, 36, FILLS[i], LINE)
        paper.text(left + i * width + 36, 45, str(code).replace("-", "−"), anchor="middle", code=True)
        paper.text(left + i * width + 36, 76, str(i), anchor="middle", size=12, fill=MUTED)
    paper.text(26, 76, ("number", "编号"), size=12, fill=MUTED)
    rows = (
        (("GPTQ: eight inputs,", "GPTQ：八个输入，"), ("down a column", "沿列"), range(8)),
        (("pack-quantized: eight", "pack-quantized：八个"), ("inputs, along a row", "输入，沿行"), range(8)),
        (("AWQ: eight outputs", "AWQ：一个输入的"), ("of one input", "八个输出"), AWQ_ORDER),
    )
    for place, (first, second, order) in enumerate(rows):
        y = 98 + place * 74
        paper.text(26, y + 18, first, size=13)
        paper.text(26, y + 36, second, size=13)
        # The highest bits on the left, as the number is written.
        for nibble, i in enumerate(order):
            x = left + (7 - nibble) * width
            paper.rect(x, y, width - 6, 46, FILLS[i], ACCENT if order is AWQ_ORDER and nibble != i else LINE)
            paper.text(x + 36, y + 20, f"{CODES[i] + 8:x}", anchor="middle", bold=True, code=True)
            paper.text(x + 36, y + 38, str(i), anchor="middle", size=12, fill=MUTED)
    paper.text(left, 326, ("bit 31", "第 31 位"), size=12, fill=MUTED)
    paper.text(left + 8 * width - 6, 326, ("bit 0", "第 0 位"), anchor="end", size=12, fill=MUTED)
    paper.text(left + 4 * width, 326, ("a nibble is code + 8, in hexadecimal", "半字节 = 码 + 8，十六进制"),
               anchor="middle", size=13, fill=MUTED)  # fmt: skip
    return paper.svg()


HESSIAN = ((2.0, 1.0, 0.0), (1.0, 2.0, 1.0), (0.0, 1.0, 2.0))
WEIGHTS = (1.4, 2.4, 0.4)
FACTORS = ((-2 / 3, 1 / 3), (-1 / 2,))
"""The rows of the inverse's Cholesky factor over their diagonals, as the page works them out."""


def columns() -> tuple[list[list[float]], list[int]]:
    """The weights before each column is rounded and after the last, and what they are rounded to."""
    weights, rounded, states = list(WEIGHTS), [], [list(WEIGHTS)]
    for i in range(3):
        rounded.append(round(weights[i]))
        error = weights[i] - rounded[i]
        for j in range(i + 1, 3):
            weights[j] -= error * FACTORS[i][j - i - 1]
        states.append(list(weights))
    return states, rounded


def cost(rounded: list[int]) -> float:
    delta = [w - q for w, q in zip(WEIGHTS, rounded, strict=True)]
    return sum(delta[i] * HESSIAN[i][j] * delta[j] for i in range(3) for j in range(3))


def gptq() -> str:
    paper = Paper(860, 290, ("GPTQ rounds a column, moves those behind it, and ends with a quarter of the cost",
                             "GPTQ 舍入一列，移动后面的列，最后代价只有四分之一"))  # fmt: skip
    states, rounded = columns()
    for i, (english, chinese) in enumerate((("column 0", "列 0"), ("column 1", "列 1"), ("column 2", "列 2"))):
        paper.text(250 + i * 130, 34, (english, chinese), anchor="middle", bold=True)
    for step in range(3):
        y = 50 + step * 62
        paper.text(26, y + 29, (f"round column {step}", f"舍入列 {step}"))
        for i in range(3):
            x = 196 + i * 130
            done, mine = i < step, i == step
            paper.rect(x, y, 108, 46, LIGHT_GREEN if done else LIGHT_ORANGE if mine else CARD, LINE)
            text = str(rounded[i]) if done else f"{states[step][i]:.3f}"
            paper.text(x + 54, y + 29, f"{text} → {rounded[i]}" if mine else text, anchor="middle", code=True,
                       bold=mine)  # fmt: skip
            if i > step:
                factor = FACTORS[step][i - step - 1]
                error = states[step][step] - rounded[step]
                paper.text(x + 54, y + 59, f"{-error * factor:+.3f}".replace("-", "−"), anchor="middle", size=12,
                           fill=ACCENT)  # fmt: skip
    nearest = [round(w) for w in WEIGHTS]
    for row, (words, values) in enumerate(((("round to nearest", "就近舍入"), nearest), (("GPTQ", "GPTQ"), rounded))):
        y = 70 + row * 76
        paper.text(610, y, words, bold=True)
        paper.text(610, y + 22, f"({', '.join(map(str, values))})", code=True)
        paper.rect(610, y + 32, 140 * cost(values) / 1.6, 12, LIGHT_VIOLET if row else LIGHT_BLUE, LINE)
        paper.text(760, y + 43, (f"cost {cost(values):.1f}", f"代价 {cost(values):.1f}"), size=13)
    legend = ((LIGHT_ORANGE, ("rounded now", "正在舍入")), (LIGHT_GREEN, ("fixed", "已定")),
              (CARD, ("moves", "还会移动")))  # fmt: skip
    for i, (fill, words) in enumerate(legend):
        paper.rect(196 + i * 130, 254, 16, 16, fill, LINE)
        paper.text(218 + i * 130, 267, words, size=13, fill=MUTED)
    return paper.svg()


def figures() -> dict[str, str]:
    return {"m7/formats.svg": formats(), "m7/gptq.svg": gptq()}
