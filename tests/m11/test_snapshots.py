"""A snapshot of an engine: the part of its pool where something is, and the steps that it has made."""

from __future__ import annotations

import json

from folovllm import LLM, SamplingParams
from folovllm.core.block_pool import NULL_BLOCK, BlockPool
from folovllm.engine.snapshots import CELLS, FEWEST, STEPS, snapshot_of

PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def engine(num_kv_blocks: int = 4096) -> LLM:
    return LLM(dtype="float32", num_kv_blocks=num_kv_blocks)


def test_the_bar_shows_the_blocks_in_use_and_no_empty_pool() -> None:
    llm = engine()
    snapshot = snapshot_of(llm.engine)
    assert (snapshot.block_map, snapshot.first_block, snapshot.blocks_per_cell) == ("f" * FEWEST, 1, 1)
    llm.engine.add_request("a", {"prompt_token_ids": list(range(100, 140))}, PARAMS)
    llm.engine.step()
    snapshot = snapshot_of(llm.engine)
    assert (snapshot.block_map, snapshot.first_block) == ("uuu" + "f" * (FEWEST - 3), 1)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    assert snapshot_of(llm.engine).block_map == "ccc" + "f" * (FEWEST - 3)


def test_a_wide_part_of_the_pool_has_several_blocks_in_a_cell() -> None:
    llm = engine()
    llm.generate([{"prompt_token_ids": [number] * 400} for number in range(10, 60)], PARAMS, use_tqdm=False)
    snapshot = snapshot_of(llm.engine)
    assert snapshot.blocks_per_cell > 1
    assert len(snapshot.block_map) <= CELLS
    assert set(snapshot.block_map[:-1]) == {"c"}


def test_a_pool_that_is_smaller_than_the_bar_is_all_of_it() -> None:
    assert snapshot_of(engine(num_kv_blocks=64).engine).block_map == "f" * 64


def test_each_step_says_what_its_rows_compute_and_which_draw() -> None:
    llm = LLM(dtype="float32", num_kv_blocks=256, max_num_batched_tokens=32)
    assert snapshot_of(llm.engine).steps == ()  # from the first snapshot on
    llm.generate(
        [{"prompt_token_ids": list(range(100, 140))}], SamplingParams(max_tokens=3, temperature=0), use_tqdm=False
    )
    steps = snapshot_of(llm.engine).steps
    rows = [[row[1:] for row in step["rows"]] for step in steps]
    # Tokens before, in this step, of the prompt; blocks of 16; how many it draws.
    assert rows == [[[0, 32, 40, 2, 0]], [[32, 8, 40, 3, 1]], [[40, 1, 40, 3, 1]], [[41, 1, 40, 3, 1]]]
    assert [(step["running"], step["used"]) for step in steps] == [(1, 2), (1, 3), (1, 3), (1, 3)]
    assert [step["time"] for step in steps] == sorted(step["time"] for step in steps)
    counted = snapshot_of(llm.engine)
    assert (counted.steps_by_tokens[:7], counted.step_tokens) == ((2, 0, 0, 1, 0, 1, 0), 32 + 8 + 1 + 1)
    json.dumps(steps)
    listeners = llm.engine.core.listeners
    snapshot_of(llm.engine)
    assert llm.engine.core.listeners == listeners  # however many snapshots are taken


def test_only_the_newest_steps_are_kept() -> None:
    llm = LLM(dtype="float32", num_kv_blocks=4096)
    snapshot_of(llm.engine)
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    for _ in range(3):
        llm.generate([{"prompt_token_ids": [5]}], params, use_tqdm=False)
    assert len(snapshot_of(llm.engine).steps) == STEPS


def test_what_others_ask_of_the_pool_is_a_copy() -> None:
    pool = BlockPool(4, enable_caching=True)
    blocks = pool.get_new_blocks(2)
    pool.touch(blocks[:1])
    pool.cache_block(blocks[0], b"hash", NULL_BLOCK, [1], None)
    refs, cached = pool.all_refs(), pool.cached_blocks()
    assert (refs, cached, pool.num_shared) == ([2, 1, 0, 0], [blocks[0]], 1)
    pool.free_blocks([blocks[0], *blocks])
    assert (refs, pool.all_refs(), pool.num_shared) == ([2, 1, 0, 0], [0, 0, 0, 0], 0)
