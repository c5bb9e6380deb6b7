"""The drawn figure of M11's notes: the blocks of a layer that sees everything, and of one with a window.

python -m workshop.figures_m11           # writes docs/figures/m11
"""

from __future__ import annotations

from pathlib import Path

from workshop.figure_card import ACCENT, BLUE, GREEN, MUTED, PALE_BLUE, PALE_GREEN, PAPER, Card

ROOT = Path(__file__).parents[1]


def windows() -> Card:
    card = Card(860, 300, ("Blocks of a full layer and of a window layer", "全注意力层与窗口层的块"))
    left, cell = 150, 42
    card.text(24, 40, ("position", "位置"), color=MUTED)
    for position in range(16):
        x = left + cell * position
        card.text(x + cell / 2, 40, str(position), anchor="middle", color=ACCENT if position == 13 else MUTED, size=13,
                  bold=position == 13)  # fmt: skip
    rows = [
        (("full layer", "全注意力层"), 62, [1, 3, 5, 7], 0, PALE_GREEN, GREEN),
        (("window layer", "窗口层"), 164, [0, 0, 6, 8], 8, PALE_BLUE, BLUE),
    ]
    for name, y, table, first, pale, strong in rows:
        card.text(24, y + 26, name, bold=True)
        for entry, block in enumerate(table):
            x = left + 4 * cell * entry
            card.box(x, y, 4 * cell - 6, 62, pale if block else PAPER, dashed=not block)
            label = (f"block {block}", f"块 {block}") if block else ("null block: freed", "占位块：已释放")
            card.text(x + 2 * cell - 3, y + 56, label, anchor="middle", size=13, color=MUTED)
            for offset in range(4):
                position = 4 * entry + offset
                if block and first <= position <= 13:
                    card.box(x + 4 + offset * (cell - 3), y + 6, cell - 7, 30, strong)
                    card.text(x + 4 + offset * (cell - 3) + (cell - 7) / 2, y + 26, "k v", anchor="middle", size=13)
    x = left + 2 * 4 * cell
    card.line(
        [(x + 4, 240), (x + 4, 248), (left + 13 * cell + 38, 248), (left + 13 * cell + 38, 240)],
        color=ACCENT,
        width=1.6,
    )
    card.text(x + 120, 268, ("the window: positions 8 to 13", "窗口：位置 8 到 13"), anchor="middle", color=ACCENT)
    return card


def cards() -> dict[str, Card]:
    return {"windows": windows()}


if __name__ == "__main__":
    for name, card in cards().items():
        card.save(ROOT / "docs" / "figures" / "m11" / f"{name}.svg")
