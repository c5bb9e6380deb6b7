"""A model in the compiled kernels gives each row its own bits in any company."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.compiled_ops import CompiledOps
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import build_model
from folovllm.utils import cpu_kernels
from tests.helpers import tiny_hf_config

REASON = cpu_kernels.unavailable_reason()
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")


def build(dtype: torch.dtype = torch.float32) -> DecoderForCausalLM:
    config = tiny_hf_config("qwen3", architectures=["Qwen3ForCausalLM"])
    return build_model(config, 64, dtype, torch.device("cpu"), None, ops=CompiledOps(dtype))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("either_cpu")
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    """In a product, a norm and SwiGLU, with rows for several blocks and several threads."""
    model = build(dtype)
    layer, flows = model.model.layers[0], model.model.ops.flowing
    x = torch.randn(131, model.model.norm.weight.numel(), generator=torch.Generator().manual_seed(0)).to(flows)
    for part in (layer.mlp, layer.self_attn.qkv_proj, lambda x: layer.input_layernorm(x)[0], model.lm_head):
        together = part(x)
        for row in (0, 1, 77, 130):
            assert torch.equal(part(x[[row]])[0], together[row])
