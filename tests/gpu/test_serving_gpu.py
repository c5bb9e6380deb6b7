"""While it serves, the engine neither makes the host wait nor compiles a kernel, whoever comes and goes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, LLMEngine, SamplingParams
from tests.gpu.places import Place, forbid_waits_in_launches, kernels_compiled, on_every_place, waits_forbidden
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle

LONGEST = 256
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 20},
    "top_k and top_p": {"top_k": 20, "top_p": 0.9},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "seed": {"seed": 7},
    "min_tokens": {"temperature": 0, "min_tokens": 3, "stop_token_ids": [9]},
    "logit_bias": {"logit_bias": {5: 2.0}},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs": {"logprobs": 3},
    "n": {"n": 3},  # forks, whose last blocks are copied on write
    "everybody": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("model"), head_dim=64)


def make_engine(folder: Path, place: Place, **options: Any) -> LLMEngine:
    settings = {"dtype": "float32", "max_num_seqs": 16, "num_kv_blocks": 400, "max_model_len": LONGEST, **options}
    return LLM(str(folder), skip_tokenizer_init=True, device=place.device, **settings).engine


def serve(engine: LLMEngine, kind: str, seed: int, count: int = 12) -> int:
    """Requests come one by one, some in the middle of others' answers, and end at different times. Returns how many
    steps there were."""
    rng, others = random.Random(seed), [settings for name, settings in KINDS.items() if name != "everybody"]
    steps = 0

    def step() -> None:
        nonlocal steps
        engine.step()
        steps += 1

    for number in range(count):
        settings = rng.choice(others) if kind == "everybody" else KINDS[kind]
        prompt = [rng.randrange(256) for _ in range(rng.choice([1, 5, 16, 17, 40, 130]))]
        params = SamplingParams(**settings, max_tokens=rng.randrange(4, 12))
        engine.add_request(f"{kind}-{seed}-{number}", prompt, params)
        for _ in range(rng.randrange(3)):
            step()
    while engine.has_unfinished_requests():
        step()
    assert_idle(engine)
    return steps


@on_every_place
@pytest.mark.parametrize("kind", KINDS)
def test_no_launch_waits_when_other_sequences_take_part_than_before(folder: Path, kind: str, place: Place) -> None:
    engine = make_engine(folder, place)
    serve(engine, kind, seed=0)  # what is done once, is done
    sizes = forbid_waits_in_launches(engine)
    serve(engine, kind, seed=1)
    assert len(set(sizes)) > 3  # that many batches of different sizes


@on_every_place
def test_no_launch_waits_where_sequences_are_swapped_out_and_in(folder: Path, place: Place) -> None:
    engine = make_engine(folder, place, num_kv_blocks=24, preemption_mode="swap", swap_space=0.1)
    params = SamplingParams(temperature=0, max_tokens=60)
    for seed in range(2):
        for number in range(10):
            engine.add_request(f"{seed}-{number}", [seed + 1, number + 1] * 10, params)
        for _ in range(3):
            engine.step()
        sizes = forbid_waits_in_launches(engine) if seed else []
        while engine.has_unfinished_requests():
            engine.step()
    assert sizes
    assert engine.stats().preemptions > 0
    assert_idle(engine)


@on_every_place
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_compiled_once_the_engine_is_built(folder: Path, place: Place, dtype: str) -> None:
    """At random arrivals: prompts alone, beside decodes, in chunks, of any length."""
    pytest.importorskip("triton")
    engine = make_engine(folder, place, dtype=dtype, max_num_seqs=32)
    with kernels_compiled() as names:
        for seed in range(4):
            serve(engine, "top_k", seed, count=20)
        serve(engine, "everybody", seed=9, count=20)
    assert names == []


@pytest.mark.gpu
def test_what_waits_and_what_compiles_would_be_seen() -> None:
    from folovllm.layers.kernels.silu_mul import silu_mul

    numbers = torch.ones(3, device="cuda")
    with waits_forbidden(), pytest.raises(RuntimeError):
        numbers.sum().item()
    with kernels_compiled() as names:
        silu_mul(torch.ones(3, 2 * 1234, device="cuda"))  # a size that no other test has
    assert len(names) == 1
