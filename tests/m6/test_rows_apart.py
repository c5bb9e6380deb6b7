"""A model in the compiled kernels gives each row its own bits in any company; a part that is not known is refused."""

from __future__ import annotations

import pytest
import torch

from folovllm.models.batch_invariant import require_rows_apart
from folovllm.models.compiled_decoder import compile_decoder
from folovllm.models.decoder import MLP, DecoderForCausalLM
from folovllm.models.fused_compiled import fuse_compiled
from folovllm.models.weights import build_model
from folovllm.utils import cpu_kernels
from tests.helpers import tiny_hf_config

REASON = cpu_kernels.unavailable_reason()
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")


def build(dtype: torch.dtype = torch.float32) -> DecoderForCausalLM:
    config = tiny_hf_config("qwen3", architectures=["Qwen3ForCausalLM"])
    model = build_model(config, 64, dtype, torch.device("cpu"), None)
    fuse_compiled(model)
    return model


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("either_cpu")
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    """In a product, a norm and SwiGLU, with rows for several blocks and several threads."""
    model = build(dtype)
    layer, flows = model.model.layers[0], model.model.norm.weight.dtype
    x = torch.randn(131, model.model.norm.weight.numel(), generator=torch.Generator().manual_seed(0)).to(flows)
    for part in (layer.mlp, layer.self_attn.qkv_proj, layer.input_layernorm, model.lm_head):
        together = part(x)
        for row in (0, 1, 77, 130):
            assert torch.equal(part(x[[row]])[0], together[row])


@needs_kernels
def test_a_compiled_model_is_taken_as_it_is_with_and_without_its_layers_in_one_call() -> None:
    model = build()
    require_rows_apart(model)
    compile_decoder(model)
    require_rows_apart(model)


class NewMLP(MLP):
    """Nobody knows what it computes."""


@needs_kernels
def test_a_class_that_is_not_known_is_refused_by_name() -> None:
    model = build()
    model.model.layers[1].mlp.__class__ = NewMLP
    with pytest.raises(ValueError, match=r"^batch_invariant=True cannot be kept by NewMLP \(model.layers.1.mlp\): "):
        require_rows_apart(model)


def test_what_torch_multiplies_is_refused() -> None:
    config = tiny_hf_config("qwen3", architectures=["Qwen3ForCausalLM"])
    model = build_model(config, 64, torch.float32, torch.device("cpu"), None)
    with pytest.raises(ValueError, match="^batch_invariant=True cannot be kept by "):
        require_rows_apart(model)
