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
    for seq, status in zip(asked.get_seqs(), statuses, strict=True):
        seq.status = status
    return asked


@invariant(1, likely="counts-n")
def test_as_many_as_are_run():
    expect(list(request(n=2, best_of=3).sequences), ["7-0", "7-1", "7-2"], mistakes={"counts-n": ["7-0", "7-1"]})


@invariant(1)
def test_as_many_as_come_back_where_best_of_is_not_given():
    expect(list(Request("7", None, [1, 2, 3], SamplingParams(n=2)).sequences), ["7-0", "7-1"])


@invariant(1)
def test_each_belongs_to_the_request_and_waits():
    asked = request(n=2, best_of=3)
    expect({(seq.request_id, seq.status.name) for seq in asked.get_seqs()}, {("7", "WAITING")})


@invariant(2)
def test_they_read_one_prompt():
    asked = request()
    expect([seq.data.prompt_token_ids is asked.prompt_token_ids for seq in asked.get_seqs()], [True, True, True])


@invariant(2, likely="shares-the-output")
def test_each_writes_an_output_of_its_own():
    asked = request(n=2, best_of=3)
    asked.sequences["7-1"].add_token_id(4)
    expect([seq.get_output_len() for seq in asked.get_seqs()], [0, 1, 0], mistakes={"shares-the-output": [1, 1, 1]})


@invariant(3, likely="asks-the-first")
def test_it_is_finished_when_all_have_ended():
    expect(with_statuses(STOPPED, S.RUNNING).is_finished(), False)
    expect(with_statuses(STOPPED, IGNORED).is_finished(), True)


@invariant(3, likely="asks-the-first")
def test_one_that_waits_is_to_come():
    expect(with_statuses(STOPPED, S.WAITING, S.WAITING).is_finished(), False)


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


@invariant(6)
def test_losers_alone_are_an_abort():
    expect(with_statuses(IGNORED, IGNORED).status.name, "FINISHED_ABORTED")
