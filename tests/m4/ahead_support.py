"""Shared by M4's tests of asynchronous scheduling: an engine watched at every step, and outputs as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from folovllm import LLMEngine
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.model_runner_output import ModelRunnerOutput


class WatchedStep:
    """Tells when it is asked for its output."""

    def __init__(self, step: AsyncModelRunnerOutput, asked: Callable[[], None]) -> None:
        self.step, self.asked = step, asked

    def get_output(self) -> ModelRunnerOutput:
        self.asked()
        return self.step.get_output()


class Watch:
    """Writes down in which order an engine's steps are launched and collected, and who was computed ahead.

    Attributes:
        events: ("launch" or "collect", number of the step), in order; steps that compute nothing have none.
        ahead: the steps that were launched while another was in flight.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine, self.events, self.ahead = engine, [], []  # type: ignore[var-annotated]
        self._num_launched = 0
        launch = engine.runner.execute_model

        def launching(scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
            step = launch(scheduled)
            if scheduled.is_empty:
                return step
            if self.in_flight:
                self.ahead.append(scheduled)
            number, self._num_launched = self._num_launched, self._num_launched + 1
            self.events.append(("launch", number))
            return cast("AsyncModelRunnerOutput", WatchedStep(step, lambda: self.events.append(("collect", number))))

        engine.runner.execute_model = launching  # type: ignore[method-assign]

    @property
    def in_flight(self) -> int:
        launched = sum(kind == "launch" for kind, _ in self.events)
        return 2 * launched - len(self.events)

    def step(self) -> list[RequestOutput]:
        """One step; afterwards everything must be in its place, and no token unknown."""
        outputs = self.engine.step()
        assert_sound(self.engine)
        for output in outputs:
            assert all(UNKNOWN not in completion.token_ids for completion in output.outputs)
        return outputs

    def run(self) -> dict[str, RequestOutput]:
        """Step to the end: the finished outputs."""
        done: dict[str, RequestOutput] = {}
        for _ in range(3000):
            if not self.engine.has_unfinished_requests():
                return done
            done |= {output.request_id: output for output in self.step() if output.finished}
        raise AssertionError("somebody waits for ever")


def assert_sound(engine: LLMEngine) -> None:
    engine.scheduler.check_invariants()
    for request in engine.requests.values():
        for seq in request.get_seqs():
            assert UNKNOWN not in seq.data.output_token_ids


def told(output: RequestOutput) -> dict[str, Any]:
    """All that a user sees, log-probabilities rounded: batches of other sizes add up in another order."""
    return {
        "prompt_logprobs": _entries(output.prompt_logprobs),
        "outputs": [_completion(completion) for completion in output.outputs],
    }


def _completion(completion: CompletionOutput) -> dict[str, Any]:
    total = completion.cumulative_logprob
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "cumulative_logprob": None if total is None else pytest.approx(total, abs=1e-3),
        "logprobs": _entries(completion.logprobs),
    }


def _entries(rows: Any) -> Any:
    if rows is None:
        return None
    return [
        None if row is None else {token_id: pytest.approx(entry.logprob, abs=1e-3) for token_id, entry in row.items()}
        for row in rows
    ]


def count(ahead: list[SchedulerOutput], when: Callable[[SchedulerOutput], bool]) -> int:
    return sum(map(when, ahead))
