from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import make_scheduler, request, running


@invariant(1)
def test_two_that_run():
    scheduler = make_scheduler()
    running(scheduler, request("a", num_tokens=3))
    running(scheduler, request("b", num_tokens=5))
    expect(scheduler.num_used_tokens, 8)


@invariant(1)
def test_the_newest_token_is_not_in_the_cache_yet():
    scheduler = make_scheduler()
    seq = running(scheduler, request("a", num_tokens=3))
    expect((seq.get_len(), scheduler.num_used_tokens), (4, 3))


@invariant(2)
def test_who_waits_uses_nothing():
    scheduler = make_scheduler()
    running(scheduler, request("a", num_tokens=3, n=2))  # its second sequence waits
    expect(scheduler.num_used_tokens, 3)


@invariant(2)
def test_who_has_ended_uses_nothing():
    scheduler = make_scheduler()
    made = request("a", num_tokens=3, n=2)
    for seq, status in zip(made.get_seqs(), (SequenceStatus.RUNNING, SequenceStatus.FINISHED_STOPPED), strict=True):
        seq.num_computed_tokens, seq.status = 3, status
    scheduler.running.append(made)
    expect(scheduler.num_used_tokens, 3)
