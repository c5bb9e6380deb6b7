"""M1, sampling: two filters on eight words, three penalties on one logit, a beam tree of width 3."""

from __future__ import annotations

from workshop.figures.paper import (
    ACCENT,
    BLUE,
    EMPTY,
    GREEN,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LINE,
    MUTED,
    ORANGE,
    TEXT,
    Paper,
)  # fmt: skip

WORDS = ("sunny", "cloudy", "pleasant", "warm", "terrible", "purple", "seven", "of")
WEATHER = (0.45, 0.25, 0.15, 0.08, 0.04, 0.01, 0.01, 0.01)
NEXT = {
    "": {"like": 0.40, "am": 0.30, "have": 0.20, "do": 0.10},
    "like": {"it": 0.35, "to": 0.30, "the": 0.20},
    "am": {"not": 0.55, "a": 0.25, "the": 0.10},
    "have": {"to": 0.75, "a": 0.10, "not": 0.05},
    "am not": {"sure": 0.40, "a": 0.30},
    "have to": {"go": 0.60, "be": 0.20},
    "like it": {"very": 0.30, "a": 0.25},
}


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


def beam_tree() -> str:
    paper = Paper(860, 500, ("A beam search of width 3: what is kept, what is dropped, and the path greedy would take",
                             "宽度 3 的束搜索：留下的、丢掉的，以及贪心会走的路"))  # fmt: skip

    def node(x: float, y: float, word: str, p: float, kept: bool) -> None:
        paper.rect(x, y - 17, 138, 34, LIGHT_GREEN if kept else EMPTY, LINE, rx=6,
                   attributes="" if kept else 'stroke-dasharray="4 3"')  # fmt: skip
        paper.text(x + 10, y + 5, word, fill=TEXT if kept else MUTED)
        paper.text(x + 130, y + 5, f"{p:.3f}" if round(p, 3) == round(p, 4) else f"{p:.4f}", anchor="end", size=13,
                   code=True, fill=TEXT if kept else MUTED)  # fmt: skip

    paper.rect(26, 243, 60, 34, LIGHT_ORANGE, LINE, rx=6)
    paper.text(56, 265, "I", anchor="middle", bold=True)
    first_y: dict[str, float] = {"am": 126, "have": 266, "like": 394, "do": 470}
    live = sorted(NEXT[""].items(), key=lambda item: -item[1])[:3]
    for word, y in first_y.items():
        kept = word in dict(live)
        greedy = word == "like"
        paper.line(86, 260, 146, y, ACCENT if greedy else LINE, 2 if greedy else 1.5, "" if kept else "4 3")
        node(148, y, word, NEXT[""][word], kept)
    second = {f"{w} {n}": p * q for w, p in live for n, q in NEXT[w].items()}
    kept_second = sorted(second, key=lambda key: -second[key])[:3]
    third = {f"{key} {n}": second[key] * q for key in kept_second for n, q in NEXT[key].items()}
    kept_third = sorted(third, key=lambda key: -third[key])[:3]
    place: dict[str, float] = {}
    for word, _ in live:
        for i, n in enumerate(NEXT[word]):
            key, y = f"{word} {n}", first_y[word] + (i - 1) * 42.0
            place[key] = y
            greedy = key == "like it"
            paper.line(286, first_y[word], 350, y, ACCENT if greedy else LINE, 2 if greedy else 1.5,
                       "" if key in kept_second else "4 3")  # fmt: skip
            node(352, y, n, second[key], key in kept_second)
    for key in kept_second:
        for i, n in enumerate(NEXT[key]):
            longer, y = f"{key} {n}", place[key] + (i - 0.5) * 44
            greedy = longer == "like it very"
            paper.line(490, place[key], 566, y, ACCENT if greedy else LINE, 2 if greedy else 1.5,
                       "" if longer in kept_third else "4 3")  # fmt: skip
            node(568, y, n, third[longer], longer in kept_third)
            if longer == max(third, key=lambda k: third[k]):
                paper.text(716, y + 5, ("the best", "最好的"), bold=True)
            if greedy:
                paper.text(716, y + 5, ("greedy ends here", "贪心走到这里"), fill=ACCENT)
    for x, words in ((148, ("step 1", "第 1 步")), (352, ("step 2", "第 2 步")), (568, ("step 3", "第 3 步"))):
        paper.text(x, 28, words, bold=True)
    return paper.svg()


def figures() -> dict[str, str]:
    drawings = (filters, penalties_row, beam_tree)
    return {f"m1/{draw.__name__.replace('_', '-')}.svg": draw() for draw in drawings}
