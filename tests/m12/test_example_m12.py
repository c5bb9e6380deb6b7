"""examples/m12_lora.py says what it sets out to say."""

from __future__ import annotations

import pytest

from tests.helpers import run_example


@pytest.mark.exhaustive  # it trains
def test_each_voice_is_heard_in_one_batch() -> None:
    *voices, last = run_example("m12_lora.py").splitlines()
    assert [line.partition(":")[0] for line in voices] == ["nobody", "pirate", "teacher", "telegram"]
    assert all("6 of 6 answers are the merged model's" in line for line in voices)
    assert last == "24 requests of 3 voices and of none in one batch"
