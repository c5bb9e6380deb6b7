"""GGUF files answer as transformers does with what gguf says that they mean, in float32, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")

from folovllm import LLM, ModelLoadError, SamplingParams  # noqa: E402
from folovllm.config import ModelConfig  # noqa: E402
from folovllm.layers.linear import LinearMethod  # noqa: E402
from folovllm.layers.quantization.cuda import TritonCodesLinear, gpu_method  # noqa: E402
from folovllm.layers.quantization.gguf_blocks import read_blocks  # noqa: E402
from folovllm.layers.quantization.linear import DequantizedLinear  # noqa: E402
from folovllm.model_loader.gguf import BLOCKS  # noqa: E402
from folovllm.model_loader.hf_config import load_hf_config  # noqa: E402
from folovllm.model_loader.quant_scheme import QuantScheme  # noqa: E402
from tests.helpers import hf_greedy, make_hf_model  # noqa: E402
from tests.m11.gguf_files import widened, write_gguf  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], list(range(30, 60))]
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "eos_token_id": None}
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def answers(path: Path, **options: Any) -> list[list[int]]:
    plain: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 64, "skip_tokenizer_init": True}
    llm = LLM(str(path), **plain | options)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_blocks_answers_as_its_dequantisation(kind: str, tmp_path: Path) -> None:
    model = make_hf_model("llama", **SIZES)
    means = write_gguf(tmp_path / "tiny.gguf", model, kind)
    oracle = widened(model, means)
    assert answers(tmp_path / "tiny.gguf") == [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize("blocks", ["F32", "Q4_1"])
def test_each_architecture_answers_as_transformers(kind: str, blocks: str, tmp_path: Path) -> None:
    more = {"moe_intermediate_size": 32} if kind == "qwen3_moe" else {}
    model = make_hf_model(kind, **SIZES | more)
    oracle = widened(model, write_gguf(tmp_path / "tiny.gguf", model, blocks))
    assert answers(tmp_path / "tiny.gguf") == [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


def test_parts_of_a_product_may_have_blocks_of_different_kinds(tmp_path: Path) -> None:
    """v and down in more bits, as llama.cpp's mixtures have them; and a part that has no codes widens the whole."""
    model = make_hf_model("qwen3", **SIZES)
    for kinds in ({"attn_v": "Q8_0", "ffn_down": "Q5_1"}, {"attn_k": "F16", "ffn_up": "Q8_0", "token_embd": "Q8_0"}):
        oracle = widened(model, write_gguf(tmp_path / "mixed.gguf", model, "Q4_0", kinds))
        assert answers(tmp_path / "mixed.gguf") == [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


def test_a_mixture_of_large_blocks_answers_as_its_dequantisation(tmp_path: Path) -> None:
    """As Q4_K_M has them: more bits for v, half of down and the embedding, which is the head, too."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": True}
    model = make_hf_model("llama", **SIZES | sizes)
    kinds = {"attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "ffn_up": "Q5_K", "token_embd": "Q6_K"}
    oracle = widened(model, write_gguf(tmp_path / "mixed.gguf", model, "Q4_K", kinds))
    assert answers(tmp_path / "mixed.gguf") == [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_tied_embedding_is_the_head_too(kind: str, tmp_path: Path) -> None:
    model = make_hf_model("llama", **SIZES, tie_word_embeddings=True)
    oracle = widened(model, write_gguf(tmp_path / "tied.gguf", model, kind))
    assert answers(tmp_path / "tied.gguf") == [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


def test_plain_torch_and_two_ranks_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_hf_model("llama", **SIZES)
    widened(model, write_gguf(tmp_path / "tiny.gguf", model, "Q4_1"))
    expected = [hf_greedy(model, prompt, 12) for prompt in PROMPTS]
    assert answers(tmp_path / "tiny.gguf", tensor_parallel_size=2) == expected
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    assert answers(tmp_path / "tiny.gguf") == expected


def test_stretched_llama_3_is_recognised_by_its_factors(tmp_path: Path) -> None:
    """The converter writes what Llama 3's rule makes of each frequency, and not the rule's numbers."""
    rule = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    model = make_hf_model("llama", **SIZES, rope_parameters=rule)
    plain = 10000.0 ** -(torch.arange(0, 32, 2) / 32)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    means = write_gguf(tmp_path / "tiny.gguf", model, more={"rope_freqs.weight": factors})
    assert answers(tmp_path / "tiny.gguf") == [hf_greedy(widened(model, means), prompt, 12) for prompt in PROMPTS]
    write_gguf(tmp_path / "odd.gguf", model, more={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(ModelLoadError, match="rope_freqs.weight must be as of Llama 3, got"):
        answers(tmp_path / "odd.gguf")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_stretched_rotation_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    fields: dict[str, Any] = {"qwen2__rope__scaling__type": kind, "qwen2__rope__scaling__factor": 4.0}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = fields["qwen2__rope__scaling__original_context_length"] = 16
    model = make_hf_model("qwen2", **SIZES, rope_parameters=rope)
    means = write_gguf(tmp_path / "tiny.gguf", model, **fields)
    assert answers(tmp_path / "tiny.gguf") == [hf_greedy(widened(model, means), prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_rounded_anew_where_that_is_asked_for(
    tied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder is, that has the widened weights. A tied embedding is then in memory once."""
    model = make_hf_model("llama", **SIZES, tie_word_embeddings=tied)
    widened(model, write_gguf(tmp_path / "tiny.gguf", model, "Q8_0")).save_pretrained(tmp_path / "folder")
    monkeypatch.setattr("folovllm.utils.memory.PIECE", 2**10)  # a few rows
    ours = answers(tmp_path / "tiny.gguf", quantization="w4a16")
    assert caplog.text.count("weights are widened and rounded anew, to w4a16") == 1
    assert load_hf_config(ModelConfig(str(tmp_path / "tiny.gguf"), quantization="w4a16")).tie_word_embeddings is tied
    assert ours == answers(tmp_path / "folder", quantization="w4a16")


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_codes_mean_what_gguf_makes_of_the_same_bytes(kind: str) -> None:
    """Any bytes: most are no weights that a quantiser would make. With a minimum, two roundings in float32 are one."""
    block, draw = BLOCKS[kind], np.random.default_rng(0)
    raw = draw.integers(0, 256, (8, 3, block.num_bytes), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0,) if block.symmetric else (0, 2):
        raw[..., at : at + 2] = draw.normal(0, 0.01, (8, 3, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(8, -1)
    means = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    codes = read_blocks(torch.from_numpy(raw), kind)
    off = np.abs(codes.dequantize().numpy() - means).max() / np.abs(means).max()
    assert off <= (0 if block.symmetric else 1e-7)
    most = 2 ** (block.bits - 1)
    assert -most <= int(codes.values.min()) <= int(codes.values.max()) < most
    assert codes.group_size == block.group_size
    assert (block.columns, block.num_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_a_gpu_keeps_codes_where_nothing_is_added_to_them(kind: str) -> None:
    """Its kernel's zeros are whole numbers, which a minimum is not: such weights are widened there."""
    block = BLOCKS[kind]
    scheme = QuantScheme("gguf", block.bits, block.group_size, block.symmetric, blocks=(kind,))
    plain = LinearMethod()
    method = gpu_method(scheme, "q_proj", invariant=True, plain=plain)
    assert type(method) is (TritonCodesLinear if block.symmetric else DequantizedLinear)
    assert getattr(method, "plain", plain) is plain
    assert type(gpu_method(replace(scheme, format="plain"), "q_proj", invariant=True)) is type(method)


def test_made_up_weights_have_the_files_shapes_and_bits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", make_hf_model("llama", **SIZES), "Q4_0")
    assert [len(tokens) for tokens in answers(tmp_path / "tiny.gguf", load_format="dummy")] == [12, 12, 12]
