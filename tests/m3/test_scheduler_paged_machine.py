"""Whatever happens, in whatever order, however small the cache: every sequence reads its own past, all that came end,
and all blocks come back.

The past is checked in a shadow of the KV cache (shadow_cache.py), at every step; the rules are what users do.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.m3.desk_machine import SETTINGS, DeskMachine, play_random_load
from tests.m3.support import PagedDesk


class PagedSchedulerMachine(DeskMachine):
    @initialize(
        num_blocks=st.integers(3, 14) | st.just(120),
        block_size=st.sampled_from([1, 2, 4]),
        num_swap_blocks=st.sampled_from([0, 4, 200]),
        max_num_seqs=st.sampled_from([1, 2, 3, 5, 12]),
        spare_tokens=st.integers(0, 30),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        policy=st.sampled_from(["fcfs", "priority"]),
        seed=st.integers(0, 2**32),
    )
    def begin(self, num_blocks, block_size, num_swap_blocks, max_num_seqs, spare_tokens, mode, policy, seed):
        self.max_model_len = min(24, num_blocks * block_size)
        self.desk = PagedDesk(
            num_blocks,
            block_size,
            num_swap_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.max_model_len + spare_tokens,
            max_model_len=self.max_model_len,
            mode=mode,
            policy=policy,
            seed=seed,
        )
        self.rng = random.Random(seed)


TestPagedScheduler = PagedSchedulerMachine.TestCase
TestPagedScheduler.settings = settings(SETTINGS, max_examples=80)


@pytest.mark.exhaustive
class TestPagedSchedulerAtLength(PagedSchedulerMachine.TestCase):
    settings = settings(SETTINGS, max_examples=300)


@pytest.mark.parametrize("seed", [*range(12), 48, 333, 336, 373, 396])
def test_nobody_waits_for_ever_under_a_random_load(seed):
    """The last five made beams that had come back in part wait for one another, once."""
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 3]), rng.randrange(6, 26)
    longest = min(30, num_blocks * block_size)
    desk = PagedDesk(
        num_blocks,
        block_size,
        rng.choice([0, 2, 5, 9, 200]),
        max_num_seqs=rng.choice([4, 6, 12]),
        max_num_batched_tokens=rng.choice([longest, 2 * longest, 100]),
        max_model_len=longest,
        mode=rng.choice(["auto", "recompute", "swap"]),
        policy=rng.choice(["fcfs", "priority", "priority"]),
        seed=seed,
    )
    play_random_load(desk, rng, longest, count=25)
