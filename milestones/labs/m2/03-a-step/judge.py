from folovllm.request import SequenceStatus
from lab_judge import expect, invariant, raises
from support import EOS, make_scheduler, request, running, work


@invariant(1)
def test_who_runs_computes_one_token_each_in_order():
    scheduler = make_scheduler()
    running(scheduler, request("a"))
    running(scheduler, request("b"))
    expect(work(scheduler.schedule()), [("a-0", 1), ("b-0", 1)])


@invariant(1)
def test_who_runs_computes_what_it_lacks():
    scheduler = make_scheduler()
    seq = running(scheduler, request("a", num_tokens=5))
    seq.num_computed_tokens = 0  # an interrupt cut short the step that was to compute it
    expect(work(scheduler.schedule()), [("a-0", 6)])


@invariant(1)
def test_part_of_it_may_be_in_the_cache():
    scheduler = make_scheduler()
    seq = running(scheduler, request("a", num_tokens=5))
    seq.num_computed_tokens = 2
    output = scheduler.schedule()
    expect((work(output), seq.num_computed_tokens), ([("a-0", 4)], 2))
    scheduler.update_from_output(output, [50])
    expect(seq.num_computed_tokens, 6)


@invariant(1)
def test_only_those_that_run_compute():
    scheduler = make_scheduler()
    a = request("a", n=2)
    running(scheduler, a)
    a.get_seqs()[1].status = SequenceStatus.FINISHED_STOPPED
    expect(work(scheduler.schedule()), [("a-0", 1)])


@invariant(1)
def test_all_sequences_of_a_request_that_run_compute():
    scheduler = make_scheduler()
    a = request("a", n=2)
    running(scheduler, a)
    running(scheduler, request("b"))
    second = a.get_seqs()[1]
    second.block_ids = [scheduler.free_slots.pop(0)]
    second.status, second.num_computed_tokens = SequenceStatus.RUNNING, 2
    expect(work(scheduler.schedule()), [("a-0", 1), ("a-1", 1), ("b-0", 1)])


@invariant(2)
def test_then_prompts_join():
    scheduler = make_scheduler(tokens=8)
    running(scheduler, request("a"))
    scheduler.add_request(request("b", num_tokens=3))
    scheduler.add_request(request("c", num_tokens=4))
    output = scheduler.schedule()
    expect(work(output), [("a-0", 1), ("b-0", 3), ("c-0", 4)])
    expect(len(scheduler.waiting), 0)


@invariant(2)
def test_all_sequences_of_a_request_join_while_there_is_room():
    scheduler = make_scheduler(seqs=4)
    scheduler.add_request(request("a", num_tokens=2, n=3))
    scheduler.add_request(request("b", num_tokens=2, n=3))
    expect(work(scheduler.schedule()), [("a-0", 2), ("a-1", 2), ("a-2", 2), ("b-0", 2)])


@invariant(3)
def test_no_request_overtakes_a_prompt_that_does_not_fit():
    scheduler = make_scheduler(tokens=8)
    for name, num_tokens in (("a", 6), ("b", 5), ("c", 1)):
        scheduler.add_request(request(name, num_tokens))
    expect(work(scheduler.schedule()), [("a-0", 6)])


@invariant(4)
def test_the_ended_are_named_once():
    scheduler = make_scheduler()
    scheduler.finished_seq_ids.append("gone-0")  # as finish() does
    first, second = scheduler.schedule(), scheduler.schedule()
    expect((first.finished_seq_ids, second.finished_seq_ids), (["gone-0"], []))


@invariant(5)
def test_what_was_computed_is_in_the_cache_and_the_token_behind_it():
    scheduler = make_scheduler()
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    gained = scheduler.update_from_output(scheduler.schedule(), [50])
    seq = a.get_seqs()[0]
    expect((seq.num_computed_tokens, seq.data.output_token_ids), (3, [50]))
    expect(gained, [(seq, None)])


