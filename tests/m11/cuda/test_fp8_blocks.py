"""FP8 checkpoints with a scale for each block of 128 x 128: greedy tokens in float32 are Hugging Face's on the weights
that the blocks mean; what is damaged or different is refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import LLM, ModelLoadError, SamplingParams
from folovllm.layers.linear import PLAIN
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.cuda import TritonCodesLinear
from folovllm.layers.quantization.formats import FORMATS
from folovllm.layers.quantization.linear import DequantizedLinear, QuantizedLinears
from folovllm.model_loader.quant_scheme import QuantScheme, read_scheme
from folovllm.models.registry import decoder_spec
from folovllm.models.shard import cut_tensor, shard_of
from tests.fake_cuda import FakeCuda
from tests.helpers import hf_greedy, tiny_hf_config
from tests.m4.cpu_target import REASON
from tests.m11.cuda.fp8_folders import SETTINGS, UNEVEN, Tensors, edited, make_fp8_folder, to_blocks

PROMPTS = [[5, 99, 17, 3, 100, 41], [7, 7, 1], list(range(20, 40))]
SCHEME = read_scheme(SETTINGS)


def engine(folder: Path, device: str = "cpu", **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device=device, skip_tokenizer_init=True, **options)


def say(folder: Path, **options: Any) -> list[list[int]]:
    return speak(engine(folder, **options))


def speak(llm: LLM, prompts: list[list[int]] = PROMPTS, max_tokens: int = 12) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def expected(meant: Path, prompts: list[list[int]] = PROMPTS, max_tokens: int = 12) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(meant, dtype=torch.float32).eval()
    return [hf_greedy(model, ids, max_tokens) for ids in prompts]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_fp8_folder(tmp_path_factory.mktemp("fp8"), **UNEVEN)


def test_tokens_are_hugging_faces(folders: tuple[Path, Path]) -> None:
    folder, meant = folders
    assert say(folder) == expected(meant)
    invariant = REASON is None
    assert say(folder, quantization="fp8", max_num_batched_tokens=8, batch_invariant=invariant) == expected(meant)


@pytest.mark.exhaustive
def test_on_a_gpu_they_stay_in_8_bits(tmp_path: Path, fake_cuda: FakeCuda) -> None:
    pytest.importorskip("triton")
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 160}
    folder, meant = make_fp8_folder(tmp_path, hidden_size=64, num_hidden_layers=1, **sizes)
    small = {"max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8, "block_size": 4, "max_num_batched_tokens": 8}
    llm = engine(folder, "cuda", **small, swap_space=0.001)
    down = llm.engine.runner.model.model.layers[0].mlp.down_proj
    assert (type(down.method), down.weight.nbytes) == (TritonCodesLinear, 64 * 192)  # filled up to whole lines of 64
    fake_cuda.reset_counts()
    assert speak(llm, PROMPTS[:2], 4) == expected(meant, PROMPTS[:2], 4)
    assert fake_cuda.launches["graph"] > 0


def test_without_a_compiler_tokens_are_the_same(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    assert say(folders[0]) == expected(folders[1])


def test_modules_that_were_not_converted_are_read_as_they_are(tmp_path: Path) -> None:
    folder, meant = make_fp8_folder(tmp_path, kept=("model.layers.1.mlp",), hidden_size=128)
    assert say(folder) == expected(meant)


def test_experts_are_read_too(tmp_path: Path) -> None:
    folder, meant = make_fp8_folder(tmp_path, "qwen3_moe", kept=("mlp.gate",), moe_intermediate_size=160)
    assert say(folder) == expected(meant)


def test_two_ranks_read_their_own_blocks(tmp_path: Path, rank_threads: list[Any]) -> None:
    """A part of the MLP ends in a block that is not whole."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 320}
    folder, meant = make_fp8_folder(tmp_path, hidden_size=192, **sizes)
    assert say(folder, tensor_parallel_size=2) == expected(meant)
    assert len(rank_threads) == 1


