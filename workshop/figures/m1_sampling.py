"""M1, sampling: two filters on eight words, three penalties on one logit, two ways to draw."""

from __future__ import annotations

from workshop.figures.paper import (
    ACCENT,
    BLUE,
    EMPTY,
    GREEN,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LIGHT_VIOLET,
    LINE,
    MUTED,
    ORANGE,
    TEXT,
    Paper,
)  # fmt: skip

WORDS = ("sunny", "cloudy", "pleasant", "warm", "terrible", "purple", "seven", "of")
WEATHER = (0.45, 0.25, 0.15, 0.08, 0.04, 0.01, 0.01, 0.01)


def _reach(values: tuple[float, ...], p: float) -> int:
    """How many of the falling `values` top-p keeps."""
    before, kept = 0.0, 0
    while kept < len(values) and before < p - 1e-9:
        before += values[kept]
        kept += 1
    return kept


def filters() -> str:
    paper = Paper(860, 470, ("Eight words before the filters, after top-k of 5, and after top-p of 0.95 as well",
                             "八个词：过滤之前、top-k 取 5 之后、再加 top-p 取 0.95 之后"))  # fmt: skip
    after_k = tuple(p / sum(WEATHER[:5]) for p in WEATHER[:5])
    after_p = after_k[: _reach(after_k, 0.95)]
    final = tuple(p / sum(after_p) for p in after_p)
    stages = ((("the model", "模型"), WEATHER, BLUE, 8), (("top_k=5", "top_k=5"), after_k, GREEN, 5),
              (("then top_p=0.95", "再 top_p=0.95"), final, ORANGE, len(final)))  # fmt: skip
    for row, (name, values, colour, kept) in enumerate(stages):
        base = 140 + row * 140
        paper.text(26, base - 60, name, bold=True)
        for i, word in enumerate(WORDS):
            x = 170 + i * 84
            if i < kept:
                paper.rect(x, base - 190 * values[i], 56, 190 * values[i], colour)
                paper.text(x + 28, base - 190 * values[i] - 6, f"{values[i]:.3f}", anchor="middle", size=13)
            else:
                paper.text(x + 28, base - 6, "✗", anchor="middle", fill=ACCENT, bold=True)
            paper.text(x + 28, base + 18, word, anchor="middle", size=13, fill=TEXT if i < kept else MUTED)
        paper.line(160, base, 838, base)
    why = ("the sum before warm is 0.876 and reaches 0.959 with it: warm is in, terrible is out",
           "到 warm 之前累计 0.876，加上它是 0.959：warm 留下，terrible 出局")  # fmt: skip
    paper.text(26, 456, why, size=13, fill=MUTED)
    return paper.svg()


def penalties_row() -> str:
    """Two logits on one scale: repetition 1.25, frequency 0.2 for three occurrences, presence 0.5."""
    paper = Paper(860, 250, ("A logit of 2 goes down to 0.5 in three steps, a logit of -2 goes down to -3.6",
                             "logit 2 分三步降到 0.5，logit −2 分三步降到 −3.6"))  # fmt: skip

    def x(value: float) -> float:
        return 60 + (value + 4) * 114

    paper.line(40, 132, 800, 132)
    for tick in range(-4, 3):
        paper.line(x(tick), 126, x(tick), 138)
        paper.text(x(tick), 156, f"{tick}".replace("-", "−"), anchor="middle", size=13, fill=MUTED)
    names = (("repetition", "重复"), ("frequency", "频率"), ("presence", "存在"))
    for start in (2.0, -2.0):
        first = start / 1.25 if start > 0 else start * 1.25
        values = (start, first, first - 0.2 * 3, first - 0.2 * 3 - 0.5)
        paper.parts.append(f'<circle cx="{x(start):g}" cy="132" r="6" fill="{BLUE}"/>')
        for i, colour in enumerate((ORANGE, GREEN, ACCENT)):
            y = 112 - i * 26
            paper.line(x(values[i]), y, x(values[i + 1]) + 2, y, colour, 3)
            paper.parts.append(f'<circle cx="{x(values[i + 1]):g}" cy="{y}" r="5" fill="{colour}"/>')
            shown = f"{values[i + 1]:.1f}".replace("-", "−")
            paper.text(x(values[i + 1]) - 10, y + 5, shown, anchor="end", size=13)
            paper.text(x(values[i]) + 8, y + 5, names[i], size=13, fill=MUTED)
    paper.text(70, 196, ("repetition 1.25 divides above zero and multiplies below it: both go down",
                         "重复惩罚 1.25：零以上做除法，零以下做乘法，两个都往下"), size=13)  # fmt: skip
    paper.text(70, 220, ("frequency 0.2 × 3 occurrences and presence 0.5 subtract the same everywhere",
                         "频率 0.2 × 3 次，存在 0.5：在哪里都减同样多"), size=13)  # fmt: skip
    return paper.svg()


