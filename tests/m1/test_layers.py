"""Each layer against float64 or against transformers' own numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from folovllm.layers.linear import Embedding, Linear, LMHead
from folovllm.layers.norm import RMSNorm
from folovllm.layers.ops import silu_mul
from folovllm.layers.rotary import RotaryEmbedding, apply_rotary, rope_frequencies

# How far a result may be from float64, relative to the largest entry: a few roundings of the dtype.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.usefixtures("either_cpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 2, 17])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_is_its_product(dtype, num_tokens, bias):
    generator = torch.Generator().manual_seed(0)
    layer = Linear(64, 96, bias=bias).to(dtype)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    x = torch.randn(num_tokens, 64, generator=generator).to(dtype)
    want = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    got = layer(x)
    assert got.dtype == dtype
    assert relative_error(got, want) < TOLERANCE[dtype]


def test_a_tied_head_multiplies_by_the_embedding():
    embedding, head = Embedding(16, 8), LMHead(8, 16)
    embedding.weight.data.normal_()
    head.tie_to(embedding)
    x = torch.randn(2, 8)
    torch.testing.assert_close(head(x), x @ embedding.weight.T)


def test_stacked_linear_names_the_view_each_checkpoint_tensor_fills():
    layer = Linear(3, {"q_proj": 4, "k_proj": 2, "v_proj": 2}, bias=True)
    slots = dict(layer.checkpoint_slots())
    shapes = {name: tuple(view.shape) for name, view in slots.items()}
    assert shapes == {
        "q_proj.weight": (4, 3), "k_proj.weight": (2, 3), "v_proj.weight": (2, 3),
        "q_proj.bias": (4,), "k_proj.bias": (2,), "v_proj.bias": (2,),
    }  # fmt: skip
    slots["k_proj.weight"].fill_(7)
    assert (layer.weight[4:6] == 7).all()


def test_rms_norm_by_hand():
    norm = RMSNorm(2, eps=0.0)
    norm.weight.data = torch.tensor([1.0, 10.0])
    # mean of squares of (1, 7) is 25
    torch.testing.assert_close(norm(torch.tensor([[1.0, 7.0]]))[0], torch.tensor([[0.2, 14.0]]))


def test_a_norm_returns_the_sum_as_the_residual():
    norm = RMSNorm(4, eps=1e-6)
    norm.weight.data.fill_(1)
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    normed, total = norm(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, norm(x + residual)[0])


def test_silu_mul_by_hand():
    # silu(0) = 0; silu(large) = large
    torch.testing.assert_close(silu_mul(torch.tensor([[0.0, 100.0, 3.0, 2.0]])), torch.tensor([[0.0, 200.0]]))


def test_rotary_turns_element_i_with_element_i_plus_half():
    # head_dim 4, theta 1: both planes turn by one radian a position
    rotary = RotaryEmbedding(4, max_position=3, rope={"rope_type": "default", "rope_theta": 1.0})
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 4)
    turned = apply_rotary(x, *rotary(torch.tensor([2])))
    angle = torch.tensor(2.0)
    torch.testing.assert_close(turned.flatten(), torch.stack([angle.cos(), angle * 0, angle.sin(), angle * 0]))


ROPE_SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn with its own factor": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.5,
    },
    "yarn with a slope of its own": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "mscale": 0.7, "mscale_all_dim": 1.0,
    },
    "yarn untruncated": {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "truncate": False,
        "beta_fast": 16, "beta_slow": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROPE_SCALINGS)
def test_rope_scaling_agrees_with_transformers(name):
    rope = {"rope_theta": 10_000.0, **ROPE_SCALINGS[name]}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, max_position_embeddings=512, rope_parameters=rope)
    want, want_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    got, factor = rope_frequencies(64, rope)
    torch.testing.assert_close(got, want)
    assert factor == pytest.approx(want_factor)


def test_an_unknown_rope_type_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"rope_type 'spiral' is not supported; known: default, linear, llama3, yarn"):
        rope_frequencies(16, {"rope_type": "spiral", "rope_theta": 1e4})