def test_the_blocks_that_a_rank_has() -> None:
    spec = decoder_spec(tiny_hf_config("qwen3", intermediate_size=320, num_attention_heads=8, head_dim=64))
    linear, layer = QuantizedLinears(SCHEME, partial(DequantizedLinear, plain=PLAIN), PLAIN), "model.layers.0"
    shard = shard_of(spec, linear, 1, 2)
    assert shard.columns == range(128, 320)
    assert cut_tensor(f"{layer}.mlp.up_proj.weight_scale_inv", (3, 1), shard) == (slice(1, 3), slice(0, 1))
    assert cut_tensor(f"{layer}.mlp.down_proj.weight_scale_inv", (1, 3), shard) == (slice(0, 1), slice(1, 3))
    message = r"^tensor_parallel_size must cut .*k_proj.weight_scale_inv at blocks of 128, got '64 and 128'"
    with pytest.raises(ValueError, match=message):  # two heads of 64 share a block
        cut_tensor(f"{layer}.self_attn.k_proj.weight_scale_inv", (1, 1), shard)
    wide = decoder_spec(tiny_hf_config("qwen3", intermediate_size=1024, num_attention_heads=8, head_dim=64))
    with pytest.raises(ValueError, match="^tensor_parallel_size must leave each rank whole groups of 128"):
        shard_of(wide, linear, 1, 8)


@pytest.mark.parametrize(("outs", "size"), [(128, 128), (256, 384), (64, 192), (300, 200), (1, 130)])
def test_codes_mean_what_the_blocks_mean(outs: int, size: int) -> None:
    weight = torch.randn(outs, size) * torch.logspace(-3, 3, outs)[:, None]
    numbers, scale, meant = to_blocks(weight)
    kinds = FORMATS["fp8"].tensors(outs, size, SCHEME)
    assert {name: kind.shape for name, kind in kinds.items()} == {
        "weight": numbers.shape, "weight_scale_inv": scale.shape}  # fmt: skip
    codes: Codes = FORMATS["fp8"].read({"weight": numbers, "weight_scale_inv": scale}, SCHEME, "layer")
    assert torch.equal(codes.dequantize(), meant)


def test_the_scheme_of_qwens_folders() -> None:
    assert QuantScheme("fp8", 8, 128, True, ignore=("lm_head",), type="float") == SCHEME
    names = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm"]
    scheme = read_scheme(SETTINGS | {"modules_to_not_convert": names})
    assert scheme.of_layer("model.layers.0.mlp.gate") is None
    assert scheme.of_layer("model.layers.0.mlp.gate_proj") == scheme


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\] is not supported"),
        ({"weight_block_size": None}, "weight_block_size None is not supported"),
        ({"activation_scheme": "static"}, "activation_scheme 'static' is not supported"),
        ({"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
    ],
)
def test_other_blocks_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^quantization_config.{text}; supported are gptq, awq, fp8 in blocks"):
        read_scheme(SETTINGS | settings)


Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def take(tensors: Tensors) -> None:
    del tensors[f"{Q}_scale_inv"]


def cut(tensors: Tensors) -> None:
    tensors[f"{Q}_scale_inv"] = tensors[f"{Q}_scale_inv"][:1].contiguous()


def break_scale(tensors: Tensors) -> None:
    tensors[f"{K}_scale_inv"][0, 1] = float("nan")


def break_number(tensors: Tensors) -> None:
    tensors[K].view(torch.uint8)[3, 3] = 0x7F


def widen(tensors: Tensors) -> None:
    tensors[Q] = tensors[Q].float()


def narrow(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (take, f"the checkpoint lacks 1 tensor.*: {Q}_scale_inv"),
        (cut, rf"tensor {Q}_scale_inv has shape \(1, 2\), the configuration asks for \(2, 2\)"),
        (break_scale, f"{K}_scale_inv holds a number that is not finite"),
        (break_number, f"{K} holds a number that is not finite"),
        (widen, f"tensor {Q} holds F32, the configuration asks for F8_E4M3"),
        (narrow, "tensor lm_head.weight holds F8_E4M3, the configuration asks for F64 or F32"),
    ],
)
def test_a_damaged_folder_is_refused(folders: tuple[Path, Path], tmp_path: Path, edit: Any, text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        say(edited(folders[0], tmp_path, edit))
