"""Whatever happens, in whatever order, however small the cache: every sequence reads its own past, all that came end,
and all blocks come back.

The past is checked in a shadow of the KV cache (shadow_cache.py), at every step; the rules are what users do.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from folovllm.request import SequenceStatus
from tests.m3.support import PagedDesk


class PagedSchedulerMachine(RuleBasedStateMachine):
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

    @rule(
        n=st.sampled_from([1, 1, 2, 3, 5]),
        beams=st.booleans(),
        num_tokens=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        priority=st.integers(-1, 1),
    )
    def arrive(self, n, beams, num_tokens, max_tokens, priority):
        prompt = [self.rng.choice([1, 2]) for _ in range(min(num_tokens, self.max_model_len - 1))]
        width = n if beams else 0
        try:
            self.desk.add(
                str(len(self.desk.requests)), prompt, n=n, max_tokens=max_tokens, priority=priority, beams=width
            )
        except ValueError:  # beams that can never fit are refused by the engine
            assert beams

    @rule()
    def abort(self):
        if self.desk.requests:
            self.desk.abort(self.rng.choice(list(self.desk.requests)))
        self.desk.scheduler.check_invariants()

    @rule()
    def step(self):
        self.desk.step()

    @rule(abort=st.booleans(), stop=st.booleans())
    def eventful_step(self, abort, stop):
        """Somebody aborts while the step runs; stop strings end sequences."""
        output = self.desk.schedule()
        if abort and self.desk.requests:
            self.desk.abort(self.rng.choice(list(self.desk.requests)))
        gone = {seq for seq in output.rows if seq.is_finished()}
        gained = self.desk.update(output)
        assert gone.isdisjoint(gained)
        for seq in gained:
            if stop and self.rng.random() < 0.3:
                request = self.desk.requests[seq.request_id]
                self.desk.scheduler.finish(request, seq, SequenceStatus.FINISHED_STOPPED)
        self.desk.scheduler.check_invariants()

    @rule()
    def interrupted_step(self):
        self.desk.interrupted_step()

    @rule()
    def steps(self):
        for _ in range(6):
            self.desk.step()

    def teardown(self):
        if hasattr(self, "desk"):
            self.desk.run()


SETTINGS = settings(stateful_step_count=40)
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
    for _ in range(2000):
        if len(desk.requests) < 25 and rng.random() < 0.4:
            beams = rng.choice([0, 0, 2, 3, 4])
            prompt = [rng.choice([1, 2]) for _ in range(rng.randrange(1, longest - 1))]
            n, max_tokens, priority = rng.choice([1, 1, 1, 3]), rng.randrange(1, 30), rng.randrange(6)
            try:
                name = str(len(desk.requests))
                desk.add(name, prompt, n=n, max_tokens=max_tokens, beams=beams, priority=priority)
            except ValueError:  # more beams than can ever fit
                assert beams
        elif len(desk.requests) == 25 and not desk.scheduler.has_unfinished_requests():
            break
        desk.step()
    desk.assert_empty()
