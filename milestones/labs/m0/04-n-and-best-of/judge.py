import pytest

from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant

S = SequenceStatus
STOPPED, CAPPED, ABORTED, IGNORED = (
    S.FINISHED_STOPPED,
    S.FINISHED_LENGTH_CAPPED,
    S.FINISHED_ABORTED,
    S.FINISHED_IGNORED,
)


def request(n=2, best_of=3):
    return Request("7", None, [1, 2, 3], SamplingParams(n=n, best_of=best_of))


def with_statuses(*statuses):
    """A request that has made all of its sequences, in these states."""
    asked = request(n=1, best_of=len(statuses))
    while asked.num_unmade:
        asked.make_seq()
    for seq, status in zip(asked.get_seqs(), statuses, strict=True):
        seq.status = status
    return asked


@invariant(1, likely="counts-n")
def test_a_new_request_has_made_its_first_sequence():
    asked = request(n=2, best_of=3)
    expect((list(asked.sequences), asked.num_unmade), (["7-0"], 2))


@invariant(1)
def test_each_sibling_has_the_next_number():
    asked = request(n=2, best_of=3)
    seq = asked.make_seq()
    expect((seq.seq_id, seq.request_id, seq.status.name), ("7-1", "7", "WAITING"))
    asked.make_seq()
    expect((list(asked.sequences), asked.num_unmade), (["7-0", "7-1", "7-2"], 0))


@invariant(1)
def test_they_read_one_prompt():
    asked = request()
    same = asked.make_seq().data.prompt_token_ids is asked.prompt_token_ids
    expect(same, True)


@invariant(2, likely="makes-them-all")
def test_no_more_are_made_than_are_asked_for():
    asked = request(n=1, best_of=4000)
    seqs = asked.unstarted(2)
    expect([seq.seq_id for seq in seqs], ["7-0", "7-1"])
    expect(asked.num_unmade, 3998)


@invariant(2)
def test_no_more_are_made_than_there_are():
    asked = request(n=2, best_of=3)
    expect([seq.seq_id for seq in asked.unstarted(10)], ["7-0", "7-1", "7-2"])


@invariant(2)
def test_those_that_run_or_have_begun_are_left_out():
    asked = with_statuses(S.RUNNING, S.WAITING, S.WAITING)
    asked.sequences["7-1"].add_token_id(4)  # it was preempted: it waits, and has begun
    expect([seq.seq_id for seq in asked.unstarted(3)], ["7-2"])


@invariant(3)
def test_it_is_finished_when_all_have_ended():
    expect(with_statuses(STOPPED, S.RUNNING).is_finished(), False)
    expect(with_statuses(STOPPED, IGNORED).is_finished(), True)


@invariant(3, likely="forgets-the-unmade")
def test_it_is_not_finished_while_some_are_to_come():
    asked = request(n=2, best_of=3)
    asked.first_seq().status = STOPPED
    expect(asked.is_finished(), False)


@invariant(4)
@pytest.mark.parametrize(
    ("statuses", "liveliest"),
    [
        ((S.WAITING, S.RUNNING, STOPPED), "RUNNING"),
        ((S.WAITING, S.SWAPPED), "SWAPPED"),
        ((STOPPED, S.WAITING), "WAITING"),
    ],
)
def test_the_liveliest_counts(statuses, liveliest):
    expect(with_statuses(*statuses).status.name, liveliest)


@invariant(4, likely="forgets-the-unmade")
def test_those_that_are_to_come_wait():
    asked = request(n=2, best_of=3)
    asked.first_seq().status = STOPPED
    expect(asked.status.name, "WAITING")


@invariant(5)
@pytest.mark.parametrize(
    ("statuses", "end"),
    [
        ((STOPPED, STOPPED), "FINISHED_STOPPED"),
        ((STOPPED, CAPPED), "FINISHED_LENGTH_CAPPED"),
        ((CAPPED, ABORTED), "FINISHED_ABORTED"),
    ],
)
def test_how_it_ended(statuses, end):
    expect(with_statuses(*statuses).status.name, end)


@invariant(6, likely="losers-have-a-say")
def test_losers_have_no_say():
    expect(with_statuses(IGNORED, STOPPED).status.name, "FINISHED_STOPPED")


@invariant(6, likely="losers-have-a-say")
def test_losers_alone_are_an_abort():
    expect(with_statuses(IGNORED, IGNORED).status.name, "FINISHED_ABORTED")
