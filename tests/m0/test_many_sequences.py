"""A request of thousands of sequences costs a step no more than those of them that run."""

from __future__ import annotations

from typing import Any

from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams

RUNNING, STOPPED = SequenceStatus.RUNNING, SequenceStatus.FINISHED_STOPPED


class CountedWalks(dict[str, Sequence]):
    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_whether_one_runs_is_not_asked_of_all_for_each_that_ends() -> None:
    request = Request("r", None, [1], SamplingParams(n=1000))
    running = request.get_seqs()[:200]
    for seq in running:
        seq.transition(RUNNING)
    request.sequences = sequences = CountedWalks(request.sequences)
    for number, seq in enumerate(running):
        assert request.has(RUNNING)
        assert request.has(SequenceStatus.WAITING)
        assert request.has(STOPPED) == (number > 0)
        seq.transition(STOPPED)
    assert not request.has(RUNNING)
    assert sequences.walks <= 6


def test_a_sequence_that_has_left_its_request_is_not_found_there() -> None:
    request = Request("r", None, [1], SamplingParams(n=2))
    assert request.has(SequenceStatus.WAITING)
    request.sequences = {}
    assert not request.has(SequenceStatus.WAITING)
