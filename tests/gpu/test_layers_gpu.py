"""The fused layers at a model's size against torch's, on the GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from folovllm.layers import ops
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.rotary import RotaryEmbedding

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

# Of the largest entry: two steps of a dtype, one for torch's rounding on the way and one for ours.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_SIZE = 1024, 3072, 16, 8, 128  # Qwen3-0.6B's


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.isfinite().all()
    error = (got.double() - want.double()).abs().max() / want.double().abs().max()
    assert float(error) < TOLERANCE[got.dtype]


@pytest.fixture(params=list(TOLERANCE), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize("num_tokens", [1, 256, 8192])
@pytest.mark.parametrize("size", [HIDDEN, 5120, 100])
def test_norm_of_a_sum(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    from folovllm.layers.kernels.add_rms_norm import rms_norm

    norm = RMSNorm(size, 1e-6)
    norm.weight.data = normal(size, dtype=dtype)
    x, residual = normal(num_tokens, size, dtype=dtype), normal(num_tokens, size, dtype=dtype)
    want, total = norm(x, residual)
    got, _ = rms_norm(x, residual, norm.weight, norm.eps)
    assert torch.equal(residual, total)  # one addition, rounded once: no tolerance
    assert_near(got, want)


@pytest.mark.parametrize("num_tokens", [1, 256, 8192])
@pytest.mark.parametrize("normed", [True, False], ids=["with norm", "rotation alone"])
def test_norm_of_heads_and_rotation(num_tokens: int, normed: bool, dtype: torch.dtype) -> None:
    from folovllm.layers.kernels.norm_rotary import norm_rotary

    norm = QKNorm(HEADS, KV_HEADS, HEAD_SIZE, 1e-6)
    norm.weight.data = normal(2, HEAD_SIZE, dtype=dtype)
    heads = normal(num_tokens, HEADS + 2 * KV_HEADS, HEAD_SIZE, dtype=dtype)
    rotary = RotaryEmbedding(HEAD_SIZE, 4096, {"rope_type": "default", "rope_theta": 1e6}).cuda()
    angles = rotary(torch.randint(4096, (num_tokens,), device="cuda"))
    arguments = norm if normed else None, angles, HEADS, KV_HEADS
    want_q, want_k, want_v = (part.clone() for part in ops.norm_rotary(heads, *arguments))
    q, k, v = norm_rotary(heads, *arguments)
    assert_near(torch.cat((q, k), dim=1), torch.cat((want_q, want_k), dim=1))
    assert torch.equal(v, want_v)


@pytest.mark.parametrize("num_tokens", [1, 256, 8192])
@pytest.mark.parametrize("size", [INTERMEDIATE, 1000])
def test_silu_times_up(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    from folovllm.layers.kernels.silu_mul import silu_mul

    gate_up = normal(num_tokens, 2 * size, dtype=dtype) * 3
    got = silu_mul(gate_up)
    assert_near(got, ops.silu_mul(gate_up))
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_near(got, (F.silu(gate) * up).to(dtype))


def test_offsets_beyond_two_billion_elements() -> None:
    """110,000 tokens of a model with 2 x 10,240 features: the last row begins past 2^31."""
    from folovllm.layers.kernels.silu_mul import silu_mul

    gate_up = torch.ones(110_000, 2 * 10_240, dtype=torch.bfloat16, device="cuda")
    gate_up[-1] = 2.0
    out = silu_mul(gate_up)
    assert (out[-1].float() - 2 * F.silu(torch.tensor(2.0)).item()).abs().max() < 0.02
    assert (out[-2].float() - F.silu(torch.tensor(1.0)).item()).abs().max() < 0.01
