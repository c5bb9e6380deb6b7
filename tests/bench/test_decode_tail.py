"""How a decode is split, and what the model says that leaves of the bandwidth, over the batches of a published load."""

from __future__ import annotations

import random

import pytest

from folovllm.attention.splits import choose_splits
from workshop.bench.decode_tail import TailModel

H100, H200 = TailModel(3.0e12), TailModel(4.3e12)
KV_HEADS = 8  # of Qwen3-0.6B
MAX_MODEL_LEN = 4096


def batches() -> list[list[int]]:
    """The lengths of nano-vllm's benchmark, every 24th step, with all 256 sequences started at once. It draws each
    prompt's length and token ids, and then the outputs' lengths."""
    rng = random.Random(0)
    prompts = [len([rng.randint(0, 10_000) for _ in range(rng.randint(100, 1024))]) for _ in range(256)]
    outputs = [rng.randint(100, 1024) for _ in range(256)]
    lengths = list(zip(prompts, outputs, strict=True))
    running = [[prompt + step for prompt, output in lengths if output > step] for step in range(0, 1024, 24)]
    return [lens for lens in running if lens]


def chosen(lens: list[int]) -> int:
    return choose_splits(len(lens), KV_HEADS, MAX_MODEL_LEN, 64)


@pytest.mark.parametrize("model", [H100, H200], ids=["H100", "H200"])
def test_little_of_the_bandwidth_is_lost_at_the_end_of_a_decode(model: TailModel) -> None:
    shares = [model.share(lens, KV_HEADS, chosen(lens)) for lens in batches()]
    assert min(shares) >= 0.92
    assert sum(shares) / len(shares) >= 0.97


def test_as_they_come_sequences_would_lose_more() -> None:
    longest_first, as_they_come = (
        [H200.share(lens, KV_HEADS, chosen(lens), longest_first=first) for lens in batches()] for first in (True, False)
    )
    assert min(as_they_come) < 0.92
    assert sum(longest_first) - sum(as_they_come) > 0.02 * len(longest_first)


def test_a_small_batch_left_whole_would_lose_most() -> None:
    assert H200.share([1600] * 4, KV_HEADS, 1) < 0.25
    assert H200.share([1600] * 4, KV_HEADS, choose_splits(4, KV_HEADS, 4096, 64)) > 0.92


def test_programs_that_share_a_bandwidth_by_hand() -> None:
    """Two of 10 and 30 bytes at 10 bytes a second in all: until 2 s both have 5 a second, then one has 10."""
    model = TailModel(bandwidth=10.0, places=2, program_bandwidth=100.0, start=1.0)
    assert model.seconds([10.0, 30.0]) == pytest.approx(1 + 2 + 2)
    # With one place they run one after the other, and each waits for its start.
    assert TailModel(10.0, 1, 100.0, 1.0).seconds([10.0, 30.0]) == pytest.approx(1 + 1 + 1 + 3)
    # A single program reads no faster than it can ask.
    assert TailModel(10.0, 2, 2.0, 1.0).seconds([10.0]) == pytest.approx(1 + 5)
