from folovllm.request import SequenceStatus
from lab_judge import expect, invariant
from support import make_scheduler, request, running, step, work


@invariant(1)
def test_a_decode_computes_one_token():
    scheduler = make_scheduler()
    scheduler.add_request(request("a", 3))
    scheduler.add_request(request("b", 4))
    expect([step(scheduler), step(scheduler)], [{"a": 3, "b": 4}, {"a": 1, "b": 1}])


@invariant(1)
def test_an_urgent_prompt_does_not_come_before_a_decode():
    scheduler = make_scheduler(budget=4, policy="priority")
    for name in "bcd":
        scheduler.add_request(request(name, 1, priority=1))
    step(scheduler)
    scheduler.add_request(request("urgent", 9, priority=0))
    expect(step(scheduler), {"b": 1, "c": 1, "d": 1, "urgent": 1})
    expect(step(scheduler), {"b": 1, "c": 1, "d": 1, "urgent": 1})


@invariant(1)
def test_all_decode_although_some_had_to_give_way():
    scheduler = make_scheduler(budget=16, num_blocks=4)
    for name in "abcd":
        scheduler.add_request(request(name, 4))  # each fills a block, and none is left
    expect(step(scheduler), {"a": 4, "b": 4, "c": 4, "d": 4})
    expect(step(scheduler), {"a": 1, "b": 1})


@invariant(2)
def test_a_prompt_gets_what_the_decodes_leave():
    scheduler = make_scheduler(budget=8)
    scheduler.add_request(request("b", 3))
    steps = [step(scheduler)]
    scheduler.add_request(request("a", 18))
    steps += [step(scheduler) for _ in range(4)]
    expect(steps, [{"b": 3}, {"b": 1, "a": 7}, {"b": 1, "a": 7}, {"b": 1, "a": 4}, {"b": 1, "a": 1}])


@invariant(2)
def test_prompts_under_way_share_what_is_left():
    scheduler = make_scheduler(budget=8, threshold=3, partial=2)
    scheduler.add_request(request("x", 7))
    scheduler.add_request(request("y", 7))
    expect([step(scheduler) for _ in range(3)], [{"x": 3, "y": 3}, {"x": 3, "y": 3}, {"x": 1, "y": 1}])


@invariant(2)
def test_a_prompt_under_way_leaves_half_to_others():
    scheduler = make_scheduler(budget=8, threshold=None)
    running(scheduler, request("long", 30), num_computed=8)
    scheduler.add_request(request("short", 4))
    expect(step(scheduler), {"long": 4, "short": 4})


@invariant(2)
def test_a_prompt_goes_on_although_another_lacks_blocks():
    scheduler = make_scheduler(budget=8, num_blocks=4, threshold=3, partial=2)
    running(scheduler, request("b", 3), num_computed=2)  # one block, and it decodes
    running(scheduler, request("x", 12), num_computed=4)  # one block, and no other is free for its chunk
    running(scheduler, request("y", 8), num_computed=5)  # two blocks, which have room for its last three tokens
    expect(work(scheduler.schedule()), {"b": 1, "y": 3})


@invariant(3)
def test_others_join_with_what_is_left():
    scheduler = make_scheduler(budget=8)
    for name, num_tokens in (("a", 2), ("b", 3), ("c", 5), ("d", 2)):
        scheduler.add_request(request(name, num_tokens))
    expect([step(scheduler), step(scheduler)], [{"a": 2, "b": 3, "c": 3}, {"a": 1, "b": 1, "c": 2, "d": 2}])


@invariant(3)
def test_no_request_joins_when_one_had_to_give_way():
    scheduler = make_scheduler(budget=16, num_blocks=3, policy="priority")
    scheduler.add_request(request("a", 4, priority=0))
    scheduler.add_request(request("b", 8, priority=1))
    expect(step(scheduler), {"a": 4, "b": 8})
    scheduler.add_request(request("c", 1, priority=0))
    expect(step(scheduler), {"a": 1})  # b gave two blocks back, a took one, and one is free
    expect([made.request_id for made in scheduler.waiting], ["c", "b"])


