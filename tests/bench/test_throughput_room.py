"""`bench throughput`: our cache has the room that a peer's has, and the warm-up uses all of it once."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm.bench import race, throughput
from folovllm.bench.contestant import FoloVLLM
from folovllm.bench.workload import BenchModel


def test_the_cache_is_for_just_these_requests_and_the_warm_up_has_as_many(oracle, monkeypatch) -> None:
    made: list[Any] = []

    class Seen(FoloVLLM):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.counts: list[int] = []
            made.append(self)

        def run(self, prompts, num_tokens):
            self.counts.append(len(prompts))
            return super().run(prompts, num_tokens)

    monkeypatch.setattr(race, "FoloVLLM", Seen)
    model = BenchModel("tiny", str(oracle.folder), "auto")
    throughput.run(
        model, command="", dtype="float32", device="cpu", num_requests=3, input_len=20, output_len=13, rounds=2
    )
    (ours,) = made
    stats = ours.engine.stats()
    assert stats.kv_blocks_total == 3 * (3 + 1)  # 33 tokens are three blocks of 16, and one to run ahead into
    assert stats.preemptions == 0
    assert ours.counts == [3, 3, 3]


@pytest.mark.parametrize(("input_len", "output_len"), [(16, 16), (15, 2), (31, 33)])
def test_the_room_is_enough_where_lengths_end_with_a_block(oracle, input_len: int, output_len: int) -> None:
    model = BenchModel("tiny", str(oracle.folder), "auto")
    report = throughput.run(
        model,
        command="",
        dtype="float32",
        device="cpu",
        num_requests=4,
        input_len=input_len,
        output_len=output_len,
        rounds=1,
    )
    assert report.rows[0]["kv_used_tokens"] >= 4 * (input_len + output_len - 2)  # all four at once
