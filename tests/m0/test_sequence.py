"""Sequences: tokens counted apart, and forks that share nothing."""

from __future__ import annotations

import pytest

from folovllm import Logprob, SamplingParams, Sequence, SequenceData, SequenceStatus

S = SequenceStatus


def make_sequence(status: SequenceStatus = S.WAITING) -> Sequence:
    return Sequence("r-0", "r", SequenceData([1, 2, 3]), SamplingParams(), status=status)


# --- tokens


def test_accessors_count_prompt_and_output_apart() -> None:
    data = SequenceData([1, 2, 3])
    data.add_token_id(7)
    data.add_token_id(8)
    assert (data.get_len(), data.get_prompt_len(), data.get_output_len()) == (5, 3, 2)
    assert data.get_token_ids() == [1, 2, 3, 7, 8]
    assert data.output_token_ids == [7, 8]


def test_last_token_is_the_prompts_until_there_is_an_output() -> None:
    data = SequenceData([1, 2, 3])
    assert data.get_last_token_id() == 3
    data.add_token_id(9)
    assert data.get_last_token_id() == 9


def test_two_sequence_datas_do_not_share_their_default_output() -> None:
    a, b = SequenceData([1]), SequenceData([1])
    a.add_token_id(5)
    assert b.output_token_ids == []


def test_get_token_ids_is_the_callers_to_change() -> None:
    data = SequenceData([1, 2])
    data.get_token_ids().append(99)
    assert data.get_token_ids() == [1, 2]


def test_a_sequence_has_the_same_accessors() -> None:
    sequence = make_sequence()
    sequence.add_token_id(7)
    assert (sequence.get_len(), sequence.get_prompt_len(), sequence.get_output_len()) == (4, 3, 1)
    assert sequence.get_token_ids() == [1, 2, 3, 7]
    assert sequence.get_last_token_id() == 7


def test_sequences_with_equal_contents_are_different_sequences() -> None:
    a, b = make_sequence(), make_sequence()
    assert a != b
    assert len({a, b}) == 2


# --- fork


def grown_sequence() -> Sequence:
    sequence = make_sequence(S.RUNNING)
    sequence.add_token_id(7)
    sequence.block_ids.append(4)
    sequence.output_logprobs.append({7: Logprob(-0.5, 1, "x")})
    sequence.cumulative_logprob = -0.5
    sequence.num_computed_tokens = 3
    return sequence


@pytest.mark.parametrize("writer", ["parent", "child"])
def test_after_a_fork_neither_sees_what_the_other_does(writer: str) -> None:
    parent = grown_sequence()
    child = parent.fork("r-1")
    writes, other = (parent, child) if writer == "parent" else (child, parent)
    writes.add_token_id(8)
    writes.data.prompt_token_ids[0] = 99
    writes.block_ids.append(5)
    writes.output_logprobs.append({8: Logprob(-3.0)})
    writes.cumulative_logprob -= 3.0
    writes.transition(S.FINISHED_STOPPED)
    assert other.get_token_ids() == [1, 2, 3, 7]
    assert other.block_ids == [4]
    assert len(other.output_logprobs) == 1
    assert other.cumulative_logprob == -0.5
    assert other.status is S.RUNNING


def test_a_fork_copies_every_field() -> None:
    """A field added to Sequence and forgotten in fork() would silently start anew in the child."""
    from dataclasses import fields

    parent = grown_sequence()
    parent.stop_reason = "END"
    child = parent.fork("r-1")
    for f in fields(Sequence):
        if f.name not in ("seq_id", "data"):
            assert getattr(child, f.name) == getattr(parent, f.name), f.name
