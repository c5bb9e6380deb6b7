"""Pictures of traces in the notes of M2, M3, M5 and M6, and the pages that belong to them.

    python -m workshop.trace_pictures trace              runs each load on its milestone's tree: workshop/traces/
    python -m workshop.trace_pictures draw               draws docs/figures/mK/trace*.svg from these files
    python -m workshop.trace_pictures page m5 -o m5.html a page of one or two of them, to step through

What is drawn is what the engines did (trace_outside.py), so a picture cannot show what no engine does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from folovllm.tracing.lanes import Lane, bounds, lanes_of
from folovllm.tracing.page import make_page
from folovllm.tracing.reader import Trace, blocks_of, read_trace, rows_of
from milestones.site.source import ROOT
from workshop.figure_card import (
    ACCENT,
    BLUE,
    EDGE,
    EMPTY,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALE_GREEN,
    PALE_VIOLET,
    VIOLET,
    Card,
    Text,
)
from workshop.trace_outside import RUNS

TRACES = Path(__file__).with_name("traces")
WIDTH, LEFT, LANE, CHART, CELL = 860, 108, 24, 44, 36

FILLS = {"prefill": ORANGE, "decode": BLUE, "waiting": EMPTY, "idle": EMPTY, "preempted": ACCENT, "swapped": VIOLET}
NAMES: dict[str, tuple[str, Text]] = {
    "prefill": (ORANGE, ("prefill, with its tokens", "预填充，标出 token 数")),
    "decode": (BLUE, ("decode", "解码")),
    "waiting": (EMPTY, ("waits", "等待")),
    "preempted": (ACCENT, ("preempted", "被抢占")),
    "swapped": (VIOLET, ("swapped out", "已换出")),
    "found": (GREEN, ("found in the cache", "命中缓存")),
    "shared": (PALE_VIOLET, ("shared block", "共享的块")),
    "free": (EMPTY, ("free block", "空闲块")),
}


@dataclass(frozen=True)
class Picture:
    """One figure: traces one above the other, on one axis."""

    title: tuple[str, str]
    runs: tuple[tuple[str, Text], ...]
    """A trace, and what stands over it."""
    by_time: bool = False
    maps: tuple[int, ...] = ()
    """Steps whose block map is shown, of the only trace."""


PICTURES = {
    "m2/trace": Picture(
        ("Five requests in three slots, step by step", "五个请求、三个槽，一步一步"),
        (("m2", ("M2: three slots, 32 tokens a step", "M2：三个槽，每步 32 个 token")),),
    ),
    "m3/trace": Picture(
        ("Four sequences in 14 blocks: a fork, a copy, a preemption", "14 块里的四条序列：分叉、复制、抢占"),
        (("m3", ("M3: 14 blocks of 4 tokens", "M3：14 块，每块 4 个 token")),),
        maps=(1, 2, 4, 7),
    ),
    "m5/trace": Picture(
        ("A prompt of 96 tokens among three decodes: whole, and in chunks", "解码当中来了 96 个 token 的提示词"),
        (
            ("m5-whole", ("M4: the prompt in one step", "M4：提示词一步算完")),
            ("m5-chunks", ("M5: 16 tokens a step", "M5：每步 16 个 token")),
        ),
        by_time=True,
    ),
    "m6/trace-cache": Picture(
        ("Four prompts with the same beginning, without and with the prefix cache", "开头相同的四条提示词，缓存关与开"),
        (
            ("m6-off", ("cache off", "缓存关")),
            ("m6-on", ("cache on", "缓存开")),
        ),
        by_time=True,
    ),
    "m6/trace-preemption": Picture(
        ("What gives way is computed again, or swapped out", "被抢占之后：重算，或者换出"),
        (
            ("m6-recompute", ("recompute", "重算（recompute）")),
            ("m6-swap", ("swap", "换出（swap）")),
        ),
        by_time=True,
    ),
}  # fmt: skip


def stored(run: str) -> Trace:
    return read_trace(TRACES / f"{run}.gz")


def draw(picture: Picture) -> str:
    traces = [stored(run) for run, _ in picture.runs]
    heights = [58 + LANE * len(lanes_of(trace)) + CHART + 14 for trace in traces]
    map_height = 30 + (CELL + 8) * len(picture.maps) if picture.maps else 0
    card = Card(WIDTH, sum(heights) + map_height + 46, picture.title)
    extent = max(_edges(trace, picture.by_time)[-1] for trace in traces)
    scale = (WIDTH - LEFT - 24) / extent
    kinds: list[str] = []
    tops = accumulate(heights[:-1], initial=0)
    for trace, (_, over), top in zip(traces, picture.runs, tops, strict=True):
        kinds += _draw_run(card, trace, over, top, scale, by_time=picture.by_time)
    if picture.maps:
        kinds += _draw_maps(card, traces[0], picture.maps, sum(heights))
    _draw_legend(card, [kind for kind in NAMES if kind in kinds], sum(heights) + map_height + 22)
    return str(card)


def _edges(trace: Trace, by_time: bool) -> list[float]:
    """Where each step begins on the axis, and where the last one ends: in ms, or in steps."""
    if not by_time:
        return [float(step) for step in range(len(trace.steps) + 1)]
    places = bounds(trace.steps)
    return [begin / 1e3 for begin, _ in places] + [places[-1][1] / 1e3]


def _draw_run(card: Card, trace: Trace, over: Text, top: float, scale: float, *, by_time: bool) -> list[str]:
    """Lanes, and under them the tokens of each step. Returns the kinds that are in it."""
    edges, lanes, kinds = _edges(trace, by_time), lanes_of(trace), ["prefill", "decode"]
    lanes.sort(key=lambda lane: (lane.request, lane.number))
    found = {(seq_id, place) for place, step in enumerate(trace.steps) for seq_id, num in step.admitted if num}
    card.text(24, top + 28, over, bold=True)
    for place, mark in _marks(edges[-1], by_time):
        card.text(LEFT + place * scale, top + 46, str(mark), anchor="middle", size=11, color=MUTED)
    unit = "ms" if by_time else ("step", "步")
    card.text(24, top + 46, unit, size=11, color=MUTED)
    for row, lane in enumerate(lanes):
        kinds += _draw_lane(card, lane, top + 54 + row * LANE, edges, scale, found)
    bottom = top + 58 + len(lanes) * LANE + CHART
    card.text(24, bottom - CHART + 16, ("tokens", "token 数"), size=11, color=MUTED)
    rows_of_steps = [list(rows_of(step)) for step in trace.steps]
    most = max(sum(row.num_tokens for row in rows) for rows in rows_of_steps)
    card.text(24, bottom - CHART + 30, (f"at most {most}", f"最多 {most}"), size=11, color=MUTED)
    for place, rows in enumerate(rows_of_steps):
        y = bottom
        for kind in ("decode", "prefill"):
            size = (CHART - 6) * sum(row.num_tokens for row in rows if row.kind == kind) / most
            if size:
                y -= size
                x, width = LEFT + edges[place] * scale, (edges[place + 1] - edges[place]) * scale
                card.box(x, y, max(1, width - 1), size, FILLS[kind], edge=FILLS[kind], rx=0)
    card.line([(LEFT, bottom), (LEFT + edges[-1] * scale, bottom)], color=MUTED)
    return kinds


def _marks(end: float, by_time: bool) -> list[tuple[float, int]]:
    """Places on the axis and what is written there: milliseconds, or the number of a step at its middle."""
    if not by_time:
        return [(number - 0.5, number) for number in (1, *range(5, int(end) + 1, 5))]
    return [(float(mark), mark) for mark in range(0, int(end) + 1, 5 if end > 12 else 2)]


def _draw_lane(
    card: Card, lane: Lane, y: float, edges: list[float], scale: float, found: set[tuple[str, int]]
) -> list[str]:
    card.text(24, y + 14, lane.id)
    kinds = []
    for part in lane.segments:
        x, width = LEFT + edges[part.first] * scale, (edges[part.last + 1] - edges[part.first]) * scale
        kinds.append(part.kind)
        if part.kind in ("waiting", "idle"):
            card.line([(x, y + 9), (x + width - 1, y + 9)], color=MUTED, dashed=True)
            continue
        for step in (
            range(part.first, part.last + 1) if part.kind == "decode" else (part.first,)
        ):  # a box for each token
            last = step if part.kind == "decode" else part.last
            left, size = LEFT + edges[step] * scale, (edges[last + 1] - edges[step]) * scale
            card.box(left, y + 1, max(1, size - 2), LANE - 7, FILLS[part.kind], edge=FILLS[part.kind], rx=2)
        if part.kind == "prefill" and part.num_tokens and width > 14:
            card.text(x + width / 2, y + 13, str(part.num_tokens), anchor="middle", size=11)
        if (lane.id, part.first) in found:
            kinds.append("found")
            card.box(x, y + LANE - 9, max(1, width - 1), 4, GREEN, edge=GREEN, rx=0)
    if lane.segments:  # where it ended
        x = LEFT + edges[lane.segments[-1].last + 1] * scale - 1
        card.line([(x, y), (x, y + LANE - 5)], color=INK, width=2)
    return kinds


def _draw_maps(card: Card, trace: Trace, steps: tuple[int, ...], top: float) -> list[str]:
    """Whose each block is while a step computes; a frame around the copies of that step."""
    card.text(24, top + 16, ("the sequence of each block", "每一块属于哪条序列"), bold=True)
    kinds = ["free"]
    for record, tables, _ in blocks_of(trace):
        if record.step not in steps:
            continue
        y = top + 26 + (CELL + 8) * steps.index(record.step)
        card.text(24, y + 22, (f"step {record.step}", f"第 {record.step} 步"), size=12)
        copied = {target for _, target in record.copies}
        for block in range(1, trace.header.num_blocks + 1):
            owners = [seq_id for seq_id, table in tables.items() if block in table]
            x = LEFT + (block - 1) * (CELL + 8)
            fill = PALE_VIOLET if len(owners) > 1 else PALE_GREEN if owners else EMPTY
            card.box(x, y, CELL, CELL - 4, fill, edge=ACCENT if block in copied else EDGE)
            kinds += ["shared"] if len(owners) > 1 else []
            text = "×2" if len(owners) > 1 else owners[0] if owners else ""
            card.text(x + CELL / 2, y + 21, text, anchor="middle", size=12)
    return kinds


def _draw_legend(card: Card, kinds: list[str], y: float) -> None:
    x = 24.0
    for kind in kinds:
        fill, name = NAMES[kind]
        if kind == "waiting":
            card.line([(x, y - 4), (x + 18, y - 4)], color=MUTED, dashed=True)
        else:
            card.box(x, y - 10, 18, 11, fill, edge=fill, rx=1)
        card.text(x + 24, y, name, size=12)
        x += 44 + 6.6 * len(name if isinstance(name, str) else name[0])


def trace_all(folder: Path) -> None:
    """Every run's trace, made on its milestone's tree, M6's at the root, into `folder`."""
    with tempfile.TemporaryDirectory() as trees:
        for run, (milestone, _, _) in RUNS.items():
            tree = ROOT if milestone == "m6" else Path(trees) / milestone  # the root has records
            if not tree.exists():
                _run([sys.executable, "-m", "milestones", "checkout", milestone, str(tree)], ROOT)
            outside = ROOT / "workshop" / "trace_outside.py"
            _run([sys.executable, str(outside), run, str(folder / f"{run}.gz")], tree)


def _run(command: list[str], tree: Path) -> None:
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")


def picture_file(name: str) -> Path:
    return ROOT / "docs" / "figures" / f"{name}.svg"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workshop.trace_pictures")
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("trace", help="run the loads on the milestones' trees")
    kinds.add_parser("draw", help="draw the pictures")
    page = kinds.add_parser("page", help="a page to step through")
    page.add_argument("picture", choices=[name.replace("/trace", "") for name in PICTURES])
    page.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.what == "trace":
        trace_all(TRACES)
        print(f"{TRACES}: {len(RUNS)} traces")
    elif args.what == "draw":
        for name, picture in PICTURES.items():
            picture_file(name).write_text(draw(picture), encoding="utf-8")
            print(picture_file(name).relative_to(ROOT))
    else:
        chosen = next(picture for name, picture in PICTURES.items() if name.replace("/trace", "") == args.picture)
        args.output.write_text(make_page([stored(run) for run, _ in chosen.runs]), encoding="utf-8")
        print(f"written: {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
