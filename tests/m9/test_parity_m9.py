"""The tokens of several ranks are those of one, whatever is asked for: Hugging Face's where they are greedy, in
float32.
"""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.outputs import RequestOutput
from tests.helpers import hf_greedy, make_hf_folder, names, some, thinned
from tests.m3.beam_oracle import BeamOracle, beam_params
from tests.m3.oracle import Oracle
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import BLOCK, CHUNKS, PRESSURES, Asked, asked_greedily
from tests.m7.support import FOLDERS, NAMES, PROMPTS, generate
from tests.m7.support import oracle as quantized_oracle
from tests.m8.eagle_support import mimo_folder
from tests.m8.support import guess_always
from tests.m8.test_speculation_engine import FEATURES
from tests.m9.support import MEMORY, RankThread

SIZES = {"2 ranks": 2, "4 ranks": 4}  # of a model with 4 heads and 2 KV heads


def ranks_engine(folder: Any, size: int, **kwargs: Any) -> LLMEngine:
    return caching_engine(folder, tensor_parallel_size=size, max_model_len=64, block_size=BLOCK, **kwargs)


@pytest.mark.parametrize(
    ("size", "chunk", "caching", "pressure", "ahead"),
    thinned(SIZES, names(CHUNKS), {"off": False, "on": True}, names(PRESSURES), {"in turn": False, "ahead": True}),
)
def test_greedy_tokens_are_hugging_faces(
    oracle: Oracle, rank_threads: list[RankThread], size: int, chunk: str, caching: bool, pressure: str, ahead: bool
) -> None:
    asked = asked_greedily()
    expected = [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    options = {**PRESSURES[pressure], **CHUNKS[chunk]}
    engine = ranks_engine(oracle.folder, size, async_scheduling=ahead, enable_prefix_caching=caching, **options)
    assert token_ids(serve(engine, asked)) == expected
    assert (engine.stats().preemptions > 0) == (pressure != "roomy")
    if caching:
        assert token_ids(serve(engine, asked, seed=1)) == expected
    assert len(rank_threads) == size - 1


def logprobs_of(outputs: list[RequestOutput]) -> list[Any]:
    """Of prompts and of what was said: each token's, in order."""
    found = []
    for output in outputs:
        rows = [*(output.prompt_logprobs or []), *(row for each in output.outputs for row in each.logprobs or [])]
        found.append([{token: entry.logprob for token, entry in row.items()} for row in rows if row])
    return found


def assert_alike(one: list[RequestOutput], other: list[RequestOutput]) -> None:
    assert token_ids(other) == token_ids(one)
    for want, got in zip(logprobs_of(one), logprobs_of(other), strict=True):
        assert [pytest.approx(row, abs=1e-3) for row in want] == got


@pytest.mark.parametrize("feature", some(list(FEATURES)))
def test_each_feature_is_as_of_one_rank(oracle: Oracle, rank_threads: list[RankThread], feature: str) -> None:
    asked = [(prompt, SamplingParams(**{"max_tokens": 12, **FEATURES[feature]})) for prompt, _ in asked_greedily()]
    one = caching_engine(oracle.folder, max_model_len=64, block_size=BLOCK, **PRESSURES["swap"])
    assert_alike(serve(one, asked), serve(ranks_engine(oracle.folder, 2, **PRESSURES["swap"]), asked))


def test_beams_are_those_of_one_rank(beam_oracle: BeamOracle, rank_threads: list[RankThread]) -> None:
    asked: Asked = [([3, 9, 4, number], beam_params(2 + number % 3)) for number in range(4)]
    one = caching_engine(beam_oracle.folder, max_model_len=32, block_size=BLOCK)
    two = caching_engine(beam_oracle.folder, max_model_len=32, block_size=BLOCK, tensor_parallel_size=2)
    assert token_ids(serve(two, asked)) == token_ids(serve(one, asked))


DRAFTS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3},
    "draft model": {"method": "draft_model", "num_speculative_tokens": 3},
}


