"""Engines whose KV cache is in int8: in float32 their greedy tokens are those of Hugging Face with a cache that is
rounded in the same way, and blocks move with their scales."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import LLM, LLMEngine, SamplingParams
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle
from tests.m4.cpu_target import NEEDS_KERNELS
from tests.m4.cuda_support import serve
from tests.m6.support import SCHEDULES
from tests.m7.rounded_cache import RoundedCache

PROMPTS = [[i + 3] * (1 + 5 * (i % 3)) + [9, i] * 3 for i in range(4)]
SETTINGS: dict[str, Any] = {
    "num_kv_blocks": 60, "block_size": 4, "max_num_seqs": 4, "max_model_len": 60, "swap_space": 0.001,
    "kv_cache_dtype": "int8", "skip_tokenizer_init": True, "dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("model"), head_dim=16)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(
        tmp_path_factory.mktemp("small"), num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )


def make_engine(folder: Path, device: str = "cpu", **settings: Any) -> LLMEngine:
    return LLM(str(folder), device=device, **SETTINGS | settings).engine


def tokens(engine: LLMEngine, params: SamplingParams) -> list[list[list[int]]]:
    told = serve(engine, [(prompt, params) for prompt in PROMPTS])
    assert_idle(engine)
    return [[output["token_ids"] for output in one["outputs"]] for one in told]


@cache
def hugging_face(folder: Path, count: int) -> list[list[int]]:
    """What it says greedily with keys and values that are rounded."""
    model, said = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None,
            pad_token_id=0, past_key_values=RoundedCache(),
        )  # fmt: skip
        said.append(out[0, len(prompt) :].tolist())
    return said


@pytest.mark.parametrize(
    "settings",
    [{}, {"enforce_eager": True}, {"attention_backend": "paged_torch"},
     pytest.param({"batch_invariant": True}, marks=NEEDS_KERNELS),
     {"max_num_batched_tokens": 7}, {"block_size": 16, "num_kv_blocks": 16}],
    ids=["one call", "eager", "torch", "invariant", "chunks", "blocks of 16"],
)  # fmt: skip
def test_greedy_tokens_are_hugging_faces_with_a_rounded_cache(folder: Path, settings: dict[str, Any]) -> None:
    said = tokens(make_engine(folder, **settings), SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert [one for (one,) in said] == hugging_face(folder, 10)


ASKED = {
    "forks": SamplingParams(temperature=0.8, seed=3, n=2, max_tokens=10),
    "beams": SamplingParams(use_beam_search=True, best_of=2, n=2, temperature=0, max_tokens=10, ignore_eos=True),
}


@pytest.mark.parametrize("asked", ASKED)
def test_blocks_move_with_their_scales(folder: Path, asked: str) -> None:
    """Swapped, copied on write, found again by their hashes: the same tokens, whatever the schedule is."""
    roomy = make_engine(folder)
    expected = tokens(roomy, ASKED[asked])
    for name, settings in SCHEDULES.items():
        engine = make_engine(folder, **settings)
        assert tokens(engine, ASKED[asked]) == expected, name
        assert engine.stats().preemptions > 0 or asked == "beams" or "preemption_mode" not in settings
    assert tokens(roomy, ASKED[asked]) == expected
    assert roomy.stats().prefix_cache_hits > 0


@NEEDS_KERNELS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariance_is_kept_to_the_bit(folder: Path, dtype: str) -> None:
    asked = SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1, ignore_eos=True)

    def bits(engine: LLMEngine, prompts: list[list[int]]) -> list[Any]:
        return serve(engine, [(prompt, asked) for prompt in prompts])

    alone = make_engine(folder, dtype=dtype, batch_invariant=True, enable_prefix_caching=False)
    expected = [told for prompt in PROMPTS for told in bits(alone, [prompt])]
    for name in ("swap", "chunks"):
        engine = make_engine(folder, dtype=dtype, batch_invariant=True, **SCHEDULES[name])
        assert bits(engine, PROMPTS) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_token_takes_a_byte_for_each_number_and_four_for_a_scale(folder: Path, dtype: str) -> None:
    plain, int8 = (make_engine(folder, dtype=dtype, kv_cache_dtype=kind) for kind in ("auto", "int8"))
    itemsize = 2 if dtype == "bfloat16" else 4
    assert plain.core.cache_size.block_bytes * (16 + 4) == int8.core.cache_size.block_bytes * 16 * itemsize
    assert plain.runner.kv_cache.num_bytes * (16 + 4) == int8.runner.kv_cache.num_bytes * 16 * itemsize


@pytest.mark.exhaustive
@pytest.mark.slow  # interpreted: some seconds
def test_on_a_gpu_with_graphs(small_folder: Path, fake_cuda: FakeCuda) -> None:
    pytest.importorskip("triton")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    small = {"max_num_seqs": 2, "max_model_len": 12, "num_kv_blocks": 4, "preemption_mode": "swap"}
    asked = [([5, 9, 17, 3, 8, 8, 1], params), ([7, 7, 1, 30, 2], params)]
    engine = make_engine(small_folder, "cuda", **small)
    assert engine.runner.kv_cache.backend.name == "triton_int8"
    fake_cuda.reset_counts()
    said = serve(engine, asked)
    assert engine.stats().preemptions > 0
    assert fake_cuda.compiled == []  # no request waits for a compiler
    assert fake_cuda.launches["graph"] > 2
    assert said == serve(make_engine(small_folder, **small), asked)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"attention_backend": "dense"}, "attention_backend 'dense' cannot read kv_cache_dtype 'int8'; leave "
         "attention_backend out, or give 'triton' or 'cpu' or 'paged_torch'"),
        ({"attention_backend": "nonsense"}, "attention_backend must be one of"),
        pytest.param(
            {"attention_backend": "cpu", "batch_invariant": True},
            "attention_backend 'cpu' cannot keep batch_invariant", marks=NEEDS_KERNELS,
        ),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype must be one of 'auto', 'fp8', 'fp8_e4m3', 'int8', got 'int4'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(folder: Path, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        make_engine(folder, **settings)


def test_without_the_kernels_torch_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    engine = make_engine(folder)
    assert engine.runner.kv_cache.backend.name == "paged_int8"
    with pytest.raises(ValueError, match="^kv_cache_dtype 'int8' cannot be read on cpu: FOLOVLLM_CPU_KERNELS=no; give"):
        make_engine(folder, attention_backend="cpu")