@invariant(3)
def test_no_request_joins_while_a_chunk_lacks_blocks():
    scheduler = make_scheduler(budget=8, num_blocks=4, partial=2)
    running(scheduler, request("b", 6), num_computed=5)  # two blocks, and it decodes
    running(scheduler, request("x", 12), num_computed=4)  # one block; its chunk takes two more, and one is free
    scheduler.add_request(request("c", 3))
    expect(work(scheduler.schedule()), {"b": 1})


@invariant(3)
def test_a_prompt_begins_when_the_one_before_it_has_ended():
    scheduler = make_scheduler(budget=8, partial=1)
    for name in "ab":
        scheduler.add_request(request(name, 12))
    expect([step(scheduler), step(scheduler)], [{"a": 8}, {"a": 4, "b": 4}])


@invariant(3)
def test_what_an_ended_prompt_owed_is_owed_no_longer():
    scheduler = make_scheduler(budget=8, num_blocks=8, partial=9)
    scheduler.add_request(request("a", 12))  # three blocks, one of them after its first chunk
    step(scheduler)
    scheduler.add_request(request("b", 19))  # the other five
    expect(step(scheduler), {"a": 4, "b": 4})


@invariant(4)
def test_what_is_left_at_the_end_goes_to_the_prompt():
    scheduler = make_scheduler(budget=8, threshold=None)
    scheduler.add_request(request("a", 20))
    expect([step(scheduler) for _ in range(3)], [{"a": 8}, {"a": 8}, {"a": 4}])


@invariant(4)
def test_a_prompt_that_is_topped_up_to_its_end_forks():
    scheduler = make_scheduler(budget=8, threshold=None)
    a = request("a", 12, n=2)
    scheduler.add_request(a)
    expect([step(scheduler), step(scheduler)], [{"a": 8}, {"a": 4}])
    expect([seq.get_output_len() for seq in a.get_seqs()], [1, 1])


@invariant(5)
def test_no_step_is_larger_than_its_budget():
    scheduler = make_scheduler(budget=8, threshold=None, partial=3)
    for name, num_tokens in (("a", 5), ("b", 17), ("c", 2), ("d", 11), ("e", 9)):
        scheduler.add_request(request(name, num_tokens))
    sizes = [scheduler.schedule().total_num_scheduled_tokens]
    expect(sizes[0] <= 8, True)
    expect(max(sum(step(scheduler).values()) for _ in range(12)) <= 8, True)


@invariant(6)
def test_news_is_told_once():
    scheduler = make_scheduler()
    a, b = request("a", 3), request("b", 3)
    scheduler.add_request(a)
    scheduler.add_request(b)
    step(scheduler)
    scheduler.finish(a, a.get_seqs()[0], SequenceStatus.FINISHED_STOPPED)
    scheduler.rewrite(b.get_seqs()[0])
    first, second = scheduler.schedule(), scheduler.schedule()
    expect((first.finished_seq_ids, first.stale_seq_ids), (["a-0"], ["b-0"]))
    expect((second.finished_seq_ids, second.stale_seq_ids), ([], []))


@invariant(7)
def test_a_step_in_which_no_request_can_go_on_makes_room():
    scheduler = make_scheduler(num_blocks=4)
    stuck = request("stuck", 12)
    running(scheduler, stuck, num_computed=12)  # it lacks nothing, as a beam that waits for another
    scheduler.add_request(request("next", 8))
    expect(work(scheduler.schedule()), {})
    expect((scheduler.running, stuck in scheduler.waiting), ([], True))


@invariant(7)
def test_an_empty_step_for_which_no_request_waits_stays_empty():
    scheduler = make_scheduler(num_blocks=4)
    done = request("done", 12)
    running(scheduler, done, num_computed=12)  # its last token is on its way
    expect(work(scheduler.schedule()), {})
    expect((scheduler.running, len(scheduler.waiting)), ([done], 0))
