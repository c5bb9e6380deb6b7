"""M1, the model: text to vectors, attention by hand, shapes, RoPE, shared heads, the growing cache, the last row."""

from __future__ import annotations

import math

from workshop.figures.paper import (
    ACCENT,
    BLUE,
    CARD,
    EMPTY,
    GREEN,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LIGHT_VIOLET,
    LINE,
    MUTED,
    ORANGE,
    VIOLET,
    Paper,
)  # fmt: skip

WORDS = ("the", "cache", "grows")
X = ((1, 0), (0, 1), (1, 1))
Q, K, V = ((1, 1), (0, 1), (1, 2)), ((1, 0), (1, 1), (2, 1)), ((2, 0), (0, 4), (2, 4))


def weights() -> list[list[float]]:
    """Rows of the masked softmax, as the page works them out."""
    rows = []
    for t in range(3):
        scores = [sum(a * b for a, b in zip(Q[t], K[s], strict=True)) / math.sqrt(2) for s in range(t + 1)]
        powers = [math.exp(score - max(scores)) for score in scores]
        rows.append([power / sum(powers) for power in powers])
    return rows


def attention_by_hand() -> str:
    paper = Paper(860, 330, ("The three rows of shares under the causal mask, and the outputs that they sum up",
                             "因果掩码下的三行份额，以及由它们加出来的输出"))  # fmt: skip
    paper.text(26, 34, ("queries", "查询"), bold=True)
    paper.text(200, 34, ("keys", "键"), bold=True)
    paper.text(600, 34, ("output: values in these shares", "输出：按份额加起来的值"), bold=True)
    for s, word in enumerate(WORDS):
        paper.text(250 + s * 110, 56, word, anchor="middle")
        paper.text(250 + s * 110, 76, f"k = ({K[s][0]}, {K[s][1]})", anchor="middle", size=13, fill=MUTED, code=True)
    for t, (word, row) in enumerate(zip(WORDS, weights(), strict=True)):
        y = 90 + t * 66
        paper.text(26, y + 26, word)
        paper.text(26, y + 46, f"q = ({Q[t][0]}, {Q[t][1]})", size=13, fill=MUTED, code=True)
        for s in range(3):
            if s > t:
                paper.rect(200 + s * 110, y, 100, 56, EMPTY, LINE, attributes='stroke-dasharray="3 3"')
                paper.text(250 + s * 110, y + 33, ("masked", "屏蔽"), anchor="middle", size=13, fill=MUTED)
            else:
                paper.rect(200 + s * 110, y, 100, 56, CARD, LINE)
                paper.rect(201 + s * 110, y + 55 - 54 * row[s], 98, 54 * row[s], LIGHT_BLUE, rx=2)
                paper.text(250 + s * 110, y + 33, f"{row[s]:.3f}", anchor="middle", bold=True)
        out = [sum(w * V[s][j] for s, w in enumerate(row)) for j in range(2)]
        paper.line(536, y + 28, 592, y + 28, arrow=True)
        paper.text(600, y + 33, f"({out[0]:.3f}, {out[1]:.3f})", code=True)
    for s in range(3):
        paper.text(250 + s * 110, 306, f"v = ({V[s][0]}, {V[s][1]})", anchor="middle", size=13, fill=MUTED, code=True)
    paper.text(26, 306, ("values", "值"), bold=True)
    return paper.svg()