@invariant(5)
def test_each_step_adds_to_what_was_computed():
    scheduler = make_scheduler()
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    for token_id in (50, 51):
        scheduler.update_from_output(scheduler.schedule(), [token_id])
    expect(a.get_seqs()[0].num_computed_tokens, 4)


@invariant(5)
def test_token_0_is_a_token():
    scheduler = make_scheduler()
    a = request("a", num_tokens=3)
    scheduler.add_request(a)
    scheduler.update_from_output(scheduler.schedule(), [0])
    expect(a.get_seqs()[0].data.output_token_ids, [0])


@invariant(5)
def test_a_row_without_a_token_gains_none():
    scheduler = make_scheduler()
    a, b = request("a", num_tokens=3), request("b", num_tokens=4)
    scheduler.add_request(a)
    scheduler.add_request(b)
    gained = scheduler.update_from_output(scheduler.schedule(), [None, 50])
    expect(gained, [(b.get_seqs()[0], None)])
    expect((a.get_seqs()[0].num_computed_tokens, a.get_seqs()[0].get_output_len()), (3, 0))


@invariant(5)
def test_a_token_too_many_is_an_error():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", num_tokens=3))
    output = scheduler.schedule()
    with raises(ValueError):
        scheduler.update_from_output(output, [50, 51])


@invariant(5)
def test_a_token_too_few_is_an_error():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", num_tokens=3))
    output = scheduler.schedule()
    with raises(ValueError):
        scheduler.update_from_output(output, [])


@invariant(5)
def test_tokens_may_come_one_by_one():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", num_tokens=3))
    scheduler.add_request(request("b", num_tokens=3))
    gained = scheduler.update_from_output(scheduler.schedule(), iter([50, 51]))
    expect([seq.data.output_token_ids for seq, _ in gained], [[50], [51]])


@invariant(6)
def test_who_comes_to_its_end_is_named_and_not_yet_ended():
    scheduler = make_scheduler()
    a, b = request("a"), request("b", max_tokens=1)
    scheduler.add_request(a)
    scheduler.add_request(b)
    gained = scheduler.update_from_output(scheduler.schedule(), [EOS, 50])
    expect([how for _, how in gained], [SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_LENGTH_CAPPED])
    expect([seq.status for seq, _ in gained], [SequenceStatus.RUNNING, SequenceStatus.RUNNING])


@invariant(6)
def test_they_come_in_the_order_of_the_step():
    scheduler = make_scheduler()
    for name in ("b", "c", "a"):
        scheduler.add_request(request(name, num_tokens=3))
    output = scheduler.schedule()
    gained = scheduler.update_from_output(output, [50, 51, 52])
    expect([seq.seq_id for seq, _ in gained], ["b-0", "c-0", "a-0"])
    expect(work(output), [("b-0", 3), ("c-0", 3), ("a-0", 3)])  # the step is only read


@invariant(6)
def test_each_step_has_a_list_of_its_own():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", num_tokens=3))
    first = scheduler.update_from_output(scheduler.schedule(), [50])
    scheduler.add_request(request("b", num_tokens=3))
    second = scheduler.update_from_output(scheduler.schedule(), [51, 52])
    expect([[seq.seq_id for seq, _ in gained] for gained in (first, second)], [["a-0"], ["a-0", "b-0"]])


@invariant(7)
def test_an_aborted_one_is_passed_over():
    scheduler = make_scheduler()
    a, b = request("a", num_tokens=3), request("b", num_tokens=3)
    scheduler.add_request(a)
    scheduler.add_request(b)
    output = scheduler.schedule()
    a.get_seqs()[0].status = SequenceStatus.FINISHED_ABORTED  # while the model computed
    gained = scheduler.update_from_output(output, [50, 51])
    expect([(seq.seq_id, seq.data.output_token_ids) for seq, _ in gained], [("b-0", [51])])
    expect((a.get_seqs()[0].num_computed_tokens, a.get_seqs()[0].get_output_len()), (0, 0))
