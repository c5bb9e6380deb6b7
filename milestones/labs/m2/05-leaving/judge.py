from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import make_scheduler, request

RUNNING, STOPPED = SequenceStatus.RUNNING, SequenceStatus.FINISHED_STOPPED
ABORTED = SequenceStatus.FINISHED_ABORTED


def started(*requests, seqs=4):
    """A scheduler after a first step, in which as many sequences started as there are slots."""
    scheduler = make_scheduler(tokens=64, seqs=seqs)
    for made in requests:
        scheduler.add_request(made)
    scheduler.schedule()
    return scheduler


@invariant(1)
def test_the_slot_is_free_again():
    a, b = request("a"), request("b")
    scheduler = started(a, b)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    expect(sorted(scheduler.free_slots), [0, 2, 3])


@invariant(1)
def test_the_sequence_has_ended_and_owns_nothing():
    a, b = request("a"), request("b")
    scheduler = started(a, b)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    expect((a.get_seqs()[0].status, a.get_seqs()[0].block_ids), (STOPPED, []))
    expect(scheduler.num_running_seqs, 1)


@invariant(1)
def test_what_it_said_and_why_it_ended_stay():
    a = request("a")
    scheduler = started(a)
    seq = a.get_seqs()[0]
    seq.data.output_token_ids, seq.stop_reason = [50, 51], "END"
    scheduler.finish(a, seq, STOPPED)
    expect((seq.data.output_token_ids, seq.stop_reason), ([50, 51], "END"))


@invariant(1)
def test_the_next_step_names_it():
    a, b = request("a"), request("b")
    scheduler = started(a, b)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    output = scheduler.schedule()
    expect((output.finished_seq_ids, [seq.seq_id for seq in output.scheduled_seqs]), (["a-0"], ["b-0"]))


@invariant(1)
def test_the_lowest_free_slot_is_given_next():
    a, b, c = request("a"), request("b"), request("c")
    scheduler = started(a, b, seqs=2)
    scheduler.finish(b, b.get_seqs()[0], STOPPED)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    scheduler.add_request(c)
    scheduler.schedule()
    expect(c.get_seqs()[0].block_ids, [0])


@invariant(2)
def test_who_has_ended_stays_as_it_is():
    a, b = request("a"), request("b")
    scheduler = started(a, b)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    scheduler.finish(a, a.get_seqs()[0], ABORTED)
    expect(a.get_seqs()[0].status, STOPPED)
    expect((sorted(scheduler.free_slots), scheduler.num_running_seqs), ([0, 2, 3], 1))
    expect(scheduler.finished_seq_ids, ["a-0"])


@invariant(2)
def test_however_it_ended():
    for status in (SequenceStatus.FINISHED_LENGTH_CAPPED, SequenceStatus.FINISHED_IGNORED, ABORTED):
        a = request("a")
        scheduler = started(a)
        scheduler.finish(a, a.get_seqs()[0], status)
        scheduler.finish(a, a.get_seqs()[0], STOPPED)
        expect((a.get_seqs()[0].status, scheduler.finished_seq_ids), (status, ["a-0"]))


@invariant(3)
def test_a_request_runs_until_its_last_sequence_ends():
    a = request("a", n=2)
    scheduler = started(a)
    first, second = a.get_seqs()
    scheduler.finish(a, first, STOPPED)
    expect((scheduler.running == [a], second.status), (True, RUNNING))
    scheduler.finish(a, second, STOPPED)
    expect((scheduler.running, scheduler.has_unfinished_requests()), ([], False))


@invariant(3)
def test_the_others_go_on_running():
    a, b, c = request("a"), request("b"), request("c")
    scheduler = started(a, b, c)
    scheduler.finish(b, b.get_seqs()[0], STOPPED)
    expect([made.request_id for made in scheduler.running], ["a", "c"])


@invariant(3)
def test_it_stays_in_line_while_others_of_it_wait():
    a = request("a", n=3)
    scheduler = started(a, seqs=2)
    for seq in a.get_seqs()[:2]:
        scheduler.finish(a, seq, STOPPED)
    expect((a in scheduler.running, a in scheduler.waiting), (False, True))
    scheduler.schedule()
    expect([seq.status for seq in a.get_seqs()], [STOPPED, STOPPED, RUNNING])


@invariant(4)
def test_who_never_ran_gives_no_slot_back():
    a, late = request("a"), request("late")
    scheduler = started(a, seqs=1)
    scheduler.add_request(late)
    scheduler.finish(late, late.get_seqs()[0], ABORTED)
    expect((late.get_seqs()[0].status, late in scheduler.waiting), (ABORTED, False))
    expect((scheduler.free_slots, scheduler.num_running_seqs, scheduler.finished_seq_ids), ([], 1, []))


@invariant(5)
def test_an_abort_ends_all_that_run():
    a, b = request("a", n=2), request("b")
    scheduler = started(a, b)
    scheduler.abort(a)
    expect([seq.status for seq in a.get_seqs()], [ABORTED, ABORTED])
    expect((scheduler.running == [b], sorted(scheduler.free_slots)), (True, [0, 1, 3]))


@invariant(5)
def test_an_abort_of_a_request_in_line():
    a, late = request("a"), request("late", n=3)
    scheduler = started(a, seqs=1)
    scheduler.add_request(late)
    scheduler.abort(late)
    expect((late.is_finished(), late in scheduler.waiting), (True, False))
    expect((scheduler.free_slots, scheduler.finished_seq_ids), ([], []))


@invariant(5)
def test_an_abort_of_a_request_that_runs_and_waits():
    a = request("a", n=3)
    scheduler = started(a, seqs=2)
    scheduler.abort(a)
    expect((a.is_finished(), scheduler.has_unfinished_requests()), (True, False))
    expect((sorted(scheduler.free_slots), sorted(scheduler.finished_seq_ids)), ([0, 1], ["a-0", "a-1"]))


@invariant(5)
def test_what_had_ended_before_an_abort_keeps_its_status():
    a = request("a", n=2)
    scheduler = started(a)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    scheduler.abort(a)
    expect([seq.status for seq in a.get_seqs()], [STOPPED, ABORTED])


@invariant(5)
def test_nor_is_it_named_again():
    a = request("a", n=2)
    scheduler = started(a)
    scheduler.finish(a, a.get_seqs()[0], STOPPED)
    scheduler.abort(a)
    scheduler.abort(a)
    expect(scheduler.finished_seq_ids, ["a-0", "a-1"])
