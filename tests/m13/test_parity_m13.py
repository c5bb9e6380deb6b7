"""The tokens are Hugging Face's, one by one, in float32, whichever tier a prompt's beginning comes from: host memory, a
folder, the folder of an engine that is gone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLMEngine
from tests.helpers import edit_tensors, make_hf_folder, names, some, thinned
from tests.m3.oracle import Oracle
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import CHUNKS, PRESSURES, asked_greedily, reusable
from tests.m9.support import RankThread
from tests.m11 import pooling_support as pooling
from tests.m11.models import test_hybrid_engine as hybrid
from tests.m11.models.tiny_types import make_model
from tests.m12.adapters import VOICES
from tests.m12.conftest import Choir
from tests.m12.support import asked_of_all
from tests.m12.support import serve as serve_voices
from tests.m13.support import flush, forget_host, forget_pool, tiered_engine

PLACES = {"host": False, "folder": True}


def expected_of(oracle: Oracle) -> list[list[list[int]]]:
    return [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked_greedily()]


@pytest.mark.parametrize(
    ("chunk", "pressure", "ahead", "on_disk", "host_blocks"),
    thinned(
        names(CHUNKS), names(PRESSURES), {"in turn": False, "ahead": True}, PLACES, {"few": 9, "many": 200}
    ),
)  # fmt: skip
def test_greedy_tokens_are_hugging_faces(
    oracle: Oracle, tmp_path: Path, chunk: str, pressure: str, ahead: bool, on_disk: bool, host_blocks: int
) -> None:
    """The same requests come three times; the third time an engine that begins finds what is in the folder."""
    asked, expected = asked_greedily(), expected_of(oracle)
    options = {**PRESSURES[pressure], **CHUNKS[chunk], "async_scheduling": ahead}
    folder = tmp_path if on_disk else None

    def engine() -> LLMEngine:
        return tiered_engine(oracle.folder, folder, host_blocks, **options)

    first = engine()
    for seed in range(2):
        assert token_ids(serve(first, asked, seed)) == expected
        forget_pool(first)
    if has_room := host_blocks > 100:  # else a block may be gone before it is asked for again
        assert first.stats().external_prefix_cache_hits > 0
    if on_disk:
        flush(first)
        second = engine()
        assert token_ids(serve(second, asked, seed=2)) == expected
        assert not has_room or second.stats().kv_offload_tiering_chunk_hits > 0


@pytest.mark.parametrize("place", ["host", "folder", "restart"])
def test_all_that_is_full_is_found_in_each_tier(oracle: Oracle, tmp_path: Path, place: str) -> None:
    """But for the block of a prompt's last token, which is computed for its logits."""
    asked, expected = asked_greedily(), expected_of(oracle)
    engine = tiered_engine(oracle.folder, None if place == "host" else tmp_path, num_kv_blocks=200)
    assert token_ids(serve(engine, asked)) == expected
    if place != "host":
        flush(engine)
    if place == "restart":
        engine = tiered_engine(oracle.folder, tmp_path, num_kv_blocks=100, max_num_batched_tokens=7)
    before, forget = engine.stats(), forget_host if place == "folder" else forget_pool
    forget(engine)
    for prompt, params in asked:
        (output,) = serve(engine, [(prompt, params)])
        assert output.outputs[0].token_ids == oracle.greedy(prompt, params.max_tokens)
        assert output.num_cached_tokens == reusable(prompt)
        forget(engine)
    after = engine.stats()
    found = sum(reusable(prompt) for prompt, _ in asked)
    assert after.external_prefix_cache_hits - before.external_prefix_cache_hits == found
    from_files = after.kv_offload_tiering_chunk_hits - before.kv_offload_tiering_chunk_hits
    assert (from_files > 0) == (place != "host")


def test_two_engines_share_a_folder_at_once(oracle: Oracle, tmp_path: Path) -> None:
    """What one has flushed the other finds, with other budgets and another number of blocks."""
    one = tiered_engine(oracle.folder, tmp_path, num_kv_blocks=200, max_num_batched_tokens=16)
    other = tiered_engine(oracle.folder, tmp_path, num_kv_blocks=40, max_num_batched_tokens=64)
    for prompt, params in asked_greedily():
        serve(one, [(prompt, params)])
        flush(one)
        (output,) = serve(other, [(prompt, params)])
        assert output.outputs[0].token_ids == oracle.greedy(prompt, params.max_tokens)
        assert output.num_cached_tokens == reusable(prompt)


def test_spoilt_files_are_computed_anew(oracle: Oracle, tmp_path: Path) -> None:
    asked, expected = asked_greedily(), expected_of(oracle)
    engine = tiered_engine(oracle.folder, tmp_path)
    assert token_ids(serve(engine, asked)) == expected
    flush(engine)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        data = bytearray(path.read_bytes())
        data[number * 37 % len(data)] ^= 1 << number % 8
        path.write_bytes(data if number % 3 else data[: number * 11])
    second = tiered_engine(oracle.folder, tmp_path)
    assert token_ids(serve(second, asked, seed=1)) == expected
    assert second.stats().kv_offload_tiering_chunk_hits == 0
    assert second.stats().kv_offload_tiering_chunk_queries > 0
    flush(second)
    third = tiered_engine(oracle.folder, tmp_path)
    assert token_ids(serve(third, asked, seed=2)) == expected
    assert third.stats().kv_offload_tiering_chunk_hits > 0


