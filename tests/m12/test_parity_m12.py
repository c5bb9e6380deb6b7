"""Each voice says what Hugging Face's model says with its adapter merged into the weights, in float32: mixed in one
batch, with chunks, hits, preemption, drafts, ranks, on quantised bases, in one call or layer by layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.models.one_call import OneCallOps
from tests.helpers import make_hf_model, names, some, thinned
from tests.m6.test_parity_m6 import CHUNKS, PRESSURES
from tests.m7.support import FOLDERS
from tests.m7.support import oracle as quantized_oracle
from tests.m8.support import Prophet, guess_always
from tests.m9.support import RankThread
from tests.m12.adapters import ATTENTION, VOICES
from tests.m12.conftest import Choir, make_choir
from tests.m12.support import Asked, asked_of_all, lora_engine, serve

EVERYONE: list[str | None] = [None, *VOICES]


def expected_of(choir: Choir, asked: Asked) -> list[list[int]]:
    return [choir.greedy(*each) for each in asked]


def test_the_voices_differ(choir: Choir) -> None:
    said = expected_of(choir, [(voice, [5, 6, 7], 16) for voice in EVERYONE])
    assert len({tuple(tokens) for tokens in said}) == len(EVERYONE)


@pytest.mark.parametrize(
    ("chunk", "pressure", "eager", "ahead"),
    thinned(names(CHUNKS), names(PRESSURES), {"one call": False, "layers": True}, {"in turn": False, "ahead": True}),
)
def test_each_voice_is_the_merged_models(choir: Choir, chunk: str, pressure: str, eager: bool, ahead: bool) -> None:
    """They come twice: the second time to what all of them have left in the cache."""
    asked = asked_of_all(EVERYONE)
    options = {**PRESSURES[pressure], **CHUNKS[chunk], "enforce_eager": eager, "async_scheduling": ahead}
    engine = lora_engine(choir.folder, **options)
    for seed in range(2):
        assert serve(engine, asked, choir.requests, seed) == expected_of(choir, asked)
    assert engine.stats().preemptions > 0 or pressure == "roomy"
    ops = engine.runner.model.model.ops
    assert not isinstance(ops, OneCallOps) or (ops.prepared is not None) != eager


@pytest.mark.parametrize("max_loras", [1, 2])
def test_more_adapters_than_slots_take_turns(choir: Choir, max_loras: int) -> None:
    asked, at_most = asked_of_all(EVERYONE), 0
    engine = lora_engine(choir.folder, max_loras=max_loras)

    def note(record: Any) -> None:
        nonlocal at_most
        running = {request.lora.digest for request in engine.scheduler.running if request.lora is not None}
        at_most = max(at_most, len(running))

    engine.core.listen(note)
    assert serve(engine, asked, choir.requests) == expected_of(choir, asked)
    assert at_most <= max_loras
    assert engine.runner.lora is not None
    assert engine.runner.lora.num_loads >= len(VOICES)


def test_a_step_of_prompts_asks_the_last_layer_for_some_rows_only(choir: Choir) -> None:
    """Their rows have other numbers behind its attention, and so have those with an adapter."""
    asked: Asked = [("all", [3, 4, 5, 6, 7], 1), (None, [9, 8, 7], 1), ("few", [2] * 11, 1), ("all", [1, 2], 1)]
    engine = lora_engine(choir.folder, max_num_batched_tokens=64)
    for number, (voice, prompt, _) in enumerate(asked):
        greedy = SamplingParams(temperature=0.0, max_tokens=2)
        engine.add_request(str(number), prompt, greedy, lora_request=choir.requests[voice])
    engine.step()
    said = [engine.requests[str(number)].get_seqs()[0].data.output_token_ids[:1] for number in range(len(asked))]
    assert said == expected_of(choir, asked)


def test_drafts_are_verified_with_the_adapter(choir: Choir) -> None:
    asked = [(voice, [5, 6, 7, len(voice or "")], 24) for voice in EVERYONE]
    expected = expected_of(choir, asked)
    prophet = Prophet({(tuple(prompt), 0): said for (_, prompt, _), said in zip(asked, expected, strict=True)})
    ngrams = {"method": "ngram", "num_speculative_tokens": 4}
    engine = guess_always(lora_engine(choir.folder, speculative_config=ngrams), prophet)
    assert serve(engine, asked, choir.requests) == expected
    assert engine.stats().spec_decode.num_accepted_tokens > 0


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("eager", some([False, True]))
def test_ranks_say_the_same(choir: Choir, rank_threads: list[RankThread], size: int, eager: bool) -> None:
    """With 4 ranks, two of them have the same KV head."""
    asked = asked_of_all(EVERYONE)
    engine = lora_engine(choir.folder, tensor_parallel_size=size, enforce_eager=eager, max_loras=2, num_kv_blocks=40)
    assert serve(engine, asked, choir.requests) == expected_of(choir, asked)
    assert len(rank_threads) == size - 1


@pytest.fixture(scope="module", params=["pack-quantized-groups", "int-quantized"])
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Choir:
    """A base of w4a16, and one of w8a8, whose adapters read what the layers round."""
    choir = make_choir(tmp_path_factory.mktemp("voices"), quantized_oracle(FOLDERS / request.param), merged=False)
    choir.folder = FOLDERS / request.param
    return choir


@pytest.mark.parametrize("eager", [False, True])
def test_quantised_bases(quantised: Choir, eager: bool) -> None:
    asked = asked_of_all(EVERYONE)
    engine = lora_engine(quantised.folder, max_num_batched_tokens=16, enforce_eager=eager)
    assert serve(engine, asked, quantised.requests) == expected_of(quantised, asked)


@pytest.mark.parametrize("kind", some(["qwen2", "llama", "mistral", "qwen3_moe"]))
def test_other_decoders(kind: str, tmp_path: Path) -> None:
    """Of a decoder with experts, attention."""
    hf = make_hf_model(kind)
    hf.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    choir = make_choir(tmp_path, hf, targets=ATTENTION if kind == "qwen3_moe" else None)
    asked = asked_of_all(EVERYONE)
    engine = lora_engine(choir.folder)
    assert serve(engine, asked, choir.requests) == expected_of(choir, asked)
