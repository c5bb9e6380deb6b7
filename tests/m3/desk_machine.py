"""What users do to a scheduler, in any order: the rules that the machines of M3, M5 and M6 share, and a random load."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from folovllm.request import SequenceStatus

SETTINGS = settings(stateful_step_count=40)


def is_busy(machine: DeskMachine) -> bool:
    return machine.desk.scheduler.has_unfinished_requests()


class DeskMachine(RuleBasedStateMachine):
    """A machine's own begin() makes `desk`, `rng` and `max_model_len`. The desk checks every step."""

    desk: Any
    rng: random.Random
    max_model_len: int

    @rule(
        n=st.sampled_from([1, 1, 2, 3, 5]),
        beams=st.booleans(),
        num_tokens=st.integers(1, 23),
        max_tokens=st.integers(1, 20),
        priority=st.integers(-1, 1),
    )
    def arrive(self, n, beams, num_tokens, max_tokens, priority):
        prompt = [self.rng.choice([1, 2]) for _ in range(num_tokens)]
        self.add(prompt, n=n, beams=n if beams else 0, max_tokens=max_tokens, priority=priority)

    def add(self, prompt: list[int], **kwargs: Any) -> None:
        try:
            self.desk.add(str(len(self.desk.requests)), prompt[: self.max_model_len - 1], **kwargs)
        except ValueError:  # beams that can never fit are refused by the engine
            assert kwargs["beams"]

    @precondition(is_busy)
    @rule()
    def abort(self):
        self.desk.abort(self.rng.choice(list(self.desk.requests)))
        self.desk.scheduler.check_invariants()

    @precondition(is_busy)
    @rule(abort=st.booleans(), stop=st.booleans())
    def eventful_step(self, abort, stop):
        """A user aborts while the step runs; stop strings end sequences."""
        output = self.desk.schedule()
        if abort:
            self.desk.abort(self.rng.choice(list(self.desk.requests)))
        self.end_step(output, stop)

    def end_step(self, output: Any, stop: bool) -> None:
        gone = {seq for seq in output.rows if seq.is_finished()}
        gained = self.desk.update(output)
        assert gone.isdisjoint(gained)
        for seq in gained:
            if stop and self.rng.random() < 0.3:
                request = self.desk.requests[seq.request_id]
                self.desk.scheduler.finish(request, seq, SequenceStatus.FINISHED_STOPPED)
        self.desk.scheduler.check_invariants()

    @precondition(is_busy)
    @rule()
    def interrupted_step(self):
        self.desk.interrupted_step()

    @precondition(is_busy)
    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            self.desk.step()

    def teardown(self):
        if hasattr(self, "desk"):
            self.desk.run()


def play_random_load(
    desk: Any,
    rng: random.Random,
    longest: int,
    *,
    count: int,
    prompt: Callable[[], list[int]] | None = None,
    **more: Callable[[], Any],
) -> None:
    """`count` requests at random moments, stepped until all have ended. more: further arguments of desk.add()."""
    for _ in range(3000):
        if len(desk.requests) < count and rng.random() < 0.4:
            beams = rng.choice([0, 0, 2, 3, 4])
            tokens = prompt() if prompt else [rng.choice([1, 2]) for _ in range(rng.randrange(1, longest - 1))]
            kwargs = {"n": rng.choice([1, 1, 1, 3]), "max_tokens": rng.randrange(1, 30), "priority": rng.randrange(6)}
            try:
                name = str(len(desk.requests))
                desk.add(name, tokens, beams=beams, **kwargs, **{key: draw() for key, draw in more.items()})
            except ValueError:  # more beams than can ever fit
                assert beams
        elif len(desk.requests) == count and not desk.scheduler.has_unfinished_requests():
            break
        desk.step()
    desk.assert_empty()
