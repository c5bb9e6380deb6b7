"""Contiguous KV cache: every running sequence owns one slot of max_model_len tokens, whatever its real length."""

from __future__ import annotations

import pytest

from folovllm import SamplingParams
from folovllm.config import SchedulerConfig
from folovllm.core.scheduler import Scheduler
from tests.m1.support import params, run
from tests.m2.support import Desk, make_engine


def test_the_lowest_free_slot_is_taken_first():
    desk = Desk(max_num_seqs=3)
    requests = [desk.add(name, max_tokens=9) for name in "abc"]
    desk.step()
    assert [request.get_seqs()[0].block_ids for request in requests] == [[0], [1], [2]]
    desk.abort("b")
    desk.abort("a")
    late = [desk.add(name) for name in "de"]
    desk.step()
    assert [request.get_seqs()[0].block_ids for request in late] == [[0], [1]]


def test_a_finished_sequence_owns_no_slot():
    desk = Desk(max_num_seqs=2)
    request = desk.add("a", n=2, max_tokens=1)
    desk.run()
    assert [seq.block_ids for seq in request.get_seqs()] == [[], []]
    assert sorted(desk.scheduler.free_slots) == [0, 1]


def test_each_of_n_sequences_computes_the_prompt_for_itself():
    desk = Desk()
    desk.add("r", 5, n=3, max_tokens=2)
    assert desk.run() == [{"r": 15}, {"r": 3}]


def test_fewer_slots_than_max_num_seqs_bound_how_many_run():
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64)
    assert Scheduler(config, num_slots=3, eos_token_ids=frozenset()).max_num_seqs == 3


@pytest.mark.parametrize("harm", ["lost", "twice", "counted"])
def test_the_invariants_see_a_slot_that_is_lost_owned_twice_or_miscounted(harm):
    desk = Desk(max_num_seqs=3)
    request = desk.add("a", max_tokens=9)
    desk.step()
    desk.scheduler.check_invariants()
    if harm == "lost":
        request.get_seqs()[0].block_ids.clear()
    elif harm == "twice":
        desk.scheduler.free_slots.append(0)
    else:
        desk.scheduler.num_running_seqs += 1
    with pytest.raises(RuntimeError, match=r"slots are lost|are counted"):
        desk.scheduler.check_invariants()


def test_stats_of_the_cache_by_hand(text_model_folder):
    engine = make_engine(text_model_folder, max_num_seqs=4, max_model_len=32)
    assert engine.stats().kv_blocks_total == 4
    engine.add_request("a", [1, 2, 3, 4, 5], params(max_tokens=9, ignore_eos=True))
    engine.add_request("b", [1, 2, 3], params(n=2, max_tokens=9, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.kv_blocks_used, stats.kv_tokens_reserved) == (3, 3 * 32)
    assert stats.kv_tokens_used == 5 + 3 + 3  # each sequence's newest token has been drawn but not computed
    engine.step()
    assert engine.stats().kv_tokens_used == 5 + 3 + 3 + 3
    run(engine)
    stats = engine.stats()
    assert (stats.kv_blocks_used, stats.kv_tokens_reserved, stats.kv_tokens_used) == (0, 0, 0)
    assert stats.prompt_tokens == 5 + 3 + 3


def test_memory_for_fewer_slots_than_max_num_seqs_makes_a_smaller_batch(text_model_folder, monkeypatch):
    whole = make_engine(text_model_folder, max_num_seqs=4)
    slot_bytes = whole.runner.kv_cache.num_bytes // 4
    monkeypatch.setattr("folovllm.engine.builder.engine_core.kv_cache_bytes", lambda *args: 2 * slot_bytes + 1)
    engine = make_engine(text_model_folder, max_num_seqs=4)
    assert engine.stats().kv_blocks_total == 2
    for i in range(5):
        engine.add_request(str(i), "x", SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 3)
    assert len(run(engine)[0]) == 5


def test_memory_for_no_slot_at_all_is_refused(text_model_folder, monkeypatch):
    monkeypatch.setattr("folovllm.engine.builder.engine_core.kv_cache_bytes", lambda *args: 10)
    with pytest.raises(ValueError, match="^max_model_len needs a smaller value: a KV cache of one sequence is "):
        make_engine(text_model_folder)