OTHERS: dict[str, dict[str, Any]] = {
    "weights": {}, "dtype of the cache": {"kv_cache_dtype": "int8"}, "block size": {"block_size": 8},
    "overrides": {"hf_overrides": {"rope_parameters": {"rope_theta": 123.0, "rope_type": "default"}}},
    "invariance": {"batch_invariant": True},
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_an_engine_that_computes_something_else_shares_nothing(oracle: Oracle, tmp_path: Path, what: str) -> None:
    """With other weights under the same name, say: the folder's is copied, and one number changed that the probe's keys
    do not know, in the last layer's MLP."""
    model = tmp_path / "model"
    shutil.copytree(oracle.folder, model)
    engine = tiered_engine(model, tmp_path / "kv")
    asked = asked_greedily()[:2]
    serve(engine, asked)
    flush(engine)
    if what == "weights":
        edit_tensors(model, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"].mul_(1.5))
    other = tiered_engine(model, tmp_path / "kv", **OTHERS[what])
    serve(other, asked, seed=1)
    assert other.stats().kv_offload_tiering_chunk_hits == 0


def test_each_voice_finds_its_own(choir: Choir, tmp_path: Path) -> None:
    asked = asked_of_all([None, *VOICES])
    expected = [choir.greedy(*each) for each in asked]
    options = {"enable_lora": True, "max_loras": 4}
    engine = tiered_engine(choir.folder, tmp_path, 400, **options)
    for seed in range(2):
        assert serve_voices(engine, asked, choir.requests, seed) == expected
        forget_pool(engine)
    flush(engine)
    engine = tiered_engine(choir.folder, tmp_path, 400, num_kv_blocks=60, **options)
    assert serve_voices(engine, asked, choir.requests, seed=2) == expected
    assert engine.stats().kv_offload_tiering_chunk_hits > 0


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_ranks_have_host_memory_each(oracle: Oracle, rank_threads: list[RankThread], size: int) -> None:
    asked, expected = asked_greedily(), expected_of(oracle)
    options = {"tensor_parallel_size": size, "num_kv_blocks": 16, "preemption_mode": "swap"}
    engine = tiered_engine(oracle.folder, None, 200, **options)
    for seed in range(2):
        assert token_ids(serve(engine, asked, seed)) == expected
        forget_pool(engine)
    assert engine.stats().external_prefix_cache_hits > 0
    assert len(rank_threads) == size - 1


@pytest.mark.parametrize("on_disk", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("chunk", some([16, 64, 7]))
def test_layers_with_windows(tmp_path: Path, on_disk: bool, chunk: int) -> None:
    """Five layers of six see 16 keys: a group's block is found under its own name."""
    model = make_model("gemma3_text")
    model.save_pretrained(tmp_path / "model")
    wanted = [hybrid.hf_greedy(model, prompt, 12) for prompt in hybrid.PROMPTS]
    options: dict[str, Any] = {"kv_offloading_size": 0.01, "max_num_batched_tokens": chunk}
    if on_disk:
        options["kv_offloading_path"] = str(tmp_path / "kv")
    num_blocks = 80 if chunk <= 16 else 400  # a window's layers hold a chunk as well
    llm = hybrid.make(tmp_path / "model", num_blocks, **options)
    for _ in range(2):
        assert hybrid.tokens(llm, hybrid.PROMPTS) == wanted
        forget_pool(llm.engine)
    assert llm.engine.stats().external_prefix_cache_hits > 0
    if on_disk:
        flush(llm.engine)
        second = hybrid.make(tmp_path / "model", num_blocks, **options)
        assert hybrid.tokens(second, hybrid.PROMPTS) == wanted
        assert second.engine.stats().kv_offload_tiering_chunk_hits > 0


@pytest.mark.parametrize("kind", ["lasttoken", "mean"])
def test_a_model_that_pools_finds_its_prompts_in_a_folder(tmp_path: Path, kind: str) -> None:
    """And never for a mean, which is over all rows."""
    model = pooling.make_folder(tmp_path / "model")
    pooling.add_modules(tmp_path / "model", {"pooling_mode": kind}, "Normalize")
    prompts = pooling.prompts_that_begin_alike()
    wanted = pooling.embeddings(model, prompts, "LAST" if kind == "lasttoken" else "MEAN")
    for round_ in range(2):
        engine = tiered_engine(tmp_path / "model", tmp_path / "kv", 400, max_num_batched_tokens=16)
        pooling.close(pooling.serve(engine, prompts, seed=round_), wanted)
        flush(engine)
    assert (engine.stats().kv_offload_tiering_chunk_hits > 0) == (kind == "lasttoken")


def test_a_draft_models_keys_come_along(oracle: Oracle, tmp_path: Path) -> None:
    """The draft is the model itself: each of its guesses is right, behind what came out of a folder as well."""
    asked, expected = asked_greedily(), expected_of(oracle)
    drafts = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(oracle.folder)}
    for round_ in range(2):
        engine = tiered_engine(oracle.folder, tmp_path, 400, speculative_config=drafts, num_kv_blocks=200)
        assert token_ids(serve(engine, asked, seed=round_)) == expected
        drafted = engine.stats().spec_decode
        assert drafted is not None
        assert drafted.num_accepted_tokens == drafted.num_draft_tokens
        flush(engine)
    assert engine.stats().kv_offload_tiering_chunk_hits > 0


def test_eight_bits_are_kept_with_their_scales(tmp_path: Path) -> None:
    model = make_hf_folder(tmp_path)
    asked = asked_greedily()
    plain = caching_engine(model, block_size=4, max_model_len=64, kv_cache_dtype="int8", num_kv_blocks=200)
    expected = token_ids(serve(plain, asked))
    for round_ in range(2):
        engine = tiered_engine(model, tmp_path / "kv", kv_cache_dtype="int8", num_kv_blocks=200)
        for number, each in enumerate(asked):
            assert token_ids(serve(engine, [each])) == [expected[number]]
        flush(engine)
        assert (engine.stats().kv_offload_tiering_chunk_hits > 0) == (round_ > 0)