def text_to_vectors() -> str:
    paper = Paper(860, 290, ("A text is cut into tokens, each token has an id, each id picks a row of the matrix",
                             "文本切成 token，token 换成 id，id 从矩阵里取一行"))  # fmt: skip
    pieces, ids = ("The", "␣KV", "␣cache", "␣gr", "ows", "."), (751, 504, 825, 932, 1717, 16)
    labels = (("text", "文本"), ("tokens", "token"), ("ids", "id"), ("vectors", "向量"))
    for label, y in zip(labels, (50, 116, 182, 246), strict=True):
        paper.text(26, y, label, bold=True)
    paper.rect(130, 28, 564, 34, CARD, LINE)
    text = "The KV cache grows."
    paper.text(412, 50, (text, text), anchor="middle", code=True)
    fills = (LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE, LIGHT_VIOLET, LIGHT_VIOLET, EMPTY)
    for i, (piece, number) in enumerate(zip(pieces, ids, strict=True)):
        x = 130 + i * 96
        paper.rect(x, 94, 84, 34, fills[i], LINE)
        paper.text(x + 42, 116, piece, anchor="middle", code=True)
        paper.rect(x, 160, 84, 34, CARD, LINE)
        paper.text(x + 42, 182, str(number), anchor="middle", code=True)
        paper.line(x + 42, 64, x + 42, 92, arrow=True)
        paper.line(x + 42, 130, x + 42, 158, arrow=True)
        paper.line(x + 42, 196, x + 42, 224, arrow=True)
        for j in range(4):
            paper.rect(x + j * 21, 226, 19, 28, fills[i], LINE, rx=1)
    steps = (("BPE merges", "BPE 合并"), ("vocabulary", "词表"), ("row of E", "取 E 的一行"))
    for y, words in zip((84, 150, 216), steps, strict=True):
        paper.text(716, y, words, size=13, fill=MUTED)
    space = ("␣ is the space: it belongs to the token behind it", "␣ 是空格：它归后面的 token")
    paper.text(130, 276, space, size=13, fill=MUTED)
    return paper.svg()


def shapes() -> str:
    paper = Paper(860, 500, ("Shapes through Qwen3-0.6B for T tokens: ids, hidden states, heads, logits of last rows",
                             "T 个 token 穿过 Qwen3-0.6B 时的形状：id、隐藏状态、各头、最后一行的 logits"))  # fmt: skip

    def box(x: float, y: float, width: float, name: str | tuple[str, str], shape: str, fill: str) -> None:
        paper.rect(x, y, width, 46, fill, LINE, rx=6)
        paper.text(x + width / 2, y + 19, name, anchor="middle", size=13, bold=True)
        paper.text(x + width / 2, y + 37, shape, anchor="middle", size=13, code=True)

    box(40, 24, 200, "input_ids", "[T]", EMPTY)
    paper.line(240, 47, 298, 47, arrow=True)
    box(300, 24, 250, ("embedding", "词嵌入"), "[T, 1024]", LIGHT_BLUE)
    paper.rect(24, 96, 812, 290, "none", LINE, rx=10, attributes='stroke-dasharray="6 5"')
    paper.text(40, 120, ("28 layers", "28 层"), bold=True)
    paper.path("M425 70 L425 112", arrow=True)
    box(300, 114, 250, ("residual stream", "残差流"), "[T, 1024]", LIGHT_BLUE)
    box(40, 186, 180, "q", "[T, 16, 128]", LIGHT_ORANGE)
    box(240, 186, 160, "k", "[T, 8, 128]", LIGHT_GREEN)
    box(420, 186, 160, "v", "[T, 8, 128]", LIGHT_VIOLET)
    for x in (130, 320, 500):
        paper.path(f"M425 160 C425 176 {x} 168 {x} 184", arrow=True)
    paper.text(594, 214, ("qkv: one product, [4096, 1024]", "qkv：一次乘法，[4096, 1024]"), size=13, fill=MUTED)
    box(40, 258, 540, ("attention: k, v into the cache, q against all of it", "注意力：k、v 写进缓存，q 对着整个缓存"),
        "[T, 16, 128] = [T, 2048]", LIGHT_ORANGE)  # fmt: skip
    for x in (130, 320, 500):
        paper.line(x, 232, x, 256, arrow=True)
    paper.text(594, 286, ("cache: [2, T so far, 8, 128]", "缓存：[2, 至今的 T, 8, 128]"), size=13, fill=MUTED)
    box(40, 328, 160, "o_proj", "[T, 1024]", LIGHT_BLUE)
    box(230, 328, 190, ("gate, up", "gate、up"), "2 × [T, 3072]", EMPTY)
    box(450, 328, 160, "down", "[T, 1024]", LIGHT_BLUE)
    paper.line(120, 304, 120, 326, arrow=True)
    paper.line(200, 351, 228, 351, arrow=True)
    paper.line(420, 351, 448, 351, arrow=True)
    paper.path("M610 351 L820 351 L820 137 L554 137", arrow=True)
    paper.text(622, 342, ("added back, as o_proj was", "加回残差流，o_proj 也是"), size=13, fill=MUTED)
    paper.path("M530 376 L530 408", arrow=True)
    box(40, 412, 210, ("last row of each sequence", "每条序列的最后一行"), "[S, 1024]", LIGHT_BLUE)
    box(420, 412, 210, ("last norm", "最后的归一化"), "[T, 1024]", LIGHT_BLUE)
    paper.line(418, 435, 254, 435, arrow=True)
    paper.path("M145 460 L145 476 L690 476 L690 462", arrow=True)
    box(650, 412, 180, "logits", "[S, 151936]", EMPTY)
    return paper.svg()


