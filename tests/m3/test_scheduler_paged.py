"""The scheduler over a small paged cache, without a model: who gives way, who comes back, what an abort frees.

Blocks of 4 tokens. A sequence's newest token is drawn but not computed, so a prompt of 4 takes a second block in the
step after its prefill.
"""

from __future__ import annotations

import pytest

from folovllm.request import SequenceStatus
from folovllm.worker.model_runner_output import LogprobsRow
from tests.m3.support import PagedDesk

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED
CAPPED = SequenceStatus.FINISHED_LENGTH_CAPPED


def crowded(mode: str = "recompute", policy: str = "fcfs", priorities: tuple[int, ...] = (0, 0, 0)) -> PagedDesk:
    """Three prompts of 4 in four blocks: after their prefill each needs a second one, and there is one."""
    desk = PagedDesk(4, num_swap_blocks=8, mode=mode, policy=policy)
    for name, priority in zip("abc", priorities, strict=True):
        desk.add(name, 4, max_tokens=6, priority=priority)
    assert desk.step() == {"a": 4, "b": 4, "c": 4}
    return desk


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_newest_gives_way(mode):
    desk = crowded(mode)
    assert desk.step() == {"a": 1, "b": 1}
    away = ([], ["c"]) if mode == "recompute" else (["c"], [])
    assert desk.where() == (["a", "b"], *away)
    desk.run()


def test_under_the_priority_policy_the_least_urgent_gives_way():
    desk = crowded(policy="priority", priorities=(5, 1, 3))
    assert desk.step() == {"b": 1, "c": 1}
    assert desk.where() == (["b", "c"], [], ["a"])


def test_who_had_to_go_stands_in_front_of_all_that_came_later():
    desk = crowded()
    desk.add("late", 1, max_tokens=1)
    desk.step()
    assert desk.where() == (["a", "b"], [], ["c", "late"])
    steps = desk.run()
    back = next(i for i, step in enumerate(steps) if "c" in step)
    assert steps[back]["c"] == 5  # its prompt and the token that it had drawn
    assert all("late" not in step for step in steps[:back])


def test_a_recomputed_sequence_keeps_its_tokens():
    desk = crowded()
    desk.step()
    seq = desk.requests["c"].get_seqs()[0]
    assert (seq.get_output_len(), seq.num_computed_tokens, seq.block_ids) == (1, 0, [])
    desk.run()
    assert seq.get_output_len() == 6


def test_a_swapped_sequence_goes_on_where_it_was():
    desk = crowded("swap")
    desk.step()
    seq = desk.requests["c"].get_seqs()[0]
    assert (seq.status, seq.num_computed_tokens, desk.kv.swap_pool.num_used) == (SWAPPED, 4, 1)
    computed = [step["c"] for step in desk.run() if "c" in step]
    assert computed == [1] * 5  # nothing is computed twice


def test_nobody_is_let_in_where_somebody_had_to_go():
    desk = crowded()
    desk.add("tiny", 1, max_tokens=1)
    assert desk.step() == {"a": 1, "b": 1}  # c gave its block up; tiny could have had one of those left
    assert desk.kv.pool.num_free == 0
    desk.abort("b")
    assert set(desk.step()) == {"a", "c"}


def test_the_counters_count_sequences():
    desk = PagedDesk(4, num_swap_blocks=8)
    desk.add("a", 4, max_tokens=9)
    desk.add("b", 4, max_tokens=9, n=2)
    desk.run()
    counts = desk.scheduler.preempter.num_recomputed, desk.scheduler.preempter.num_swapped
    assert counts[1] >= 2  # auto swaps b while both of its sequences live
    desk = crowded("auto")
    desk.run()
    assert desk.scheduler.preempter.num_swapped == 0 < desk.scheduler.preempter.num_recomputed


def test_a_full_swap_space_makes_way_for_recomputing():
    desk = PagedDesk(4, num_swap_blocks=1, mode="swap")
    for name in "abcd":
        desk.add(name, 4, max_tokens=9)
    desk.step()
    desk.step()  # four blocks for a and b: c and d go, and one of them has a place
    assert desk.where() == (["a", "b"], ["d"], ["c"])
    desk.abort("a")
    desk.step()  # there is room for one, and c is the older
    assert desk.where() == (["b", "c"], ["d"], [])
    desk.run()


@pytest.mark.parametrize("watermark", [0, 2, 7])
@pytest.mark.parametrize("too_many", [0, 1])
def test_an_admission_leaves_the_watermark_free(watermark: int, too_many: int):
    desk = PagedDesk(200, 4, max_model_len=800)
    desk.scheduler.watermark = watermark
    desk.add("a", 99 * 4, max_tokens=1)
    desk.add("b", (101 - watermark + too_many) * 4, max_tokens=1)
    assert set(desk.step()) == ({"a"} if too_many else {"a", "b"})


