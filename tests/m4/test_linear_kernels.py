"""Packed products against float64, and a model whose layers are packed against Hugging Face."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from folovllm.entrypoints.cli.info import collect
from folovllm.layers.embedding import Embedding, LMHead
from folovllm.layers.linear import Linear
from folovllm.layers.linear_kernels import (
    KERNELS,
    FbgemmKernel,
    PackedLinear,
    PackedLMHead,
    fits_float16,
    select_linear_kernel,
)
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.packing import pack_in_threads, pack_linear_layers, widen_activations
from folovllm.models.weights import build_model
from tests.helpers import make_hf_folder
from tests.m1.test_layers import TOLERANCE, relative_error
from tests.m1.test_models import MODELS, flat_logits

CPU = torch.device("cpu")


def build(folder: Path, dtype: torch.dtype = torch.float32) -> DecoderForCausalLM:
    model = build_model(AutoConfig.from_pretrained(folder), 256, dtype, CPU, folder)
    widen_activations(model)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("num_tokens", [1, 2, 17])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("either_cpu")
def test_every_available_kernel_computes_the_linear_layer(kernel, dtype, num_tokens, bias):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    b = torch.randn(96, generator=generator).to(dtype) if bias else None
    x = torch.randn(num_tokens, 64, generator=generator).to(dtype)
    if (reason := kernel.unavailable_reason(weight)) is not None:
        assert reason  # a kernel that cannot run says why
        return
    got = kernel.apply(x, kernel.pack(weight, b))
    want = F.linear(x.double(), weight.double(), None if b is None else b.double())
    assert got.dtype == dtype
    assert relative_error(got, want) < TOLERANCE[dtype]


def test_fbgemm_slabs_join_to_the_whole_product(monkeypatch):
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch has no FBGEMM")
    monkeypatch.setattr("folovllm.layers.linear_kernels.MAX_UNSLICED_ROWS", 99)
    monkeypatch.setattr("folovllm.layers.linear_kernels.SLAB_ROWS", 40)
    weight, bias, x = torch.randn(100, 8).bfloat16(), torch.randn(100).bfloat16(), torch.randn(3, 8).bfloat16()
    kernel = FbgemmKernel()
    packed = kernel.pack(weight, bias)
    assert len(packed) == 3
    want = F.linear(x.double(), weight.double(), bias.double())
    assert relative_error(kernel.apply(x, packed), want) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("entry", [1e6, -1e6, float("inf"), float("nan")])
def test_a_weight_that_float16_cannot_hold_is_found(entry):
    weight = torch.ones(4, 4).bfloat16()
    assert fits_float16(weight)
    weight[1, 2] = entry
    assert not fits_float16(weight)


@pytest.mark.usefixtures("either_cpu")
def test_every_weight_finds_a_kernel():
    """The native one can always; a fast one that cannot says why."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = torch.ones(4, 4, dtype=dtype)
        assert select_linear_kernel(weight).unavailable_reason(weight) is None
    half = torch.ones(4, 4, dtype=torch.float16)
    assert select_linear_kernel(half).name == "native"


class TransposingKernel:
    """A kernel that exists on every machine: its packed form is the transposed weight."""

    name = "transposing"

    def pack(self, weight, bias):
        return weight.T.contiguous()

    def apply(self, x, packed):
        return x @ packed


def test_packing_drops_the_original_weight_unless_somebody_else_reads_it(monkeypatch):
    monkeypatch.setattr("folovllm.layers.linear_kernels.select_linear_kernel", lambda weight: TransposingKernel())
    x = torch.randn(2, 8)
    layer = PackedLinear(8, 16)
    layer.weight.data.normal_()
    want = x @ layer.weight.T
    layer.pack()
    assert layer.weight.numel() == 0
    torch.testing.assert_close(layer(x), want)

    embedding, head = Embedding(16, 8), PackedLMHead(8, 16)
    embedding.weight.data.normal_()
    head.tie_to(embedding)
    head.pack()
    assert embedding.weight.shape == (16, 8)
    torch.testing.assert_close(head(x), x @ embedding.weight.T)


