"""Engines with quantised weights on the stand-in for a GPU, with CUDA graphs: greedy tokens in float32 are those of the
weights that the codes mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.layers.quantization.cuda import Fp8Linear, Int8Linear, TritonCodesLinear
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, some

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # interpreted: some seconds each
SMALL: dict[str, Any] = {
    "skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8,
    "block_size": 4, "max_num_batched_tokens": 8, "swap_space": 0.001,
}  # fmt: skip
PROMPTS = [[5, 9, 17], [7, 7, 1, 30, 2]]


def make(folder: Path, device: str, quantization: str, **settings: Any) -> LLM:
    return LLM(str(folder), device=device, quantization=quantization, **SMALL | settings)


def say(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(
        tmp_path_factory.mktemp("model"), num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )


@pytest.mark.parametrize(("quantization", "method"), some([("w8a8", Int8Linear), ("w4a16", TritonCodesLinear)]))
def test_tokens_are_those_of_the_cpu(
    folder: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, quantization: str, method: type
) -> None:
    llm = make(folder, "cuda", quantization)
    assert type(llm.engine.runner.model.model.layers[0].mlp.down_proj.method) is method
    assert llm.engine.runner.graphs is not None
    fake_cuda.reset_counts()
    said = say(llm)
    assert fake_cuda.launches["graph"] > 0
    assert fake_cuda.compiled == []  # no request waits for a compiler
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    assert said == say(make(folder, "cpu", quantization))


def test_a_head_with_codes_takes_its_input_as_it_is(
    folder: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(folder, "cuda", "w8a8", quantize_head=True)
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    assert say(llm) == say(make(folder, "cpu", "w8a8", quantize_head=True))


def test_4_by_8_bits_are_left_to_a_cpu(folder: Path, fake_cuda: FakeCuda) -> None:
    with pytest.raises(ValueError, match=r"\(w4a8\), which a CPU computes: give device='cpu', or quantization='w4a16'"):
        make(folder, "cuda", "w4a8")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "method"), [("float32", TritonCodesLinear), ("bfloat16", Fp8Linear)])
def test_an_engine_with_fp8_answers_from_graphs(folder: Path, fake_cuda: FakeCuda, dtype: str, method: type) -> None:
    llm = make(folder, "cuda", "fp8", dtype=dtype)
    assert type(llm.engine.runner.model.model.layers[0].mlp.gate_up_proj.method) is method
    said = say(llm)
    assert [len(tokens) for tokens in said] == [4, 4]
    assert fake_cuda.launches["graph"] > 0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fixed_order")
@pytest.mark.parametrize("quantization", ["w4a16", "fp8"])
def test_tokens_stay_the_same_in_any_company_where_that_is_asked_for(
    folder: Path, fake_cuda: FakeCuda, quantization: str
) -> None:
    llm = make(folder, "cuda", quantization, batch_invariant=True)
    assert llm.engine.runner.model.model.layers[0].mlp.down_proj.method.invariant
    assert say(llm) == [*say(llm, PROMPTS[:1]), *say(llm, PROMPTS[1:])]


def test_fp8_is_refused_where_it_cannot_be(folder: Path) -> None:
    message = "^quantization 'fp8' cannot be computed on cpu: it needs Triton and a GPU; give 'w8a8' or 'w4a16'"
    with pytest.raises(ValueError, match=message):
        make(folder, "cpu", "fp8")


@pytest.mark.parametrize(
    ("quantization", "size", "message"),
    [("w4a16", 40, "down_proj has 40 inputs in groups of 8: the GPU's kernel takes groups that are a multiple of 16;"),
     ("w8a8", 36, "down_proj has 36 inputs and 64 outputs: on a GPU, .* take multiples of 8; give"),
     ("fp8", 36, "gate_proj has 72 outputs: on a GPU, products .* take multiples of 16; give")],
)  # fmt: skip
def test_sizes_that_a_gpu_does_not_multiply_are_named(
    tmp_path: Path, fake_cuda: FakeCuda, quantization: str, size: int, message: str
) -> None:
    folder = make_hf_folder(tmp_path, num_hidden_layers=1, intermediate_size=size)
    with pytest.raises(ValueError, match=message):
        make(folder, "cuda", quantization, dtype="bfloat16")
