"""M10: pairs of tokens and experts, sorted by expert, multiplied in tiles, and put back."""

from __future__ import annotations

from workshop.figures.paper import (
    ACCENT,
    CARD,
    EMPTY,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LINE,
    MUTED,
    TEXT,
    Paper,
)  # fmt: skip

CHOSEN = [[2, 0], [0, 3], [2, 0], [0, 2]]  # of each token its two experts, of four
COLOURS = [LIGHT_GREEN, EMPTY, LIGHT_BLUE, LIGHT_ORANGE]
TILE = 4


def groups() -> str:
    paper = Paper(860, 372, ("Eight pairs of a token and an expert are sorted by expert, multiplied in tiles of four "
                             "rows, and put back to their tokens", "八个（token，专家）对按专家排序，"
                             "按四行一个 tile 相乘，再放回各自的 token"))  # fmt: skip
    pairs = [expert for row in CHOSEN for expert in row]
    order = sorted(range(len(pairs)), key=lambda pair: pairs[pair])
    left, width, height = 196, 76, 34
    tops = {"pairs": 52, "sorted": 140, "tiles": 218, "out": 306}
    for name, words in (
        ("pairs", ("pairs: expert", "对：专家")), ("sorted", ("sorted by expert", "按专家排序")),
        ("tiles", ("tiles of 4 rows", "四行一个 tile")), ("out", ("sums by token", "按 token 求和")),
    ):  # fmt: skip
        paper.text(24, tops[name] + 22, words, bold=True)
    for token in range(len(CHOSEN)):
        x = left + 2 * token * width
        paper.text(x + width, 38, f"token {token}", anchor="middle", size=13, fill=MUTED)
        paper.rect(x + 3, tops["out"], 2 * width - 6, height, CARD, LINE)
        paper.text(x + width, tops["out"] + 22, f"w·y{2 * token} + w·y{2 * token + 1}", anchor="middle", size=13)
    for pair, expert in enumerate(pairs):
        x, place = left + pair * width, order.index(pair)
        to = left + place * width
        paper.rect(x + 3, tops["pairs"], width - 6, height, COLOURS[expert], LINE)
        paper.text(x + width / 2, tops["pairs"] + 22, f"{pair}: {expert}", anchor="middle")
        paper.line(x + width / 2, tops["pairs"] + height, to + width / 2, tops["sorted"] - 2, arrow=True)
        paper.rect(to + 3, tops["sorted"], width - 6, height, COLOURS[expert], LINE)
        paper.text(to + width / 2, tops["sorted"] + 22, f"{pair}", anchor="middle")
    start = 0
    for expert in range(4):
        count = pairs.count(expert)
        if not count:
            continue
        x = left + start * width
        paper.rect(x + 3, tops["tiles"], count * width - 6, height, COLOURS[expert], TEXT)
        label = (f"expert {expert}", f"专家 {expert}")
        paper.text(x + count * width / 2, tops["tiles"] + 22, label, anchor="middle", size=13)
        start += count
    paper.text(left, tops["tiles"] + 58, (
        "Each tile has rows of one expert. Expert 1 has no tile: its weights are not read.",
        "一个 tile 里只有一个专家的行。专家 1 没有 tile：它的权重不读。"), size=13, fill=ACCENT)  # fmt: skip
    return paper.svg()


def figures() -> dict[str, str]:
    return {"m10/groups.svg": groups()}
