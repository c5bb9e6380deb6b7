"""Engines whose window layers give keys back: generate()'s tokens, in pools that hold them only because of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.config import SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.errors import PromptTooLongError
from folovllm.kv_cache_groups import KVCacheGroups, group_layers
from folovllm.models.registry import decoder_spec
from folovllm.models.transformers_model import transformers_spec
from folovllm.worker.kv_cache import kv_cache_groups
from tests.helpers import hf_greedy, our_warnings, some
from tests.m8 import test_draft_engine as drafts
from tests.m11.models.tiny_types import LLAMA, TYPES, config_of, generate, make_model, make_prompts, run_engine

BLOCK, WINDOW, CHUNK, LONG = 4, 16, 16, 200
GEMMA = KVCacheGroups((None, *[WINDOW] * 5), ((5,), (0,), (1,), (2,), (3,), (4,)), BLOCK, CHUNK)
OURS = {"mistral": {"sliding_window": WINDOW}, "qwen2": {"use_sliding_window": True, "max_window_layers": 1}}
PROMPTS = [*make_prompts(), [5, 6, 7, 8] * 8]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """(a model of 5 layers with a window of 16 and a full one, its folder)."""
    model, folder = make_model("gemma3_text"), tmp_path_factory.mktemp("gemma3")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def wanted(gemma):
    """generate()'s tokens behind PROMPTS."""
    return [hf_greedy(gemma[0], prompt, 12) for prompt in PROMPTS]


def make(folder, num_tokens: int = 66, **options) -> LLM:
    """With as many blocks as the longest sequence, of num_tokens tokens, may need."""
    settings = {"dtype": "float32", "device": "cpu", "max_model_len": 256, "skip_tokenizer_init": True}
    limits = {"block_size": BLOCK, "max_num_batched_tokens": CHUNK, "num_kv_blocks": GEMMA.most_blocks(num_tokens)}
    return LLM(str(folder), **{**settings, **limits, **options})


def steps(llm: LLM, prompts: list[list[int]], found: dict[int, list[int]], params=GREEDY) -> Iterator[None]:
    """One for each step, after which the invariants hold; fills `found` in."""
    for number, prompt in enumerate(prompts):
        llm.engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    while llm.engine.has_unfinished_requests():
        found |= {int(each.request_id): each.outputs[0].token_ids for each in llm.engine.step() if each.finished}
        llm.engine.scheduler.check_invariants()
        yield


def tokens(llm: LLM, prompts: list[list[int]], params=GREEDY) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for _ in steps(llm, prompts, found, params):
        pass
    return [list(found[number]) for number in range(len(prompts))]


@pytest.mark.parametrize("kind", OURS)
def test_our_decoder_gives_keys_back(kind, tmp_path, monkeypatch):
    """All of Mistral's layers have a window: one table, which forgets its beginning. Of Qwen's, the first has none."""
    monkeypatch.setitem(TYPES, kind, {**LLAMA, "sliding_window": WINDOW, **OURS[kind]})
    model, prompts = make_model(kind), make_prompts()
    model.save_pretrained(tmp_path)
    windows = kv_cache_groups(decoder_spec(config_of(kind)), SchedulerConfig(16), BLOCK).windows
    assert windows == {"mistral": (WINDOW,), "qwen2": (None, WINDOW, WINDOW)}[kind]
    run = run_engine(tmp_path, prompts, model_impl="folovllm")
    assert run.tokens == [[generate(model, prompt) for prompt in prompts]] * 2
    assert run.hits > 0


FEATURES = {
    "run ahead": {"async_scheduling": True},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "swapping": {"preemption_mode": "swap", "swap_space": 0.01},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 256, "num_kv_blocks": 102},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("name", some(FEATURES, 3))
def test_tokens_are_generates_with(name, gemma, wanted):
    """And sequences that give way for one another."""
    llm = make(gemma[1], **FEATURES[name])
    if name == "drafts":
        llm.engine.scheduler.drafts.length = DraftLength(3, None)  # always three: no clock decides
    assert tokens(llm, PROMPTS) == wanted
    scheduler = llm.engine.scheduler
    assert (sum(scheduler.drafts.num_accepted_per_pos) > 0) == (name == "drafts")
    assert (scheduler.preempter.num_swapped > 0) == (name == "swapping")
    assert (scheduler.preempter.num_recomputed > 0) == (name not in ("swapping", "whole prompts"))


def test_beams_are_generates(gemma):
    """They branch from one another behind a window, and write into copies in each group."""
    prompt = make_prompts()[3]
    params = SamplingParams(use_beam_search=True, best_of=3, n=3, temperature=0, max_tokens=20, ignore_eos=True)
    llm = make(gemma[1], num_kv_blocks=300)
    found = [list(each.token_ids) for each in llm.generate([prompt], params, use_tqdm=False)[0].outputs]
    with torch.inference_mode():
        beams = gemma[0].generate(
            torch.tensor([prompt]), num_beams=3, num_return_sequences=3, do_sample=False, max_new_tokens=20
        )
    assert found == beams[:, len(prompt) :].tolist()


