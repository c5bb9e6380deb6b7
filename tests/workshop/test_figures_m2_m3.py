"""The drawn figures of M2 and M3 show what the example and the arithmetic say."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop import figures_m2, figures_m3

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.mark.parametrize("milestone", ["m2", "m3"])
def test_the_files_are_what_the_script_draws(milestone: str) -> None:
    for name, card in {"m2": figures_m2, "m3": figures_m3}[milestone].cards().items():
        drawn = (FIGURES / milestone / f"{name}.svg").read_text(encoding="utf-8")
        assert drawn == str(card), f"python -m workshop.figures_{milestone}"


def test_the_sizes_are_those_worked_out_by_hand() -> None:
    for sequences in ("55 sequences", "491 sequences", ">3 sequences", "221 sequences", "658 sequences"):
        assert sequences in str(figures_m3.sizing())
