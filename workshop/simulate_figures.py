"""The two figures of the note on the simulator, and the loads that they are drawn from.

    python -m workshop.simulate_figures run     simulates the note's loads again: docs/benchmarks/data/simulate-*.json
    python -m workshop.simulate_figures draw    draws docs/figures/simulate-*.svg from these files

A file says by which command it was made, so that command is what `run` runs. No number stands here.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milestones.site.source import ROOT
from workshop.figure_card import GREEN, ORANGE, PALE_BLUE, Card, Text

DATA, FIGURES = ROOT / "docs" / "benchmarks" / "data", ROOT / "docs" / "figures"
LOADS = ("budget", "cache", "policy", "router", "tp4", "tp2-replicas", "replicas4")
WIDTH, LEFT, PANEL, LABEL, BAR, ROW, TOP = 860, 24, 416, 104, 200, 36, 84
"""Of a card, in px: its left edge, from panel to panel, from a label to its bar, the longest bar, from row to row."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """Bars of one column. `text`: what stands behind a bar."""

    name: Text
    column: str
    fill: str
    text: Callable[[float], str]


@dataclass(frozen=True)
class Figure:
    data: str
    title: tuple[str, str]
    heading: tuple[str, str]
    label: Callable[[str], Text]
    panels: tuple[Panel, Panel]


ROUTERS = {"round-robin": ("turns", "轮流"), "least-loaded": ("least", "最闲"), "prefix-affinity": ("prefix", "看前缀")}


def _budget(setting: str) -> Text:
    return setting.removeprefix("budget ")


def _router(setting: str) -> Text:
    rate, router = setting.removeprefix("requests/s ").split(", router ")
    english, chinese = ROUTERS[router]
    return f"{rate}/s {english}", f"{rate}/s {chinese}"


def _ms(value: float) -> str:
    return f"{value:.0f} ms"


PICTURES = {
    "simulate-budget": Figure(
        "simulate-budget",
        (
            "A larger budget shortens the wait for the first token up to 2,048, and lengthens the longest gaps between "
            "tokens all the way",
            "预算变大，等首个 token 的时间到 2,048 为止越来越短，token 之间最长的间隔却一路变长",
        ),
        (
            "Llama-3.1-8B on an H100, 4 requests/s of 2,000 to 6,000 tokens, by budget: simulated",
            "H100 上的 Llama-3.1-8B，每秒 4 个请求，提示词 2,000 到 6,000 个 token，按预算：模拟",
        ),
        _budget,
        (Panel("TTFT p95", "ttft_p95_ms", PALE_BLUE, _ms), Panel("ITL p99", "itl_p99_ms", ORANGE, _ms)),
    ),
    "simulate-router": Figure(
        "simulate-router",
        (
            "Four replicas: the router that looks at prefixes finds more than eight tenths of the prompts in a cache, "
            "the others less than half",
            "四个副本：看前缀的路由在缓存里找到八成多的提示词，另外两种不到一半",
        ),
        (
            "Four H100s with 3,000 blocks each, 32 prefixes of 2,000 tokens: simulated",
            "四块 H100，每块 3,000 个块，32 种前缀各 2,000 个 token：模拟",
        ),
        _router,
        (
            Panel(
                ("prompt tokens found in a cache", "在缓存里找到的提示词 token"),
                "hit_rate",
                GREEN,
                lambda v: f"{v:.0%}",
            ),
            Panel("TTFT p95", "ttft_p95_ms", PALE_BLUE, _ms),
        ),
    ),
}


def picture_file(name: str) -> Path:
    return FIGURES / f"{name}.svg"


def stored(name: str) -> dict[str, Any]:
    """The file of a load: its command, its rows."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def draw(figure: Figure, rows: list[Row]) -> str:
    """Two panels side by side, a bar for each row; the longest bar of a panel is as long as there is room."""
    card = Card(WIDTH, TOP + ROW * len(rows) + 16, figure.title)
    card.text(LEFT, 34, figure.heading, bold=True, size=15)
    for number, panel in enumerate(figure.panels):
        left, most = LEFT + number * PANEL, max(row[panel.column] for row in rows)
        card.text(left, TOP - 18, panel.name, bold=True)
        for place, row in enumerate(rows):
            top, value = TOP + place * ROW, row[panel.column]
            length = round(BAR * value / most, 1)
            card.text(left, top + 17, figure.label(row["setting"]), size=13)
            card.box(left + LABEL, top, length, 24, panel.fill, rx=3)
            card.text(left + LABEL + length + 8, top + 17, panel.text(value), size=13)
    return str(card)


def run(name: str) -> None:
    """Simulate one load again, by the command that its file has."""
    from folovllm.entrypoints.cli.main import main as folovllm

    if folovllm(shlex.split(stored(name)["command"])[1:]):
        raise SystemExit(f"{name} could not be simulated")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.simulate_figures", description=__doc__)
    parser.add_argument("what", choices=["run", "draw"])
    if parser.parse_args().what == "run":
        for load in LOADS:
            run(f"simulate-{load}")
        return
    for name, figure in PICTURES.items():
        picture_file(name).write_text(draw(figure, stored(figure.data)["rows"]), encoding="utf-8")


if __name__ == "__main__":
    main()