def two_draws() -> str:
    """The same five probabilities drawn twice: noise for each token, or one number for the row."""
    names, p = "ABCDE", (0.50, 0.30, 0.10, 0.06, 0.04)
    noise, u = (1.30, 0.42, 1.10, 0.90, 2.10), 0.83
    times = [e / q for e, q in zip(noise, p, strict=True)]
    winner = min(range(5), key=times.__getitem__)
    fills = (LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE, LIGHT_VIOLET, EMPTY)
    paper = Paper(860, 400, ("A race of five tokens that B wins, and a walk along their sums that ends in C",
                             "五个 token 的赛跑，B 先到；沿累计和走，停在 C"))  # fmt: skip
    paper.text(26, 34, ("race: one random number per token", "赛跑：每个 token 一个随机数"), bold=True)
    for x, words in ((26, "pᵢ"), (86, "Eᵢ"), (146, "Tᵢ = Eᵢ / pᵢ")):
        paper.text(x, 62, words, size=13, fill=MUTED, code=True)
    for i, name in enumerate(names):
        y, first = 90 + i * 30, i == winner
        paper.text(26, y, f"{name} {p[i]:.2f}", size=13, code=True)
        paper.text(86, y, f"{noise[i]:.2f}", size=13, code=True)
        paper.text(146, y, f"{times[i]:.1f}", size=13, code=True, fill=ACCENT if first else TEXT, bold=first)
        paper.rect(240, y - 13, 11 * times[i], 16, fills[i], ACCENT if first else LINE, rx=2)
    paper.text(
        240 + 11 * times[winner] + 10, 90 + winner * 30, ("the first to arrive", "最先到达"), fill=ACCENT, size=13
    )
    paper.line(26, 238, 834, 238, LINE, 1)
    paper.text(26, 268, ("inverse CDF: one random number per row", "逆累积分布：每行一个随机数"), bold=True)
    left, before = 60.0, 0.0
    for i, name in enumerate(names):
        width = 740 * p[i]
        paper.rect(left, 306, width, 34, fills[i], LINE, rx=2)
        paper.text(left + width / 2, 328, name, anchor="middle", code=True)
        left, before = left + width, before + p[i]
        if name != "D":  # 0.96 and 1.00 would touch
            paper.text(left, 358, f"{before:.2f}", anchor="middle", size=13, fill=MUTED, code=True)
    paper.text(60, 358, "0", anchor="middle", size=13, fill=MUTED, code=True)
    paper.line(60 + 740 * u, 290, 60 + 740 * u, 306, ACCENT, 2, arrow=True)
    paper.text(60 + 740 * u, 284, (f"u = {u}: C", f"u = {u}：采到 C"), anchor="middle", size=13, fill=ACCENT)
    how = ("a token's stretch is as long as its probability", "每个 token 那一段的长度就是它的概率")
    paper.text(26, 386, how, size=13, fill=MUTED)
    return paper.svg()


def figures() -> dict[str, str]:
    drawings = (filters, penalties_row, two_draws)
    return {f"m1/{draw.__name__.replace('_', '-')}.svg": draw() for draw in drawings}
