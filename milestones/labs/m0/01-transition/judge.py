from folovllm.errors import IllegalTransition
from folovllm.request import Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant, raises

S = SequenceStatus
LEGAL = {  # as the note has it
    "WAITING": "RUNNING FINISHED_ABORTED FINISHED_IGNORED",
    "RUNNING": "WAITING SWAPPED FINISHED_STOPPED FINISHED_LENGTH_CAPPED FINISHED_ABORTED FINISHED_IGNORED",
    "SWAPPED": "RUNNING FINISHED_ABORTED FINISHED_IGNORED",
    "FINISHED_STOPPED": "FINISHED_IGNORED",
    "FINISHED_LENGTH_CAPPED": "FINISHED_IGNORED",
}


def sequence(status):
    return Sequence("7-0", "7", SequenceData([1, 2, 3]), SamplingParams(), status=status)


@invariant(1)
def test_a_waiting_sequence_runs():
    seq = sequence(S.WAITING)
    seq.transition(S.RUNNING)
    expect(seq.status.name, "RUNNING")


@invariant(1)
def test_a_running_sequence_stops():
    seq = sequence(S.RUNNING)
    seq.transition(S.FINISHED_STOPPED)
    expect(seq.status.name, "FINISHED_STOPPED")


@invariant(1)
def test_nothing_but_the_status_changes():
    for there in (S.WAITING, S.SWAPPED, S.FINISHED_ABORTED):
        seq = sequence(S.RUNNING)
        seq.block_ids, seq.num_computed_tokens = [5, 9], 3
        seq.transition(there)
        expect((seq.block_ids, seq.num_computed_tokens, seq.stop_reason), ([5, 9], 3, None))


@invariant(2)
def test_nothing_that_is_over_runs_again():
    seq = sequence(S.FINISHED_STOPPED)
    with raises(IllegalTransition):
        seq.transition(S.RUNNING)


@invariant(2)
def test_nothing_ends_twice():
    seq = sequence(S.FINISHED_ABORTED)
    with raises(IllegalTransition):
        seq.transition(S.FINISHED_ABORTED)


@invariant(2)
def test_fourteen_moves_of_forty_nine_are_legal():
    for here in S:
        went = []
        for there in S:
            seq = sequence(here)
            try:
                seq.transition(there)
                went.append(there.name)
            except IllegalTransition:
                pass
        expect(sorted(went), sorted(LEGAL.get(here.name, "").split()))


@invariant(3)
def test_a_refused_move_has_not_happened():
    seq = sequence(S.FINISHED_STOPPED)
    with raises(IllegalTransition):
        seq.transition(S.RUNNING)
    expect(seq.status.name, "FINISHED_STOPPED")


@invariant(4)
def test_the_message_names_the_sequence_and_the_move():
    seq = sequence(S.SWAPPED)
    says = "status of sequence '7-0' must not go from SWAPPED to WAITING; legal from here: "
    with raises(IllegalTransition, says=says):
        seq.transition(S.WAITING)


@invariant(5)
def test_the_message_lists_what_is_legal():
    seq = sequence(S.SWAPPED)
    with raises(IllegalTransition, says="; legal from here: FINISHED_ABORTED, FINISHED_IGNORED, RUNNING"):
        seq.transition(S.WAITING)


@invariant(5)
def test_the_message_says_that_it_is_over():
    seq = sequence(S.FINISHED_IGNORED)
    with raises(IllegalTransition, says="; legal from here: nothing, it is over"):
        seq.transition(S.RUNNING)


@invariant(5)
def test_the_message_ends_with_the_list():
    seq = Sequence("7-1", "7", SequenceData([1, 2, 3]), SamplingParams(), status=S.RUNNING)
    says = "no error"
    try:
        seq.transition(S.RUNNING)
    except IllegalTransition as error:
        says = str(error)
    every = "FINISHED_ABORTED, FINISHED_IGNORED, FINISHED_LENGTH_CAPPED, FINISHED_STOPPED, SWAPPED, WAITING"
    expect(says, f"status of sequence '7-1' must not go from RUNNING to RUNNING; legal from here: {every}")


@invariant(5)
def test_nothing_stands_behind_it_where_it_is_over():
    seq = sequence(S.FINISHED_IGNORED)
    says = "no error"
    try:
        seq.transition(S.RUNNING)
    except IllegalTransition as error:
        says = str(error)
    expect(says.partition("here: ")[2], "nothing, it is over")
