"""M8: what is left of a step with four guesses, and six guesses as a chain and as a tree."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import prod

from workshop.figures.paper import (
    ACCENT,
    CARD,
    EMPTY,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    LINE,
    MUTED,
    Paper,
)  # fmt: skip

BLOCK_SIZE, LENGTH, GUESSES, GAINED = 4, 10, 4, 2


def rollback() -> str:
    paper = Paper(860, 286, ("Four blocks in a step with four guesses; two tokens are gained, and the fourth block is "
                             "given back", "一步里有四个猜测，占四个块；得到两个 token，第四块归还"))  # fmt: skip
    left, width, height = 190, 38, 36
    end = LENGTH + GUESSES  # behind the last slot that the step writes
    rows = ((34, ("in the step", "这一步里"), LENGTH - 1, LENGTH), (156, ("after it", "这一步后"), LENGTH + GAINED - 1,
                                                                  LENGTH + GAINED))  # fmt: skip
    for after, (y, words, computed, length) in enumerate(rows):
        paper.text(26, y + 42, words, bold=True)
        for slot in range(4 * BLOCK_SIZE):
            x = left + slot * width + slot // BLOCK_SIZE * 12
            given_back = after and slot >= 3 * BLOCK_SIZE
            if slot < computed:
                fill = LIGHT_GREEN
            elif slot == length - 1 and not after:
                fill = LIGHT_BLUE
            else:
                fill = LIGHT_ORANGE if slot < end and not given_back else CARD
            attributes = 'stroke-dasharray="4 3"' if given_back else ""
            paper.rect(x, y + 18, width - 4, height, fill, LINE, attributes=attributes)
            if not given_back:
                paper.text(x + width / 2 - 2, y + 41, str(slot), anchor="middle", size=13, code=True)
        for block in range(4):
            x = left + block * (BLOCK_SIZE * width + 12)
            label = (f"block {block}", f"块 {block}")
            if after and block == 3:
                label = ("given back", "归还")
            paper.text(x, y + 8, label, size=13, fill=ACCENT if after and block == 3 else MUTED)
    arrow = left + (LENGTH + GAINED - 1) * width + 2 * 12 + width / 2 - 2
    paper.line(arrow, 226, arrow, 214, ACCENT, arrow=True)
    paper.text(arrow, 242, ("the key of a wrong guess: block 2 must not be cached", "错误猜测的键：块 2 不能进缓存"),
               anchor="middle", size=13, fill=ACCENT)  # fmt: skip
    legend = ((LIGHT_GREEN, ("computed, kept", "已算，接受")), (LIGHT_BLUE, ("the last token", "最后一个 token")),
              (LIGHT_ORANGE, ("a guess, or void", "猜测，或作废")))  # fmt: skip
    for i, (fill, words) in enumerate(legend):
        paper.rect(left + i * 190, 258, 16, 16, fill, LINE)
        paper.text(left + 22 + i * 190, 271, words, size=13, fill=MUTED)
    return paper.svg()


RIGHT = (0.6, 0.2, 0.1)
"""How likely the draft's best, second and third guess is the right one."""

Path = tuple[int, ...]


def reached(path: Path) -> float:
    return prod(RIGHT[rank] for rank in path)


def likeliest(count: int) -> list[Path]:
    """The paths of the `count` guesses that are reached most often."""
    found: list[Path] = []
    open_paths: list[tuple[float, Path]] = [(-reached((rank,)), (rank,)) for rank in range(len(RIGHT))]
    heapify(open_paths)
    while len(found) < count:
        _, path = heappop(open_paths)
        found.append(path)
        for rank in range(len(RIGHT)):
            heappush(open_paths, (-reached((*path, rank)), (*path, rank)))
    return found


def tree() -> str:
    paper = Paper(860, 300, ("Six guesses as a chain bring 2.43 tokens a step, as a tree 2.63",
                             "六个猜测排成链，一步 2.43 个 token；长成树，2.63 个"))  # fmt: skip
    step, width, height = 104, 74, 36

    def draw(paths: list[Path], top: float, words: tuple[str, str]) -> None:
        paper.text(26, top + 24, words, bold=True)
        total = 1 + sum(map(reached, paths))
        paper.text(26, top + 46, (f"{total:.2f} tokens", f"{total:.2f} 个 token"), size=13, fill=ACCENT)
        places: dict[Path, tuple[float, float]] = {(): (150, top)}
        paper.rect(150, top, width - 22, height, EMPTY, LINE)
        paper.text(150 + (width - 22) / 2, top + 23, ("last", "末"), anchor="middle", size=13)
        for path in sorted(paths, key=lambda path: (len(path), path)):
            x = 128 + len(path) * step
            # Branches hang below the chain of best guesses: one line for each second guess, by where it leaves it.
            y = top + (0 if not any(path) else 58 * (2 - path.index(1)))
            px, py = places[path[:-1]]
            right = px + (width - 22 if not path[:-1] else width)
            paper.line(right, py + height / 2, x, y + height / 2)
            paper.rect(x, y, width, height, LIGHT_BLUE if path[-1] else LIGHT_GREEN, LINE)
            paper.text(x + width / 2, y + 23, f"{reached(path):.2f}", anchor="middle", size=13, code=True)
            places[path] = (x, y)

    draw([(0,) * (i + 1) for i in range(6)], 26, ("a chain", "链"))
    draw(likeliest(6), 92, ("a tree", "树"))
    for i, (fill, words) in enumerate(((LIGHT_GREEN, ("the draft's best guess", "草稿的第一选择")),
                                       (LIGHT_BLUE, ("its second", "第二选择")))):  # fmt: skip
        paper.rect(150 + i * 220, 266, 16, 16, fill, LINE)
        paper.text(172 + i * 220, 279, words, size=13, fill=MUTED)
    return paper.svg()


def figures() -> dict[str, str]:
    return {"m8/rollback.svg": rollback(), "m8/tree.svg": tree()}
