"""Whatever happens to the scheduler, in whatever order: budgets hold, nobody is overtaken, everything ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from folovllm.request import Request, Sequence, SequenceStatus
from tests.m2.support import Desk, rows_of

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
MAX_MODEL_LEN = 16


class SchedulerMachine(RuleBasedStateMachine):
    """Rules are what an engine's users do; a step checks what the scheduler chose against the plain rules."""

    @initialize(
        max_num_seqs=st.integers(1, 6),
        spare_tokens=st.integers(0, 20),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def begin(self, max_num_seqs: int, spare_tokens: int, policy: str) -> None:
        self.budget = MAX_MODEL_LEN + spare_tokens
        self.desk = Desk(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_model_len=MAX_MODEL_LEN,
            policy=policy,
        )
        self.max_num_seqs, self.policy = max_num_seqs, policy
        self.keys: dict[str, tuple[int, int]] = {}

    @rule(
        num_tokens=st.integers(1, MAX_MODEL_LEN - 1),
        n=st.sampled_from([1, 1, 1, 2, 5]),
        max_tokens=st.integers(1, 20),
        priority=st.integers(-2, 2),
    )
    def arrive(self, num_tokens: int, n: int, max_tokens: int, priority: int) -> None:
        name = str(len(self.keys))
        self.keys[name] = (priority if self.policy == "priority" else 0, len(self.keys))
        self.desk.add(name, num_tokens, n=n, max_tokens=max_tokens, priority=priority)

    @rule(seed=st.integers(0, 2**32))
    def abort(self, seed: int) -> None:
        if self.keys:
            self.desk.abort(random.Random(seed).choice(list(self.keys)))
        self.desk.scheduler.check_invariants()

    @rule(seed=st.none() | st.integers(0, 2**32))
    def step(self, seed: int | None) -> None:
        """A seed makes a user abort, and stop strings end sequences, while the step runs."""
        scheduler = self.desk.scheduler
        ran = self._all(RUNNING)
        output = scheduler.schedule()
        self._check_choice(output, ran)
        if seed is not None:
            rng = random.Random(seed)
            if self.keys and rng.random() < 0.5:
                self.desk.abort(rng.choice(list(self.keys)))
            gone = {seq for seq in rows_of(output) if seq.is_finished()}
            gained = self.desk.update(output)
            assert gone.isdisjoint(gained)
            for seq in gained:
                if rng.random() < 0.2:
                    scheduler.finish(self._request(seq), seq, SequenceStatus.FINISHED_STOPPED)
        else:
            assert self.desk.update(output) == rows_of(output)
        scheduler.check_invariants()

    @rule()
    def steps(self) -> None:
        for _ in range(5):
            self.step(None)

    def _check_choice(self, output: Any, ran: list[Sequence]) -> None:
        rows = rows_of(output)
        assert len(set(rows)) == len(rows)
        waiting = [request for request in self.desk.requests.values() if request.has(SequenceStatus.WAITING)]
        assert rows or not waiting  # where somebody waits, somebody runs
        assert set(rows) == set(self._all(RUNNING))
        assert len(rows) <= self.max_num_seqs
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens) <= self.budget
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            assert num_tokens == seq.get_len() - seq.num_computed_tokens
            if seq.sampling_params.n == 1:
                assert num_tokens == (1 if seq in ran else seq.get_prompt_len())
        started = [self.keys[seq.request_id] for seq in rows if seq not in ran]
        left = [self.keys[request.request_id] for request in waiting]
        assert not started or not left or max(started) <= min(left)

    def _all(self, status: SequenceStatus) -> list[Sequence]:
        return [seq for request in self.desk.requests.values() for seq in request.get_seqs(status)]

    def _request(self, seq: Sequence) -> Request:
        return self.desk.requests[seq.request_id]

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        most = sum(20 * request.sampling_params.n for request in self.desk.requests.values())
        self.desk.run(most=most + 1)
        assert all(request.is_finished() for request in self.desk.requests.values())
        scheduler = self.desk.scheduler
        assert (scheduler.num_running_seqs, scheduler.num_used_tokens, len(scheduler.waiting)) == (0, 0, 0)
        assert scheduler.running == []
        assert scheduler.schedule().is_empty


SETTINGS = settings(stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(SETTINGS, max_examples=60)


@pytest.mark.exhaustive
class TestSchedulerAtLength(SchedulerMachine.TestCase):
    settings = settings(SETTINGS, max_examples=150)