def rope() -> str:
    paper = Paper(860, 320, ("A pair of numbers is turned by its position; the angle between two depends on distance",
                             "一对数按位置旋转；两者的夹角只看距离"))  # fmt: skip

    def circle(x: float, title: str | tuple[str, str], arms: list[tuple[float, str, str]]) -> None:
        y, radius = 168, 92
        paper.text(x, 36, title, anchor="middle", bold=True)
        paper.parts.append(f'<circle cx="{x:g}" cy="{y}" r="{radius}" fill="none" stroke="{LINE}"/>')
        for angle, name, colour in arms:
            dx, dy = math.cos(angle), -math.sin(angle)
            tip_x, tip_y = x + dx * radius, y + dy * radius
            paper.line(x, y, round(tip_x, 1), round(tip_y, 1), colour, 3)
            paper.parts.append(f'<circle cx="{tip_x:.1f}" cy="{tip_y:.1f}" r="5" fill="{colour}"/>')
            paper.text(x + dx * (radius + 20), y + dy * (radius + 20) + 5, name, anchor="middle", size=13, code=True)

    circle(150, ("pair 0: 1 rad a position", "第 0 对：每位 1 rad"),
           [(m, f"{m}", BLUE) for m in range(6)])  # fmt: skip
    circle(430, ("pair 1: 0.01 rad a position", "第 1 对：每位 0.01 rad"),
           [(0.0, "0", GREEN), (0.5, "50", GREEN), (1.0, "100", GREEN)])  # fmt: skip
    circle(710, ("q at 5, k at 3: 2 rad apart", "q 在 5，k 在 3：差 2 rad"),
           [(5, "q", ORANGE), (3, "k", VIOLET)])  # fmt: skip
    paper.path(f"M{710 + 34 * math.cos(3):.1f} {168 - 34 * math.sin(3):.1f} "
               f"A34 34 0 0 0 {710 + 34 * math.cos(5):.1f} {168 - 34 * math.sin(5):.1f}", ACCENT, 2.5)  # fmt: skip
    paper.text(150, 302, ("tells neighbours apart", "分得清相邻的位置"), anchor="middle", size=13, fill=MUTED)
    paper.text(430, 302, ("tells near from far", "分得清远近"), anchor="middle", size=13, fill=MUTED)
    same = ("at 105 and 103: the same angle", "在 105 和 103：夹角相同")
    paper.text(710, 302, same, anchor="middle", size=13, fill=ACCENT)
    return paper.svg()