@pytest.mark.parametrize("name", MODELS)
def test_packed_logits_equal_hugging_face(name, tmp_path):
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    spans = [torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n)) for n in (7, 1, 100)]
    with torch.inference_mode():
        want = torch.cat([oracle(span[None]).logits[0] for span in spans])
    model = build(folder)
    pack_in_threads(model)
    assert (flat_logits(model, spans) - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize("name", ["qwen3 tied", "qwen2", "llama with biases"])
def test_packed_bfloat16_logits_are_near_float32_on_the_same_weights(name, tmp_path):
    """Whatever this CPU makes of bfloat16: packed as float16 between widened activations, or by its own units."""
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, dtype=torch.bfloat16, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model, spans = build(folder, torch.bfloat16), [torch.arange(n) for n in (1, 40)]
    pack_in_threads(model)
    with torch.inference_mode():
        want = torch.cat([oracle(span[None]).logits[0] for span in spans])
    error = (flat_logits(model, spans, torch.bfloat16).float() - want).norm() / want.norm()
    assert error < 0.03  # bfloat16 rounds to 1 part in 256, and the roundings of two layers add up


def test_a_bfloat16_weight_that_float16_cannot_hold_is_multiplied_as_it_is(monkeypatch, tmp_path):
    """Between layers of float32 it takes the native product, which must bring both sides to one dtype."""
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "no")  # with bf16 units nothing is widened
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")  # they hold bfloat16 as it is
    folder = make_hf_folder(tmp_path, "qwen3", dtype=torch.bfloat16)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model, span = build(folder, torch.bfloat16), torch.arange(20)
    for down in (model.model.layers[0].mlp.down_proj, oracle.model.layers[0].mlp.down_proj):
        down.weight.data[3, 5] = 2.0**17
    pack_in_threads(model)
    assert model.model.layers[0].mlp.down_proj.kernel.name == "native"
    with torch.inference_mode():
        want = oracle(span[None]).logits[0]
    error = (flat_logits(model, [span], torch.bfloat16).float() - want).norm() / want.norm()
    assert error < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_packed_in_threads_give_the_very_same_logits(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, before = make_hf_folder(tmp_path, "qwen3", dtype=dtype), list(warnings.filters)
    models = [build(folder, dtype) for _ in range(2)]
    pack_linear_layers(models[0])
    pack_in_threads(models[1], num_threads=3)
    assert {type(m) for m in models[1].modules() if isinstance(m, Linear)} == {PackedLinear, PackedLMHead}
    assert warnings.filters == before
    spans = [torch.arange(n) for n in (1, 17, 40)]
    assert torch.equal(*(flat_logits(model, spans, dtype) for model in models))


def test_a_weight_that_cannot_be_packed_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = build(make_hf_folder(tmp_path, "qwen3", dtype=torch.bfloat16), torch.bfloat16)
    fails, pack = model.model.layers[1].mlp.down_proj, PackedLinear.pack

    def pack_or_fail(layer: PackedLinear, *, keep_weight: bool = False) -> None:
        if layer is fails:
            raise RuntimeError("no memory")
        pack(layer, keep_weight=keep_weight)

    monkeypatch.setattr(PackedLinear, "pack", pack_or_fail)
    with pytest.raises(RuntimeError, match="no memory"):
        pack_in_threads(model)


def test_only_exact_classes_are_packed(tmp_path: Path) -> None:
    class MyLinear(Linear):
        pass

    model = build(make_hf_folder(tmp_path))
    own = model.model.layers[0].mlp.down_proj
    own.__class__ = MyLinear
    pack_in_threads(model)
    assert type(own) is MyLinear
    assert type(model.model.layers[1].mlp.down_proj) is PackedLinear
    assert type(model.lm_head) is PackedLMHead
    assert isinstance(model.lm_head, LMHead)


def test_info_says_which_kernel_takes_which_dtype() -> None:
    kernels = collect()["linear_kernels"]
    assert set(kernels) == {"bfloat16", "float32"}
    # The last resort can always run; whatever cannot says why.
    assert all(of_dtype["native"] is None for of_dtype in kernels.values())
    reasons = [reason for of_dtype in kernels.values() for reason in of_dtype.values()]
    assert all(reason is None or len(reason) > 5 for reason in reasons)
