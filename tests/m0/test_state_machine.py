"""The state machine: every legal transition, every illegal one, and what the refusal says."""

from __future__ import annotations

import itertools

import pytest

from folovllm import FoloVLLMError, IllegalTransition, SamplingParams, Sequence, SequenceData, SequenceStatus
from folovllm.request import TRANSITIONS

S = SequenceStatus
FINISHED = {S.FINISHED_STOPPED, S.FINISHED_LENGTH_CAPPED, S.FINISHED_ABORTED, S.FINISHED_IGNORED}

# Written out a second time, by hand: a table cannot be its own test.
LEGAL = {
    (S.WAITING, S.RUNNING),
    (S.WAITING, S.FINISHED_ABORTED),
    (S.WAITING, S.FINISHED_IGNORED),
    (S.RUNNING, S.WAITING),
    (S.RUNNING, S.SWAPPED),
    (S.RUNNING, S.FINISHED_STOPPED),
    (S.RUNNING, S.FINISHED_LENGTH_CAPPED),
    (S.RUNNING, S.FINISHED_ABORTED),
    (S.RUNNING, S.FINISHED_IGNORED),
    (S.SWAPPED, S.RUNNING),
    (S.SWAPPED, S.FINISHED_ABORTED),
    (S.SWAPPED, S.FINISHED_IGNORED),
    (S.FINISHED_STOPPED, S.FINISHED_IGNORED),
    (S.FINISHED_LENGTH_CAPPED, S.FINISHED_IGNORED),
}
ALL_PAIRS = list(itertools.product(S, S))


def make_sequence(status: SequenceStatus = S.WAITING) -> Sequence:
    return Sequence("r-0", "r", SequenceData([1, 2, 3]), SamplingParams(), status=status)


def test_every_status_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(S)


@pytest.mark.parametrize(("start", "to"), [p for p in ALL_PAIRS if p in LEGAL], ids=lambda s: s.name)
def test_legal_transition_changes_the_status(start: SequenceStatus, to: SequenceStatus) -> None:
    sequence = make_sequence(start)
    sequence.transition(to)
    assert sequence.status is to


@pytest.mark.parametrize(("start", "to"), [p for p in ALL_PAIRS if p not in LEGAL], ids=lambda s: s.name)
def test_illegal_transition_is_refused_and_changes_nothing(start: SequenceStatus, to: SequenceStatus) -> None:
    sequence = make_sequence(start)
    message = f"status of sequence 'r-0' must not go from {start.name} to {to.name}; legal from here: "
    with pytest.raises(IllegalTransition) as caught:
        sequence.transition(to)
    assert str(caught.value).startswith(message)
    assert sequence.status is start


def test_refusal_lists_what_would_be_legal() -> None:
    with pytest.raises(ValueError, match=r"legal from here: FINISHED_ABORTED, FINISHED_IGNORED, RUNNING$"):
        make_sequence(S.WAITING).transition(S.SWAPPED)
    with pytest.raises(FoloVLLMError, match=r"legal from here: nothing, it is over$"):
        make_sequence(S.FINISHED_ABORTED).transition(S.RUNNING)


@pytest.mark.parametrize("status", list(S), ids=lambda s: s.name)
def test_is_finished(status: SequenceStatus) -> None:
    assert SequenceStatus.is_finished(status) is (status in FINISHED)
    assert make_sequence(status).is_finished() is (status in FINISHED)


def test_finish_reasons() -> None:
    reasons = {status: SequenceStatus.finish_reason(status) for status in S}
    assert reasons.pop(S.FINISHED_STOPPED) == "stop"
    assert reasons.pop(S.FINISHED_LENGTH_CAPPED) == "length"
    assert reasons.pop(S.FINISHED_ABORTED) == "abort"
    assert set(reasons.values()) == {None}  # it runs, or nobody will see it
