"""Whatever comes, however small the cache: each group of layers finds the keys that its queries read, its own and
behind the sequence's own beginning, and no group holds more than its window needs.

The past is checked in a shadow of the KV cache at every step (hybrid_support.py).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from folovllm.core import group_tables, kv_cache_manager
from folovllm.kv_cache_groups import KVCacheGroups
from tests.m3.desk_machine import SETTINGS, play_random_load
from tests.m6.test_scheduler_caching_machine import DIGESTS, CachingSchedulerMachine
from tests.m11.models.hybrid_support import HybridDesk

# Gemma: one group of full layers and several with a window; GPT-OSS; Mistral; and two windows without a full layer.
WINDOWS = [(None, 5, 5, 5), (None, 6), (7,), (9, 4), (None, None, 1), (None, 12, 3)]
# What a load finds wrong -> where it is planted.
FAULTS = {
    "a block is freed too early": (KVCacheGroups, "first_block"),
    "a hit although a block of a window is gone": (group_tables, "_first_missing"),
    "a sibling's blocks are shared although its window has left them": (kv_cache_manager, "serves"),
    "nothing is freed": (kv_cache_manager, "free_outside_windows"),
    "the first group's blocks are freed first": (kv_cache_manager, "get_block_ids"),
}


def play(seed: int, count: int = 14) -> HybridDesk:
    rng = random.Random(seed)
    windows, block_size = WINDOWS[seed % len(WINDOWS)], rng.choice([1, 2, 3, 4])
    budget, threshold = rng.choice([2, 5, 9, 30]), rng.choice([None, 0, 3])
    fewest = KVCacheGroups(windows, (), block_size, threshold or budget).most_blocks(12)
    desk = HybridDesk(
        rng.randrange(fewest, 3 * fewest), block_size, rng.choice([0, 4, 9, 200]), windows=windows, budget=budget,
        threshold=threshold, max_num_seqs=rng.choice([4, 6, 12]), partial=rng.choice([1, 2]), max_model_len=40,
        mode=rng.choice(["auto", "recompute", "swap"]), policy=rng.choice(["fcfs", "priority"]), seed=seed,
    )  # fmt: skip
    longest = desk.scheduler.max_model_len
    prefix = [rng.choice([1, 2]) for _ in range(longest)]

    def prompt() -> list[int]:
        own = [rng.choice([1, 2]) for _ in range(rng.randrange(1, longest - 1))]
        return [*prefix[: rng.randrange(longest)], *own][: longest - 1]

    play_random_load(desk, rng, longest, count=count, prompt=prompt, salt=lambda: rng.choice([None, None, "a"]))
    return desk


def test_every_group_reads_its_own_keys_under_random_loads():
    desks = [play(seed) for seed in range(24)]
    assert sum(desk.scheduler.preempter.num_swapped for desk in desks) > 0
    assert sum(desk.scheduler.preempter.num_recomputed for desk in desks) > 0
    assert sum(desk.kv.num_hits for desk in desks) > 0


class HybridSchedulerMachine(CachingSchedulerMachine):
    """Aborts, stops, resets and interrupted steps as well."""

    @initialize(
        windows=st.sampled_from(WINDOWS),
        block_size=st.sampled_from([1, 2, 4]),
        budget=st.integers(1, 8) | st.integers(9, 40),
        spare=st.sampled_from([0, 1, 4, 9, 100]),
        num_swap_blocks=st.sampled_from([0, 4, 200]),
        max_num_seqs=st.sampled_from([1, 3, 5, 12]),
        partial=st.integers(1, 3),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        digest=st.sampled_from(["sha256", "two names"]),
        seed=st.integers(0, 2**32),
    )
    def begin(self, windows, block_size, budget, spare, num_swap_blocks, digest, seed, **kwargs):
        num_blocks = KVCacheGroups(windows, (), block_size, budget).most_blocks(12) + spare
        # A block whose window has no full layer in front is known by its own tokens alone, whatever their name.
        digest = digest if windows[0] is None else "sha256"
        self.desk = HybridDesk(
            num_blocks, block_size, num_swap_blocks, windows=windows, budget=budget, digest=DIGESTS[digest], seed=seed,
            max_model_len=24, **kwargs,
        )  # fmt: skip
        self.max_model_len = self.desk.scheduler.max_model_len
        self.rng = random.Random(seed)
        self.prefixes = [[self.rng.choice([1, 2]) for _ in range(24)] for _ in range(2)]


@pytest.mark.exhaustive
class TestHybridScheduler(HybridSchedulerMachine.TestCase):
    settings = settings(SETTINGS, max_examples=150)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    owner, name = FAULTS[fault]
    right: Any = getattr(owner, name)
    wrong: dict[str, Any] = {
        "first_block": lambda self, group, position: right(self, group, position + self.block_size),
        "_first_missing": lambda pool, groups, chain, tables, length: (
            right(pool, groups, chain, tables, length) and None
        ),
        "serves": lambda *_: True,
        "free_outside_windows": lambda *_: None,
        "get_block_ids": lambda seq: right(seq)[::-1] if seq.further_tables else right(seq),
    }
    monkeypatch.setattr(owner, name, wrong[name])
    with pytest.raises((AssertionError, RuntimeError)):
        [play(seed) for seed in range(24)]