def test_alone_a_request_may_have_every_block():
    desk = PagedDesk(200, 4, max_model_len=800)
    desk.add("a", 799, max_tokens=1)
    assert desk.step() == {"a": 799}
    desk.run()


def test_alone_a_request_may_have_every_block_with_all_of_its_beams():
    """Four beams that part after the prompt: 4 + 4 * 24 blocks, which is all there are. They come back one by one, and
    nothing may be kept from the last."""
    desk = PagedDesk(100, max_model_len=112, mode="recompute")
    first = LogprobsRow([1, 1, 2, 3, 4, 5], [-1.0, -1.0, -1.1, -1.2, -1.3, -1.4], 1)
    later = LogprobsRow([1, 1, 2, 3, 4, 5], [-0.1, -0.1, -50.0, -50.0, -50.0, -50.0], 1)
    desk._candidates = lambda seq: later if seq.get_output_len() else first
    request = desk.add("beams", 16, beams=4, max_tokens=96)
    for _ in range(94):
        desk.step()
    assert desk.kv.pool.num_free == 0
    assert len(request.get_seqs(RUNNING)) == 4
    desk.scheduler.start_over()
    desk.run()


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_of_n_the_last_gives_way_to_its_siblings(mode):
    desk = PagedDesk(4, num_swap_blocks=9, mode=mode)
    desk.add("r", 4, n=3, max_tokens=9)
    desk.step()
    assert desk.status("r") == [RUNNING] * 3
    desk.step()  # the prompt's block and one each
    assert desk.status("r") == [RUNNING] * 3
    for _ in range(4):
        desk.step()
    gone = WAITING if mode == "recompute" else SWAPPED
    assert desk.status("r") == [RUNNING, gone, gone]  # 3 blocks for the first, and not 2 for the second
    desk.run()
    assert desk.status("r") == [CAPPED] * 3


def test_swapped_siblings_come_back_together_where_there_is_room():
    desk = PagedDesk(6, num_swap_blocks=9, mode="swap")
    desk.add("a", 4, max_tokens=9)
    desk.add("r", 8, n=2, max_tokens=9)
    for _ in range(6):
        desk.step()  # in the sixth a needs a third block
    assert desk.status("r") == [SWAPPED] * 2
    assert desk.kv.swap_pool.num_shared == 2  # the prompt
    for _ in range(4):  # three more tokens for a, and then there is room
        assert desk.status("r") == [SWAPPED] * 2
        desk.step()
    assert desk.status("r") == [RUNNING] * 2
    assert desk.kv.pool.num_shared == 2
    desk.run()


def test_swapped_siblings_come_back_one_by_one_where_there_is_none():
    desk = PagedDesk(6, num_swap_blocks=12, mode="swap")
    desk.add("r", [1] * 4, n=3, max_tokens=17)
    seen = set()
    while desk.scheduler.has_unfinished_requests():
        desk.step()
        seen.add(tuple(desk.status("r")))
    assert (CAPPED, SWAPPED, SWAPPED) in seen
    assert (CAPPED, RUNNING, SWAPPED) in seen
    desk.assert_empty()


def test_the_oldest_goes_on_in_every_step():
    desk = PagedDesk(5, num_swap_blocks=4, seed=2)
    for i in range(20):
        desk.add(str(i), [1] * 3, max_tokens=12)
    while desk.scheduler.has_unfinished_requests():
        oldest = next(name for name, request in desk.requests.items() if not request.is_finished())
        assert oldest in desk.step()


def test_who_left_and_who_was_preempted_is_told_to_the_worker():
    desk = crowded("swap")
    output = desk.schedule()
    assert output.stale_seq_ids == ["c-0"]
    assert len(output.blocks_to_swap_out) == 1
    desk.update(output)
    desk.abort("b")
    output = desk.schedule()
    assert (output.finished_seq_ids, output.stale_seq_ids) == (["b-0"], [])
    assert [seq.seq_id for seq in output.scheduled_seqs] == ["a-0", "c-0"]
    assert len(output.blocks_to_swap_in) == 1
    desk.update(output)
    desk.run()


def test_what_a_swapped_sequence_says_is_told_as_ended_when_it_is_aborted():
    desk = crowded("swap")
    desk.step()
    desk.abort("c")
    assert desk.schedule().finished_seq_ids == ["c-0"]
