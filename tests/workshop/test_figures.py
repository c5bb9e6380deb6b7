"""The drawn figures are what their script draws, and their numbers are the notes'."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from workshop import figures_m2, figures_m3
from workshop.figures import m0, m1_model
from workshop.figures.__main__ import drawn, stale


def test_each_figure_on_disk_is_what_the_script_draws() -> None:
    assert stale() == [], "run python -m workshop.figures"


def test_no_figure_is_wider_than_a_page() -> None:
    assert all('viewBox="0 0 860 ' in svg for svg in drawn().values())


def test_the_figures_compute_what_the_notes_say() -> None:
    assert m0.at(0.5)["A"] == pytest.approx(100 / 136.5)  # m0/sampling.md#fields
    assert m0.top_p(m0.at(1), 0.75) == "AB"
    assert m0.min_p(m0.at(2), 0.2) == "ABCDE"
    assert m0.softmax(m0.penalised()[-1][1])["B"] == pytest.approx(0.533, abs=5e-4)  # m0/sampling.md#fields
    assert m1_model.weights()[2] == pytest.approx([0.074, 0.306, 0.620], abs=5e-4)  # m1/attention-by-hand.md#softmax


@pytest.mark.parametrize(("milestone", "module"), [("m2", figures_m2), ("m3", figures_m3)])
def test_the_files_of_m2_and_m3_are_what_their_scripts_draw(milestone: str, module: ModuleType) -> None:
    for name, card in module.cards().items():
        drawn = (Path("docs/figures") / milestone / f"{name}.svg").read_text(encoding="utf-8")
        assert drawn == str(card), f"python -m workshop.figures_{milestone}"


def test_the_sizes_are_those_worked_out_by_hand() -> None:
    for sequences in ("55 sequences", "491 sequences", ">3 sequences", "221 sequences", "658 sequences"):
        assert sequences in str(figures_m3.sizing())
