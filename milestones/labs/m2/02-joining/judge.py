from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import make_scheduler, request, work


@invariant(1)
def test_first_come_first_served_looks_at_the_arrival_only():
    scheduler = make_scheduler(policy="fcfs")
    a, b = request("a"), request("b")
    a.priority, b.priority = 5, 0
    expect([scheduler._key(a), scheduler._key(b)], [(0, 0), (0, 1)])


@invariant(1)
def test_priority_goes_before_arrival():
    scheduler = make_scheduler(policy="priority")
    a, b = request("a"), request("b")
    a.priority, b.priority = 5, 0
    expect([scheduler._key(a), scheduler._key(b)], [(5, 0), (0, 1)])


@invariant(1)
def test_a_priority_may_be_negative():
    scheduler = make_scheduler(policy="priority")
    a = request("a")
    a.priority = -1
    expect(scheduler._key(a), (-1, 0))


@invariant(1)
def test_each_arrival_has_a_number_of_its_own():
    scheduler = make_scheduler(policy="fcfs")
    keys = [scheduler._key(request(name)) for name in ("a", "b", "a")]  # the name a comes a second time
    expect(keys, [(0, 0), (0, 1), (0, 2)])


@invariant(2)
def test_a_sequence_starts_in_the_lowest_slot():
    scheduler, output = make_scheduler(tokens=16, seqs=4), SchedulerOutput()
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    expect(scheduler._admit(a, output), True)
    expect(work(output), [("a-0", 3)])
    seq = a.get_seqs()[0]
    expect((seq.status, seq.block_ids), (SequenceStatus.RUNNING, [0]))
    expect((scheduler.num_running_seqs, sorted(scheduler.free_slots)), (1, [1, 2, 3]))


@invariant(2)
def test_the_lowest_slot_is_taken_however_they_came_back():
    scheduler, output = make_scheduler(tokens=16, seqs=3), SchedulerOutput()
    scheduler.free_slots = [0, 2, 1]  # a heap: its lowest slot is at place 0, and the others in no order
    requests = [request(name) for name in "abc"]
    for made in requests:
        scheduler.add_request(made)
        scheduler._admit(made, output)
    slots = [made.get_seqs()[0].block_ids for made in requests]
    expect(slots, [[0], [1], [2]])


@invariant(2)
def test_its_request_leaves_the_line_and_runs():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a")
    scheduler.add_request(a)
    scheduler._admit(a, output)
    expect((a in scheduler.waiting, a in scheduler.running), (False, True))


@invariant(2)
def test_what_it_is_to_compute_is_not_in_the_cache_yet():
    scheduler, output = make_scheduler(), SchedulerOutput()
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    scheduler.finished_seq_ids.append("gone-0")  # the step will name it
    scheduler._admit(a, output)
    expect((a.get_seqs()[0].num_computed_tokens, scheduler.finished_seq_ids), (0, ["gone-0"]))


@invariant(3)
def test_a_step_may_be_filled_to_the_last_token():
    scheduler, output = make_scheduler(tokens=8), SchedulerOutput()
    a, b = request("a", num_tokens=5), request("b", num_tokens=3)
    for made in (a, b):
        scheduler.add_request(made)
    expect([scheduler._admit(a, output), scheduler._admit(b, output)], [True, True])
    expect(work(output), [("a-0", 5), ("b-0", 3)])


@invariant(3)
def test_one_token_too_many_is_refused():
    scheduler, output = make_scheduler(tokens=8), SchedulerOutput()
    a, b = request("a", num_tokens=5), request("b", num_tokens=4)
    for made in (a, b):
        scheduler.add_request(made)
    expect([scheduler._admit(a, output), scheduler._admit(b, output)], [True, False])


@invariant(3)
def test_so_it_is_as_the_first_of_the_step():
    scheduler, output = make_scheduler(tokens=8), SchedulerOutput()
    a = request("a", num_tokens=9)
    scheduler.add_request(a)
    expect(scheduler._admit(a, output), False)


@invariant(3)
def test_no_more_sequences_than_may_run():
    scheduler, output = make_scheduler(tokens=16, seqs=2), SchedulerOutput()
    requests = [request(name) for name in "abc"]
    for made in requests:
        scheduler.add_request(made)
    expect([scheduler._admit(made, output) for made in requests], [True, True, False])


@invariant(3)
def test_sequences_count_and_not_requests():
    scheduler, output = make_scheduler(tokens=16, seqs=2), SchedulerOutput()
    a, b = request("a", n=2), request("b")
    for made in (a, b):
        scheduler.add_request(made)
    expect([scheduler._admit(made, output) for made in (a, a, b)], [True, True, False])


@invariant(4)
def test_a_refusal_changes_nothing():
    scheduler, output = make_scheduler(tokens=8, seqs=4), SchedulerOutput()
    output.total_num_scheduled_tokens = 6
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    expect(scheduler._admit(a, output), False)
    expect((scheduler.free_slots, scheduler.num_running_seqs), ([0, 1, 2, 3], 0))
    expect((a.get_seqs()[0].status, a.get_seqs()[0].block_ids), (SequenceStatus.WAITING, []))
    expect((a in scheduler.waiting, scheduler.running, work(output)), (True, [], []))


@invariant(4)
def test_who_is_refused_stays_the_first_in_line():
    scheduler, output = make_scheduler(tokens=8, seqs=4), SchedulerOutput()
    output.total_num_scheduled_tokens = 6
    a, b = request("a", num_tokens=3), request("b", num_tokens=3)
    for made in (a, b):
        scheduler.add_request(made)
    scheduler._admit(a, output)
    expect([made.request_id for made in scheduler.waiting], ["a", "b"])


@invariant(5)
def test_each_sequence_of_a_request_computes_the_prompt():
    scheduler, output = make_scheduler(tokens=16, seqs=4), SchedulerOutput()
    a = request("a", num_tokens=3, n=2)
    scheduler.add_request(a)
    expect([scheduler._admit(a, output), scheduler._admit(a, output)], [True, True])
    expect(work(output), [("a-0", 3), ("a-1", 3)])
    expect([seq.block_ids for seq in a.get_seqs()], [[0], [1]])


@invariant(5)
def test_a_request_stays_in_line_until_its_last_has_started():
    scheduler, output = make_scheduler(tokens=16, seqs=4), SchedulerOutput()
    a = request("a", n=2)
    scheduler.add_request(a)
    scheduler._admit(a, output)
    expect(a in scheduler.waiting, True)
    scheduler._admit(a, output)
    expect(a in scheduler.waiting, False)


@invariant(5)
def test_though_its_first_has_ended_by_then():
    scheduler, output = make_scheduler(tokens=16, seqs=4), SchedulerOutput()
    a = request("a", n=2)
    scheduler.add_request(a)
    scheduler._admit(a, output)
    a.get_seqs()[0].status = SequenceStatus.FINISHED_STOPPED
    scheduler._admit(a, output)
    expect(a in scheduler.waiting, False)


@invariant(5)
def test_a_request_runs_once():
    scheduler, output = make_scheduler(tokens=16, seqs=4), SchedulerOutput()
    a = request("a", n=2)
    scheduler.add_request(a)
    scheduler._admit(a, output)
    scheduler._admit(a, output)
    expect([made.request_id for made in scheduler.running], ["a"])
