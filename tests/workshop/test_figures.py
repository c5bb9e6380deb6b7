"""The figures' numbers are the notes'. `make docs` draws all of them anew and names those that changed."""

from __future__ import annotations

import pytest

from workshop import figures_m3
from workshop.figures import m0, m1_model
from workshop.figures.__main__ import drawn
from workshop.see_it import WORDS


def test_no_figure_is_wider_than_a_page() -> None:
    assert all('viewBox="0 0 860 ' in svg for svg in drawn().values())


def test_the_figures_compute_what_the_notes_say() -> None:
    assert m0.at(0.5)["A"] == pytest.approx(100 / 136.5)  # m0/sampling.md#fields
    assert m0.top_p(m0.at(1), 0.75) == "AB"
    assert m0.min_p(m0.at(2), 0.2) == "ABCDE"
    assert m0.softmax(m0.penalised()[-1][1])["B"] == pytest.approx(0.533, abs=5e-4)  # m0/sampling.md#fields
    assert m1_model.weights()[2] == pytest.approx([0.074, 0.306, 0.620], abs=5e-4)  # m1/attention-by-hand.md#softmax
    for sequences in ("55 sequences", "491 sequences", ">3 sequences", "221 sequences", "658 sequences"):
        assert sequences in str(figures_m3.sizing())  # m3/sizing.md


def test_both_languages_of_the_page_see_it_have_the_same_words() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
