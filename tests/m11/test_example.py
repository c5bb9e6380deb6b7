"""examples/m11_any_model.py says what it sets out to say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers import run_example


def test_tokens_are_equal_and_a_refusal_has_its_reason(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["m11_any_model.py", "gpt2", "gpt_oss", "bloom"])
    gpt2, gpt_oss, bloom = run_example("m11_any_model.py").splitlines()
    assert gpt2.startswith("gpt2: 4 layers, 4 heads on 4 of 16; 3 of 3 answers are generate()'s, 80 prompt tokens")
    assert gpt2.endswith("; 128 tokens take 16 blocks")
    assert gpt_oss.startswith("gpt_oss: 4 layers, 4 heads on 2 of 16, sinks and sliding_window; 3 of 3 answers are")
    assert gpt_oss.endswith("; 128 tokens take 16 + 5 blocks")  # of 8: a window of 16, and chunks of 16
    assert bloom == (
        "bloom: refused. model_impl 'transformers' cannot compute model_type 'bloom': 0 of its 4 layers ask for "
        "attention: the others have some of their own, or none, or share a module"
    )


@pytest.mark.exhaustive
def test_the_notes_are_searched():
    if not (Path(__file__).parents[2] / "docs" / "en" / "m6").is_dir():
        pytest.skip("this tree has no notes to search")
    mean, *_, of_means, last, _, _, of_lasts = run_example("pooling.py").splitlines()
    assert (mean, last) == ("mean:", "lasttoken:")
    for line in (of_means, of_lasts):
        assert re.fullmatch(r"\d+ of \d+ second halves have their first among the 5 nearest", line)
