"""The drawn figures of M3's notes: sizes as docs/en/m3/sizing.md works them out, a beam search's blocks.

python -m workshop.figures_m3           # writes docs/figures/m3
"""

from __future__ import annotations

from pathlib import Path

from workshop.figure_card import (
    ACCENT,
    BLUE,
    EMPTY,
    GREEN,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PAPER,
    Card,
)

ROOT = Path(__file__).parents[1]
FADED = "#8c8877"  # what a dropped beam has left


def sizing() -> Card:
    card = Card(860, 356, ("Memory of the GPUs: weights, step, cache, unused", "GPU 显存：权重、步、缓存、不用的"))
    left, width = 190, 430
    #        model, GPUs, weights in GB, bytes of KV a token
    rows = [("Llama-2-7B", 1, 13.48, 524_288), ("Qwen2.5-7B", 1, 15.24, 57_344), ("Llama-3-70B", 2, 141.2, 327_680),
            ("Llama-3-70B", 4, 141.2, 327_680), ("Llama-3-70B", 8, 141.2, 327_680)]  # fmt: skip
    for number, (model, gpus, weights, token) in enumerate(rows):
        y, total = 76 + 50 * number, gpus * 80.0
        cache = gpus * (0.92 * 80 - 2) - weights
        parts = [(weights, BLUE), (gpus * 2.0, ORANGE), (cache, GREEN), (total * 0.08, EMPTY)]
        card.text(24, y + 22, f"{model}, {gpus} × 80 GB", size=13)
        x = float(left)
        for gb, fill in parts:
            card.box(x, y, width * gb / total, 34, fill, rx=0)
            x += width * gb / total
        sequences = f"{int(cache * 1e9 / token) // 2000:,}"
        card.text(left + width + 14, y + 15, f"{cache:.1f} GB", size=13, bold=True)
        card.text(
            left + width + 14,
            y + 32,
            (f"{sequences} sequences of 2,000", f"{sequences} 条 2,000 token 的序列"),
            size=13,
        )
    x = 24
    for fill, name, step in (
        (BLUE, ("weights", "权重"), 110), (ORANGE, ("largest step", "最大的一步"), 140),
        (GREEN, ("KV cache", "KV 缓存"), 116), (EMPTY, ("not to be used (8%)", "不用的（8%）"), 200),
    ):  # fmt: skip
        card.box(x, 24, 18, 18, fill)
        card.text(x + 26, 38, name)
        x += step
    card.text(left + width + 14, 38, ("for the cache", "留给缓存"), bold=True)
    card.text(
        24, 340, ("each bar is the memory of all GPUs together", "每一条是全部 GPU 显存合计"), color=MUTED, size=13
    )
    return card


def beam_tree() -> Card:
    card = Card(860, 396, ("A beam tree over blocks of two tokens", "beam 组成的树，放在每块两个 token 的块里"))
    cell, gap = 62, 30

    def block(column: int, y: float, number: int, tokens: str, refs: int, fill: str) -> tuple[float, float]:
        """Draw it; its left edge's middle."""
        x = 24 + column * (2 * cell + 2 * gap + 16)
        card.box(x, y, 2 * cell + 12, 58, fill if refs else PAPER, dashed=not refs)
        for offset, token in enumerate(tokens.split()):
            card.box(x + 6 + offset * cell, y + 6, cell - 4, 28, PAPER if refs else EMPTY)
            card.text(
                x + 4 + offset * cell + cell / 2,
                y + 25,
                token,
                anchor="middle",
                bold=True,
                color=INK if refs else FADED,
            )
        state = (
            (f"block {number}, refs {refs}", f"块 {number}，引用 {refs}")
            if refs
            else (f"block {number}: free", f"块 {number}：空闲")
        )
        card.text(x + cell + 6, y + 51, state, anchor="middle", size=13, color=MUTED)
        return x, y + 29

    places = {
        1: block(0, 160, 1, "p0 p1", 2, PALE_GREEN), 3: block(1, 160, 3, "p2 a", 2, PALE_GREEN),
        2: block(1, 290, 2, "p2 b", 0, PALE_GREEN), 4: block(2, 50, 4, "a –", 0, PALE_GREEN),
        6: block(2, 160, 6, "b a", 1, PALE_ORANGE), 5: block(2, 290, 5, "b b", 1, PALE_BLUE),
    }  # fmt: skip
    for parent, child in ((1, 3), (1, 2), (3, 4), (3, 6), (3, 5)):
        x, y = places[parent]
        end, dead = (places[child][0] - 3, places[child][1]), child in (2, 4)
        card.line([(x + 2 * cell + 12, y), end], color=FADED if dead else LINE, width=1.6, dashed=dead)
    for source in (2, 5):  # copied to the block above, 3 and 6
        x = places[source][0] + 26
        card.line([(x, 288), (x, 222)], color=ACCENT, width=1.6, arrow=True)
        card.text(x + 8, 260, ("copied on write", "写时复制"), size=13, color=ACCENT)
    for y, name, table, fill in ((160, "aba", "[1, 3, 6]", PALE_ORANGE), (290, "abb", "[1, 3, 5]", PALE_BLUE)):
        card.box(680, y, 156, 58, fill)
        card.text(758, y + 24, (f"beam {name}", f"beam {name}"), anchor="middle", bold=True)
        card.text(758, y + 46, table, anchor="middle", color=MUTED)
        card.line([(places[6][0] + 2 * cell + 14, y + 29), (676, y + 29)], color=ACCENT, width=1.6, arrow=True)
    card.text(
        24,
        36,
        ("after four steps: two beams, four blocks; without sharing, six", "四步之后：两个 beam，四个块；不共享要六个"),
        bold=True,
    )
    card.text(
        24,
        378,
        ("dashed: beams that were dropped, their blocks are free", "虚线：没有留下来的 beam，它们的块已空闲"),
        color=MUTED,
        size=13,
    )
    return card


def cards() -> dict[str, Card]:
    return {"sizing": sizing(), "beam-tree": beam_tree()}


if __name__ == "__main__":
    for name, card in cards().items():
        card.save(ROOT / "docs" / "figures" / "m3" / f"{name}.svg")
