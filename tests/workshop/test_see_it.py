"""The picture of the page "See it" is what its script makes of a run."""

from __future__ import annotations

import pytest

from folovllm.tracing.reader import Trace
from workshop.see_it import ROOT, WORDS, draw, trace_of_example


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of_example()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_picture_is_up_to_date(trace: Trace, language: str) -> None:
    """Else: python -m workshop.see_it"""
    path = ROOT / "docs" / language / "see-it.svg"
    assert path.read_text(encoding="utf-8") == draw(trace, language)


def test_both_languages_have_the_same_words() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