def test_a_long_sequence_holds_what_its_windows_need(gemma):
    """40 blocks for all keys of the last layer; of each other group what a window and a chunk touch."""
    prompt = [1 + number * 7 % 240 for number in range(LONG - 12)]
    llm, found, held = make(gemma[1], LONG), dict[int, list[int]](), list[list[int]]()
    for _ in steps(llm, [prompt], found):
        for request in llm.engine.scheduler.running:
            held.append([sum(map(bool, table)) for table in request.get_seqs()[0].tables])
    assert found[0] == hf_greedy(gemma[0], prompt, 12)
    assert max(each[0] for each in held) == LONG // BLOCK
    assert max(max(each[1:]) for each in held) <= -(-(WINDOW + CHUNK) // BLOCK) + 1
    assert llm.engine.scheduler.kv.num_blocks == 50 + 5 * 9  # with all keys it would be 300


def test_what_fits_thanks_to_windows_is_let_in_and_what_never_fits_is_refused(gemma):
    llm = make(gemma[1], 100)
    assert llm.engine.max_model_len == 100
    assert len(tokens(llm, [[7] * 99], SamplingParams(max_tokens=1, ignore_eos=True))[0]) == 1
    with pytest.raises(
        PromptTooLongError, match=r"prompt has 100 tokens, but max_model_len is 100 .* holds 100 tokens"
    ):
        llm.generate([[7] * 100], use_tqdm=False)
    beams = SamplingParams(use_beam_search=True, best_of=4, max_tokens=40)
    # 25 blocks of all keys for each, and 9 in each of five groups.
    with pytest.raises(ValueError, match=r"^best_of must be small enough .* may need 280 blocks of 70"):
        llm.generate([[7] * 60], beams, use_tqdm=False)
    with pytest.raises(ValueError, match=r"^num_kv_blocks must be at least 6, one for each group of layers, got 5"):
        make(gemma[1], num_kv_blocks=5)


def test_the_cache_says_how_many_sequences_it_holds(gemma):
    """256 tokens take 64 blocks for all keys, and 9 in each of five groups."""
    size = make(gemma[1], num_kv_blocks=218).engine.core.cache_size
    assert str(size).startswith("218 blocks of 4 tokens in 1 of 6 groups of layers = 2.0 sequences of 256 tokens, ")
    assert size.block_bytes == 2 * BLOCK * 2 * 16 * 4  # keys and values of one layer's two heads of 16


def test_layers_are_put_into_groups_of_equally_many():
    heads = [(2, 16)]
    gemma = group_layers([*[8] * 5, None] * 4 + [8] * 2, heads * 26, BLOCK, CHUNK)
    assert gemma.windows == (None, *[8] * 6)
    assert list(map(len, gemma.layers)) == [4, 4, 4, 4, 4, 4, 2]  # the last has places for 2 that do not exist
    assert sorted(layer for layers in gemma.layers for layer in layers) == list(range(26))
    nearly = group_layers([None, 8] * 12 + [8], heads * 25, BLOCK, CHUNK)
    assert list(map(len, nearly.layers)) == [12, 13]
    two = group_layers([4, 8], heads * 2, BLOCK, CHUNK)
    assert two.windows == (8, 4)  # the widest first
    assert group_layers([None, 8], [(2, 16), (4, 16)], BLOCK, CHUNK).windows == (None,)
    assert group_layers([None, 8], heads * 2, BLOCK, CHUNK, one_table=True).windows == (None,)
    assert group_layers([8, 8], [(2, 16), (4, 16)], BLOCK, CHUNK, one_table=True).windows == (8,)
    spec = transformers_spec(config_of("gemma3_text"), 128)
    assert kv_cache_groups(spec, SchedulerConfig(CHUNK), BLOCK) == GEMMA
    assert kv_cache_groups(spec, SchedulerConfig(CHUNK), BLOCK, has_draft=True).windows == (None,)


def test_the_most_blocks_of_a_window_by_hand():
    """A window of 6 that ends with one new token touches 3 blocks of 4 at most, and 4 with 8 new tokens: keys 3 to 7,
    and 8 to 15."""
    assert [KVCacheGroups((6,), (), 4, chunk).most_blocks(100) for chunk in (1, 8)] == [3, 4]
    assert KVCacheGroups((6,), (), 4, 8).most_blocks(7) == 2
    assert KVCacheGroups((1,), (), 4, 1).most_blocks(100) == 1


@pytest.mark.parametrize("num_tokens", [9, 30, 66])
def test_a_pool_too_small_for_all_groups_lowers_the_length_with_one_line(gemma, num_tokens, caplog):
    llm = make(gemma[1], num_tokens)
    longest = llm.engine.max_model_len
    assert num_tokens <= longest < 256
    (line,) = our_warnings(caplog)
    assert line == f"sequences end at {longest} tokens instead of max_model_len=256: the KV cache holds no more"
    prompts = [PROMPTS[-1][: longest - 5], PROMPTS[-1][:3]]
    found = tokens(llm, prompts, SamplingParams(temperature=0, ignore_eos=True, max_tokens=256))
    assert [len(prompt) + len(said) for prompt, said in zip(prompts, found, strict=True)] == [longest] * 2
    assert found == [hf_greedy(gemma[0], prompt, longest - len(prompt)) for prompt in prompts]


def test_a_draft_with_a_window_drafts(tmp_path):
    window = {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"]}
    llm = drafts.drafting(speculative={"model": drafts.changed(tmp_path / "window", **window)})
    assert drafts.tokens(llm, temperature=0.0) == drafts.tokens(LLM(dtype="float32"), temperature=0.0)