def gqa() -> str:
    paper = Paper(860, 330, ("Eight query heads over eight, four, one key and value heads, and over one latent vector",
                             "八个查询头，分别对八个、四个、一个键值头，以及一个潜在向量"))  # fmt: skip
    kinds = (("MHA", 8), ("GQA", 4), ("MQA", 1), ("MLA", 0))
    for i, (name, heads) in enumerate(kinds):
        x = 26 + i * 210
        paper.text(x, 34, name, bold=True)
        for h in range(8):
            paper.rect(x + h * 23, 60, 19, 36, LIGHT_ORANGE, LINE)
            if heads:
                width = (8 * 23 - 4) / heads
                target = x + (h * heads // 8 + 0.5) * (width if heads == 1 else 8 * 23 / heads) - 2
                paper.line(x + h * 23 + 9, 98, target, 158, LINE, 1)
            else:
                paper.rect(x + h * 23, 112, 19, 24, EMPTY, LINE, attributes='stroke-dasharray="3 3"')
                paper.line(x + h * 23 + 9, 138, x + 90, 198, LINE, 1)
        if heads:
            slot = 8 * 23 / heads
            for h in range(heads):
                left = x + h * slot + (slot - 23) / 2
                paper.rect(left, 160, 19, 36, LIGHT_GREEN, LINE)
                paper.rect(left, 200, 19, 36, LIGHT_VIOLET, LINE)
            paper.text(x, 264, (f"kept: {2 * heads} of 16", f"留下：16 份里的 {2 * heads} 份"), size=13)
        else:
            paper.rect(x + 52, 200, 76, 36, LIGHT_BLUE, LINE)
            paper.text(x + 90, 223, "c", anchor="middle", code=True)
            paper.text(x, 264, ("kept: c and one small key", "留下：c，和一个小键"), size=13)
    legend = (
        (26, LIGHT_ORANGE, ("query head", "查询头")),
        (170, LIGHT_GREEN, ("key head", "键头")),
        (300, LIGHT_VIOLET, ("value head", "值头")),
        (440, LIGHT_BLUE, ("latent vector", "潜在向量")),
        (610, EMPTY, ("made from c, never stored", "由 c 算出，从不存")),
    )
    for x, fill, words in legend:
        paper.rect(x, 292, 18, 18, fill, LINE)
        paper.text(x + 26, 306, words, size=13)
    return paper.svg()


def cache_growth() -> str:
    style = (
        "".join(
            f".s{i} {{ animation: s{i} 8s infinite }} @keyframes s{i} {{ 0%, {i * 25 - 1}% {{ opacity: 0 }} "
            f"{i * 25}%, 98% {{ opacity: 1 }} 100% {{ opacity: 0 }} }}\n"
            for i in range(1, 3)
        )
        + "@media (prefers-reduced-motion: reduce) { .s1, .s2 { animation: none; opacity: 1 } }"
    )
    paper = Paper(860, 268, ("A prefill writes four places of the cache at once, each decode step writes one",
                             "预填充一次写四格，之后每个解码步写一格"), style)  # fmt: skip
    tokens = ("a0", "a1", "a2", "a3", "b0", "b1")
    columns = ("cache after it: one column per token", "之后的缓存：一个 token 一列")
    headings = (("step", "步"), ("computed", "计算"), columns)
    for x, words in zip((26, 130, 330), headings, strict=True):
        paper.text(x, 34, words, bold=True)
    for step in range(3):
        y = 56 + step * 62
        first, count = (0, 4) if step == 0 else (3 + step, 1)
        if step:
            paper.parts.append(f'<g class="s{step}">')
        paper.text(26, y + 30, ("prefill", "预填充") if step == 0 else ("decode", "解码"))
        for i in range(count):
            paper.rect(130 + i * 42, y + 6, 38, 38, LIGHT_ORANGE, LINE)
            paper.text(149 + i * 42, y + 30, tokens[first + i], anchor="middle", size=13, code=True)
        for place in range(10):
            x = 330 + place * 50
            if place < first + count:
                written = place >= first
                edge = ACCENT if written else LINE
                paper.rect(x, y, 44, 24, LIGHT_GREEN, edge)
                paper.rect(x, y + 26, 44, 24, LIGHT_VIOLET, edge)
                paper.text(x + 22, y + 17, f"k{place}", anchor="middle", size=13, code=True)
                paper.text(x + 22, y + 43, f"v{place}", anchor="middle", size=13, code=True)
            else:
                paper.rect(x, y, 44, 50, EMPTY, LINE, attributes='stroke-dasharray="3 3"')
        if step:
            paper.parts.append("</g>")
    legend = ("red edge: written in this step; the rest is only read. Dashed: reserved",
              "红边：这一步写的，其余只读。虚线：预留")  # fmt: skip
    paper.text(26, 252, legend, size=13, fill=MUTED)
    return paper.svg()


def last_row() -> str:
    """Six hidden states of three sequences; the last of each meets a row of the head for every word."""
    paper = Paper(860, 330, ("The last row of each sequence is picked, and one of them meets a direction per word",
                             "每条序列取最后一行，其中一行与每个词的方向相乘"))  # fmt: skip
    paper.text(26, 34, ("hidden states", "隐藏状态"), bold=True)
    names = ("a0", "a1", "a2", "a3", "b17", "c5")
    for i, name in enumerate(names):
        y, last = 52 + i * 38, i >= 3
        paper.text(26, y + 20, name, size=13, code=True, fill="#20242c" if last else MUTED)
        for j in range(4):
            paper.rect(70 + j * 30, y, 28, 30, LIGHT_BLUE if last else EMPTY, LINE, rx=2)
        if last:
            paper.text(200, y + 20, ("picked", "取出"), size=13)
        else:
            paper.text(200, y + 20, ("dropped", "丢掉"), size=13, fill=MUTED)
    paper.text(
        26,
        306,
        ("query_start_loc[1:] - 1 = rows 3, 4, 5", "query_start_loc[1:] - 1 = 第 3、4、5 行"),
        size=13,
        fill=MUTED,
    )
    origin_x, origin_y, unit = 380, 220, 74
    paper.text(330, 34, ("a direction per word", "每个词一个方向"), bold=True)
    paper.line(origin_x - 60, origin_y, origin_x + 130, origin_y, LINE, 1)
    paper.line(origin_x, origin_y + 60, origin_x, origin_y - 170, LINE, 1)
    arms = ((1, 1, "cache", GREEN), (0, 1, "block", ORANGE), (1, -0.5, "banana", VIOLET), (1, 2, "h", ACCENT))
    for right, up, name, colour in arms:
        tip_x, tip_y = origin_x + right * unit, origin_y - up * unit
        paper.line(origin_x, origin_y, tip_x, tip_y, colour, 3)
        paper.parts.append(f'<circle cx="{tip_x:g}" cy="{tip_y:g}" r="5" fill="{colour}"/>')
        label = "h=(1, 2)" if name == "h" else name
        paper.text(tip_x - 10 if name == "block" else tip_x + 10, tip_y + 5, label, size=13, code=True,
                   anchor="end" if name == "block" else "start")  # fmt: skip
    paper.text(570, 34, ("logits and probabilities", "logits 与概率"), bold=True)
    logits = [x * 1 + y * 2 for x, y, _, _ in arms[:3]]
    powers = [math.exp(logit) for logit in logits]
    for i, (right, up, name, colour) in enumerate(arms[:3]):
        top = 78 + i * 70
        paper.text(570, top, f"h·({right}, {up}) = {logits[i]:g}", size=13, code=True)
        paper.rect(570, top + 10, max(250 * powers[i] / sum(powers), 2), 24, colour)
        share = powers[i] / sum(powers)
        paper.text(570 + max(250 * share, 2) + 8, top + 27, f"{name} {share:.3f}", size=13, code=True)
    return paper.svg()


def figures() -> dict[str, str]:
    drawings = (attention_by_hand, text_to_vectors, shapes, rope, gqa, cache_growth, last_row)
    return {f"m1/{draw.__name__.replace('_', '-')}.svg": draw() for draw in drawings}