@pytest.mark.parametrize("drafts", DRAFTS)
def test_with_drafts_on_rank_0(rank_threads: list[RankThread], drafts: str) -> None:
    """The embedded model: of its vocabulary is the draft model that ships."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    asked: Asked = [([5, 9, 300, 301, 302, 300, 301, 302, 300, 301], params), ([77, 1200, 33], params)]
    one = caching_engine("embedded", max_model_len=64)
    two = caching_engine("embedded", max_model_len=64, tensor_parallel_size=2, speculative_config=DRAFTS[drafts])
    guess_always(two)
    assert token_ids(serve(two, asked)) == token_ids(serve(one, asked))
    assert sum(two.scheduler.drafts.num_accepted_per_pos) > 0


OTHERS: dict[str, dict[str, Any]] = {
    "operator by operator": {"enforce_eager": True},
    "batch invariant": {"batch_invariant": True},
    "keys in 8 bits": {"kv_cache_dtype": "int8"},
}


@pytest.mark.parametrize("other", [pytest.param(name, marks=[MEMORY] * ("invariant" in name)) for name in OTHERS])
def test_other_ways_to_compute(oracle: Oracle, rank_threads: list[RankThread], other: str) -> None:
    asked, options = asked_greedily()[:4], {**PRESSURES["roomy"], **OTHERS[other]}
    one = caching_engine(oracle.folder, max_model_len=64, block_size=BLOCK, **options)
    assert token_ids(serve(ranks_engine(oracle.folder, 2, **options), asked)) == token_ids(serve(one, asked))


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_quantised_checkpoints(name: str, rank_threads: list[RankThread]) -> None:
    """Codes are cut at whole groups, so each rank has those of the whole."""
    two = LLM(FOLDERS / name, dtype="float32", device="cpu", skip_tokenizer_init=True, tensor_parallel_size=2)
    assert generate(two) == [hf_greedy(quantized_oracle(FOLDERS / name, 2), prompt, 16) for prompt in PROMPTS]


@pytest.mark.parametrize("kernels", ["yes", "no"])
def test_a_rank_rounds_its_own_share_of_what_goes_in(
    kernels: str, rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tokens are those of a model that does, and of none that rounds whole rows."""
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", kernels)
    test_quantised_checkpoints("int-quantized", rank_threads)


def test_weights_that_are_rounded_when_they_are_loaded(rank_threads: list[RankThread], tmp_path: Any) -> None:
    """In the groups of the whole row: 384 columns of the MLP have groups of 128, and one rank has 128 of them."""
    folder = make_hf_folder(tmp_path, head_dim=64, intermediate_size=384)
    asked, options = asked_greedily()[:4], {"quantization": "w4a16"}
    one = caching_engine(folder, max_model_len=64, block_size=BLOCK, **options)
    assert token_ids(serve(ranks_engine(folder, 2, **options), asked)) == token_ids(serve(one, asked))
    with pytest.raises(ValueError, match="^tensor_parallel_size must be at most 3: the MLP is cut at multiples of 128"):
        ranks_engine(folder, 4, **options)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_other_models_with_odd_vocabularies(kind: str, rank_threads: list[RankThread], tmp_path: Any) -> None:
    folder = make_hf_folder(tmp_path, kind, vocab_size=263, intermediate_size=90, sharded=True)
    asked = asked_greedily()[:4]
    one = caching_engine(folder, max_model_len=64, block_size=BLOCK)
    assert token_ids(serve(ranks_engine(folder, 4), asked)) == token_ids(serve(one, asked))


def test_a_head_that_reads_the_model_is_refused(rank_threads: list[RankThread], tmp_path: Any) -> None:
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="^tensor_parallel_size must be 1 with a head that reads the model, got 2"):
        ranks_engine(mimo_folder(tmp_path), 2, speculative_config=drafts)
    assert [thread.wait() for thread in rank_threads] == [0]
