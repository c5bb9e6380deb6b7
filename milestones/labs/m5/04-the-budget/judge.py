from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import SequenceStatus
from lab_judge import expect, invariant, raises
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


@invariant(1)
def test_so_do_all_sequences_of_a_request():
    scheduler = make_scheduler(budget=16, num_blocks=3)
    scheduler.add_request(request("a", 4, n=2))
    scheduler.add_request(request("b", 8))
    step(scheduler)
    output = scheduler.schedule()  # b gives its two blocks to the two sequences of a
    expect([seq.seq_id for seq in output.scheduled_seqs], ["a-0", "a-1"])


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
def test_nor_if_the_next_one_found_its_block():
    scheduler = make_scheduler(budget=17, num_blocks=5, policy="priority")
    for name, num_tokens in (("a", 4), ("b", 4), ("z", 9)):
        scheduler.add_request(request(name, num_tokens, priority=1))
    expect(step(scheduler), {"a": 4, "b": 4, "z": 9})
    scheduler.add_request(request("c", 1, priority=0))
    expect(step(scheduler), {"a": 1, "b": 1})  # z gave three blocks back, a and b took two, and one is free


@invariant(3)
def test_no_request_joins_while_a_chunk_lacks_blocks():
    scheduler = make_scheduler(budget=8, num_blocks=4, partial=2)
    running(scheduler, request("b", 6), num_computed=5)  # two blocks, and it decodes
    running(scheduler, request("x", 12), num_computed=4)  # one block; its chunk takes two more, and one is free
    scheduler.add_request(request("c", 3))
    expect(work(scheduler.schedule()), {"b": 1})


@invariant(3)
def test_nor_if_the_next_chunk_found_its_blocks():
    scheduler = make_scheduler(budget=16, num_blocks=5, threshold=6, partial=3)
    running(scheduler, request("b", 3), num_computed=2)  # one block, and it decodes
    running(scheduler, request("x", 20), num_computed=4)  # one block; its chunk takes two more, and one is free
    running(scheduler, request("y", 8), num_computed=5)  # two blocks, which have room for its last three tokens
    scheduler.add_request(request("c", 3))
    expect(work(scheduler.schedule()), {"b": 1, "y": 3})


@invariant(3)
def test_who_is_swapped_out_comes_back_though_no_request_waits():
    scheduler = make_scheduler(swap_blocks=4)
    a = request("a", 6)
    seq = running(scheduler, a, num_computed=5)
    scheduler.preempter.mode = "swap"
    scheduler._preempt(a, [seq], SchedulerOutput())
    expect(work(scheduler.schedule()), {"a": 1})


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
def test_it_goes_to_all_prompts_one_after_the_other():
    scheduler = make_scheduler(budget=8, threshold=None, partial=2)
    running(scheduler, request("x", 7), num_computed=4)  # gets the three that it lacks
    running(scheduler, request("y", 30), num_computed=4)  # gets three, half of five, and then the other two
    expect(work(scheduler.schedule()), {"x": 3, "y": 5})


@invariant(4)
def test_it_does_so_too_when_a_request_had_to_give_way():
    scheduler = make_scheduler(budget=8, num_blocks=5, threshold=None)
    running(scheduler, request("a", 5), num_computed=4)  # decodes, and needs a block
    running(scheduler, request("p", 20), num_computed=4)
    running(scheduler, request("z", 12), num_computed=11)  # gives its three blocks
    expect(work(scheduler.schedule()), {"a": 1, "p": 7})


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


@invariant(6)
def test_news_is_not_lost_when_a_step_breaks_off(monkeypatch):
    scheduler = make_scheduler()
    a = request("a", 3)
    scheduler.add_request(a)
    step(scheduler)
    scheduler.finish(a, a.get_seqs()[0], SequenceStatus.FINISHED_STOPPED)
    scheduler.add_request(request("b", 3))
    monkeypatch.setattr(scheduler, "_let_in", lambda output: [].pop())  # raises IndexError
    with raises(IndexError):
        scheduler.schedule()
    monkeypatch.undo()
    expect(scheduler.schedule().finished_seq_ids, ["a-0"])


@invariant(7)
def test_a_step_in_which_no_request_can_go_on_makes_room():
    scheduler = make_scheduler(num_blocks=4)
    stuck = request("stuck", 12)
    running(scheduler, stuck, num_computed=12)  # it lacks nothing, as a beam that waits for another
    scheduler.add_request(request("next", 8))
    expect(work(scheduler.schedule()), {})
    expect((scheduler.running, stuck in scheduler.waiting), ([], True))


@invariant(7)
def test_only_the_newest_gives_way_with_all_its_sequences():
    scheduler = make_scheduler(num_blocks=7)
    old, newest = request("old", 8), request("newest", 8, n=2)
    running(scheduler, old, num_computed=8)
    seq, sibling = running(scheduler, newest, num_computed=8), newest.get_seqs()[1]
    scheduler.kv.allocate_slots([(sibling, 8)])
    sibling.num_computed_tokens, sibling.status = 8, SequenceStatus.RUNNING
    scheduler.add_request(request("next", 8))
    scheduler.schedule()
    expect((scheduler.running, [each.status.name for each in (seq, sibling)]), ([old], ["WAITING", "WAITING"]))


@invariant(7)
def test_none_gives_way_in_a_step_that_computes_something():
    scheduler = make_scheduler(num_blocks=4)
    a = request("a", 12)
    running(scheduler, a, num_computed=11)
    scheduler.add_request(request("next", 8))  # two blocks, and one is free
    expect((work(scheduler.schedule()), scheduler.running), ({"a": 1}, [a]))


@invariant(7)
def test_none_gives_way_when_one_came_in(monkeypatch):
    scheduler = make_scheduler(num_blocks=4)
    stuck = request("stuck", 12)
    running(scheduler, stuck, num_computed=12)
    scheduler.add_request(request("next", 8))
    monkeypatch.setattr(scheduler, "_let_in", lambda output: True)  # as if one had come in that lacks nothing
    scheduler.schedule()
    expect(scheduler.running, [stuck])


@invariant(7)
def test_an_empty_step_for_which_no_request_waits_stays_empty():
    scheduler = make_scheduler(num_blocks=4)
    done = request("done", 12)
    running(scheduler, done, num_computed=12)  # its last token is on its way
    expect(work(scheduler.schedule()), {})
    expect((scheduler.running, len(scheduler.waiting)), ([done], 0))
