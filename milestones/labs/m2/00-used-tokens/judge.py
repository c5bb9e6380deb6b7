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


@invariant(1)
def test_what_was_written_counts_like_the_prompt():
    scheduler = make_scheduler()
    seq = running(scheduler, request("a", num_tokens=3))
    seq.data.output_token_ids += [7, 7]
    seq.num_computed_tokens = 5
    expect(scheduler.num_used_tokens, 5)


@invariant(1)
def test_all_sequences_of_a_request_that_run():
    scheduler = make_scheduler()
    made = request("a", num_tokens=3, n=2)
    for seq in made.get_seqs():
        seq.num_computed_tokens, seq.status = 3, SequenceStatus.RUNNING
    scheduler.running.append(made)
    expect(scheduler.num_used_tokens, 6)


@invariant(1)
def test_it_is_counted_anew_each_time_and_changes_nothing():
    scheduler = make_scheduler()
    seq = running(scheduler, request("a", num_tokens=3))
    used = [scheduler.num_used_tokens]
    seq.num_computed_tokens = 4
    used.append(scheduler.num_used_tokens)
    expect((used, len(scheduler.running)), ([3, 4], 1))


@invariant(2)
def test_who_waits_uses_nothing():
    scheduler = make_scheduler()
    running(scheduler, request("a", num_tokens=3, n=2))  # its second sequence waits
    expect(scheduler.num_used_tokens, 3)


@invariant(2)
def test_whatever_was_computed_of_it():
    scheduler = make_scheduler()
    made = request("a", num_tokens=3, n=2)
    running(scheduler, made)
    made.get_seqs()[1].num_computed_tokens = 2
    expect(scheduler.num_used_tokens, 3)


@invariant(2)
def test_who_has_ended_uses_nothing():
    scheduler = make_scheduler()
    made = request("a", num_tokens=3, n=2)
    for seq, status in zip(made.get_seqs(), (SequenceStatus.RUNNING, SequenceStatus.FINISHED_STOPPED), strict=True):
        seq.num_computed_tokens, seq.status = 3, status
    scheduler.running.append(made)
    expect(scheduler.num_used_tokens, 3)


@invariant(2)
def test_though_it_be_the_first():
    scheduler = make_scheduler()
    made = request("a", num_tokens=3, n=2)
    for seq, status in zip(made.get_seqs(), (SequenceStatus.FINISHED_STOPPED, SequenceStatus.RUNNING), strict=True):
        seq.num_computed_tokens, seq.status = 4, status
    scheduler.running.append(made)
    expect(scheduler.num_used_tokens, 4)
