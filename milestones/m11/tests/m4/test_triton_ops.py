"""The kernels between the matrix products against float64, and models that run in them against plain torch.

Triton's interpreter rounds float32 to bfloat16 towards zero, so a bfloat16 result may be a whole step away there.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.kernels import add_rms_norm, norm_rotary, silu_mul
from folovllm.layers.norm import QKNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.layers.triton_ops import triton_ops
from folovllm.models.weights import build_model
from tests.helpers import make_hf_folder, some

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Relative to the largest entry: float32 sums of a few hundred terms; one step of the narrower dtypes.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
DTYPES = list(TOLERANCE)
ROPE = {"rope_type": "default", "rope_theta": 1e4}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.isfinite().all()
    assert float((got.double() - want).abs().max() / want.abs().max()) < TOLERANCE[got.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100])
def test_the_sum_is_written_over_the_residual_and_its_norm_is_returned(size: int, dtype: torch.dtype) -> None:
    x, residual, weight = normal(3, size, dtype=dtype), normal(3, size, dtype=dtype, seed=1), normal(size, dtype=dtype)
    total = x.double() + residual.double()
    out, stream = add_rms_norm.rms_norm(x, residual, weight, 1e-6)
    assert stream is residual
    assert_near(residual, total)
    # What is normalised is the stream as the next layer finds it, rounded.
    assert_near(out, F.rms_norm(residual.double(), (size,), weight.double(), 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_alone_reads_strided_rows_and_leaves_them(dtype: torch.dtype) -> None:
    wide = normal(5, 96, dtype=dtype)
    x, before, weight = wide[:, 16:80], wide.clone(), normal(64, dtype=dtype, seed=2)
    out, stream = add_rms_norm.rms_norm(x, None, weight, 1e-5)
    assert stream is x
    assert_near(out, F.rms_norm(x.double(), (64,), weight.double(), 1e-5))
    assert torch.equal(wide, before)


def norm_and_rotate(qk: torch.Tensor, num_heads: int, angles: torch.Tensor, weight: torch.Tensor | None):
    """By definition, in float64: element i turns with element i + head_size / 2, by `angles` [tokens, that half]."""
    qk = qk.double()
    if weight is not None:
        qk = qk / (qk.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        qk = qk * torch.cat([weight[:1].expand(num_heads, -1), weight[1:].expand(qk.shape[1] - num_heads, -1)]).double()
    a, b = qk.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@pytest.mark.parametrize("dtype", some(DTYPES))
@pytest.mark.parametrize("normed", [True, False], ids=["with norm", "rotation alone"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(4, 2, 16), (8, 1, 24), (1, 1, 128)])
def test_heads_are_normed_and_turned_in_place_and_v_is_not_touched(
    num_heads: int, num_kv_heads: int, head_size: int, normed: bool, dtype: torch.dtype
) -> None:
    qkv = normal(3, num_heads + 2 * num_kv_heads, head_size, dtype=dtype)
    weight = normal(2, head_size, dtype=dtype, seed=1) if normed else None
    positions = torch.tensor([0, 7, 63], device=DEVICE)
    frequencies = 1e4 ** (-torch.arange(0, head_size, 2, dtype=torch.float64, device=DEVICE) / head_size)
    qk, v_before = qkv.clone().split([num_heads + num_kv_heads, num_kv_heads], dim=1)
    want = norm_and_rotate(qk, num_heads, positions[:, None] * frequencies, weight)
    rotary = RotaryEmbedding(head_size, 64, ROPE).to(DEVICE)(positions)
    norm = None
    if weight is not None:
        norm = QKNorm(num_heads, num_kv_heads, head_size, 1e-6)
        norm.weight.data = weight
    q, k, v = norm_rotary.norm_rotary(qkv, norm, rotary, num_heads, num_kv_heads)
    assert q.data_ptr() == qkv.data_ptr()
    got = torch.cat((q, k), dim=1)
    # The table itself is float32: its angles are up to 63 radians and wrong by 4e-6.
    assert float((got.double() - want).abs().max() / want.abs().max()) < TOLERANCE[dtype] + 4e-6
    assert torch.equal(v, v_before)


@pytest.mark.parametrize("dtype", some(DTYPES))
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(4, 2, 16), (9, 3, 24), (2, 1, 128)])
def test_turned_keys_and_values_as_they_are_go_to_their_slots_and_to_no_other(
    num_heads: int, num_kv_heads: int, head_size: int, cache_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    """Programs of 8 heads, of which one has q, k and v at once. q and k are turned in place as without a cache."""
    qkv = normal(5, num_heads + 2 * num_kv_heads, head_size, dtype=dtype)
    norm = QKNorm(num_heads, num_kv_heads, head_size, 1e-6)
    norm.weight.data = normal(2, head_size, dtype=dtype, seed=1)
    rotary = RotaryEmbedding(head_size, 64, ROPE).to(DEVICE)(torch.tensor([0, 7, 63, 1, 2], device=DEVICE))
    want = norm_rotary.norm_rotary(qkv.clone(), norm, rotary, num_heads, num_kv_heads)
    cache = torch.full((2, 4, 3, num_kv_heads, head_size), torch.nan, dtype=cache_dtype, device=DEVICE)
    slots = torch.tensor([7, 0, 11, 3, 8], device=DEVICE)
    got = norm_rotary.norm_rotary(qkv, norm, rotary, num_heads, num_kv_heads, cache, slots)
    assert all(map(torch.equal, got, want))
    flat = cache.flatten(1, 2)
    for part, stored in zip(want[1:], flat[:, slots], strict=True):
        step = 2**-7 if cache_dtype != torch.float32 and dtype != cache_dtype else 0  # the interpreter cuts off
        torch.testing.assert_close(stored.float(), part.to(cache_dtype).float(), rtol=step, atol=0)
    flat[:, slots] = torch.nan
    assert flat.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [96, 1500])
def test_silu_times_up_with_rows_of_a_wider_tensor(size: int, dtype: torch.dtype) -> None:
    gate_up = normal(3, 2 * size + 8, dtype=dtype)[:, : 2 * size] * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_near(silu_mul.silu_mul(gate_up), F.silu(gate) * up)


@pytest.mark.filterwarnings("error")
def test_silu_of_gates_as_large_as_they_come() -> None:
    gates = torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30]], device=DEVICE)
    out = silu_mul.silu_mul(torch.cat((gates, torch.ones_like(gates)), dim=1))
    assert out.tolist() == [[0.0, 0.0, 0.0, 200.0, pytest.approx(1e30)]]


def test_no_rows_are_no_launch() -> None:
    assert silu_mul.silu_mul(normal(0, 8)).shape == (0, 4)
    assert add_rms_norm.rms_norm(normal(0, 8), None, normal(8), 1e-6)[0].shape == (0, 8)
    rotary = normal(0, 1, 8), normal(0, 1, 8)
    assert norm_rotary.norm_rotary(normal(0, 3, 8), None, rotary, 1, 1)[0].shape == (0, 1, 8)


class CountedKernel:
    """Stands for a kernel and notes each launch."""

    def __init__(self, name: str, kernel: object, log: list[str]) -> None:
        self.name, self.kernel, self.log = name, kernel, log

    def __getitem__(self, grid: object):
        self.log.append(self.name)
        return self.kernel[grid]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    log: list[str] = []
    for module in (add_rms_norm, norm_rotary, silu_mul):
        name = module.__name__.rpartition(".")[2]
        kernel = getattr(module, f"_{name}_kernel")
        monkeypatch.setattr(module, f"_{name}_kernel", CountedKernel(name, kernel, log))
    return log


def tiny_model(tmp_path, kind: str, ops: LayerOps, **over):
    folder = make_hf_folder(tmp_path, kind, **over)
    return build_model(AutoConfig.from_pretrained(folder), 64, torch.float32, DEVICE, folder, ops=ops)


class NoCache:
    """Attention where each token sees itself alone: what a layer does beside attention stays visible."""

    stores_as_is = False

    def write(self, k, v, kv_cache, slot_mapping) -> None:
        self.v = v

    def forward(self, q, kv_cache, metadata):
        return q + self.v.repeat_interleave(q.shape[1] // self.v.shape[1], dim=1)


class NoMetadata:
    slot_mapping = None

    def of_group(self, group: int) -> NoMetadata:
        return self


def hidden_states(model) -> torch.Tensor:
    for layer in model.attention_layers:
        layer.bind(NoCache(), torch.empty(0))
    ids = torch.tensor([3, 1, 200, 7, 9], device=DEVICE)
    with torch.inference_mode():
        return model(ids, torch.tensor([0, 1, 40, 5, 0], device=DEVICE), NoMetadata())


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        ("qwen3", {}),
        ("qwen2", {"num_attention_heads": 4, "num_key_value_heads": 1}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_a_model_has_the_hidden_states_of_plain_torch(tmp_path, kind: str, over: dict) -> None:
    got, want = (hidden_states(tiny_model(tmp_path, kind, ops, **over)) for ops in (triton_ops(), LayerOps()))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_layer_is_four_launches_beside_its_products_and_attention(tmp_path, launches: list[str]) -> None:
    hidden_states(tiny_model(tmp_path, "qwen3", LayerOps()))
    assert launches == []
    hidden_states(tiny_model(tmp_path, "qwen3", triton_ops()))
    layer = ["add_rms_norm", "norm_rotary", "add_rms_norm", "silu_mul"]
    assert launches == [*layer, *layer, "add_rms_norm"]


@pytest.mark.parametrize("of_its_own", [False, True], ids=["plain cache", "cache of the backend's own"])
def test_keys_and_values_are_stored_without_a_launch_where_the_cache_is_plain(
    tmp_path, monkeypatch: pytest.MonkeyPatch, of_its_own: bool
) -> None:
    """And hidden states are those of plain torch with the same backend, which stores them itself."""
    written: list[int] = []

    class Backend(PagedTorchBackend):
        stores_as_is = not of_its_own

        def write(self, k, *rest) -> None:
            written.append(len(k))
            super().write(k, *rest)

    def states(ops: LayerOps) -> tuple[torch.Tensor, torch.Tensor]:
        model = tiny_model(tmp_path, "qwen3", ops)
        cache = torch.zeros(2, 3, 4, *cache_heads(model), device=DEVICE)
        for layer in model.attention_layers:
            layer.bind(Backend(layer.num_heads, layer.num_kv_heads, cache.shape[-1], layer.scale), cache)
        metadata = one_prompt(5, block_size=4)
        with torch.inference_mode():
            return model(
                torch.tensor([3, 1, 200, 7, 9], device=DEVICE), torch.arange(5, device=DEVICE), metadata
            ), cache

    want = states(LayerOps())
    written.clear()
    got = states(triton_ops())
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert written == ([5, 5] if of_its_own else [])


def cache_heads(model) -> tuple[int, int]:
    spec = model.decoder_spec
    return spec.num_kv_heads, spec.head_size


def one_prompt(num_tokens: int, block_size: int) -> AttentionMetadata:
    """In blocks 2 and 1."""
    places = torch.arange(num_tokens, device=DEVICE)
    tables = torch.tensor([[2, 1]], dtype=torch.int32, device=DEVICE)
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32, device=DEVICE),
        slot_mapping=tables[0, places // block_size] * block_size + places % block_size,
        block_tables=tables,
        max_query_len=num_tokens,
        max_seq_len=num_tokens,
    )
