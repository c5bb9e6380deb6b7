"""Whatever comes, in chunks of whatever size, however small the cache: every sequence reads its own past, no step is
larger than its budget, no decode is left out for a prompt, all come to their end, and all blocks come back.

The past is checked in a shadow of the KV cache, the rest in ChunkDesk, at every step.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.m3.desk_machine import SETTINGS, DeskMachine, play_random_load
from tests.m5.support import ChunkDesk


class ChunkSchedulerMachine(DeskMachine):
    @initialize(
        num_blocks=st.integers(3, 14) | st.just(120),
        block_size=st.sampled_from([1, 2, 4]),
        num_swap_blocks=st.sampled_from([0, 4, 200]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 12]),
        budget=st.integers(1, 8) | st.integers(9, 40),
        threshold=st.sampled_from([None, None, 0, 1, 2, 3, 5, 9]),
        partial=st.integers(1, 4),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        policy=st.sampled_from(["fcfs", "priority"]),
        seed=st.integers(0, 2**32),
    )
    def begin(self, num_blocks, block_size, num_swap_blocks, seed, **kwargs):
        self.max_model_len = min(24, num_blocks * block_size)
        self.desk = ChunkDesk(
            num_blocks, block_size, num_swap_blocks, max_model_len=self.max_model_len, seed=seed, **kwargs
        )
        self.rng = random.Random(seed)


TestChunkScheduler = ChunkSchedulerMachine.TestCase
TestChunkScheduler.settings = settings(SETTINGS, max_examples=70)


@pytest.mark.exhaustive
class TestChunkSchedulerAtLength(ChunkSchedulerMachine.TestCase):
    settings = settings(SETTINGS, max_examples=200)


@pytest.mark.parametrize("seed", range(30))
def test_nobody_waits_for_ever_under_a_random_load(seed):
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 3]), rng.randrange(6, 26)
    longest = min(30, num_blocks * block_size)
    desk = ChunkDesk(
        num_blocks,
        block_size,
        rng.choice([0, 2, 5, 9, 200]),
        max_num_seqs=rng.choice([4, 6, 12]),
        budget=rng.choice([1, 3, 6, 10, 20]),
        threshold=rng.choice([None, 0, 1, 4]),
        partial=rng.choice([1, 1, 2, 4]),
        max_model_len=longest,
        mode=rng.choice(["auto", "recompute", "swap"]),
        policy=rng.choice(["fcfs", "priority", "priority"]),
        seed=seed,
    )
    play_random_load(desk, rng, longest, count=20)
