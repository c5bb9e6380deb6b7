"""The kernels between the matrix products against float64, and fused models against the models as they are.

Triton's interpreter rounds float32 to bfloat16 towards zero, so a bfloat16 result may be a whole step away there.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig

from folovllm import LLM, SamplingParams
from folovllm.layers.kernels import add_rms_norm, norm_rotary, silu_mul
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.models import fused
from folovllm.models.weights import build_model
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model

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
    out = add_rms_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert_near(residual, total)
    # What is normalised is the stream as the next layer finds it, rounded.
    assert_near(out, F.rms_norm(residual.double(), (size,), weight.double(), 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_alone_reads_strided_rows_and_leaves_them(dtype: torch.dtype) -> None:
    wide = normal(5, 96, dtype=dtype)
    x, before, weight = wide[:, 16:80], wide.clone(), normal(64, dtype=dtype, seed=2)
    assert_near(add_rms_norm.rms_norm(x, weight, 1e-5), F.rms_norm(x.double(), (64,), weight.double(), 1e-5))
    assert torch.equal(wide, before)


def test_a_norm_over_columns_of_a_transposed_matrix_is_right_too() -> None:
    x, weight = normal(64, 3).T, normal(64, seed=1)
    assert_near(add_rms_norm.rms_norm(x, weight, 1e-6), F.rms_norm(x.double(), (64,), weight.double(), 1e-6))


def norm_and_rotate(qk: torch.Tensor, num_heads: int, angles: torch.Tensor, weight: torch.Tensor | None):
    """By definition, in float64: element i turns with element i + head_size / 2, by `angles` [tokens, that half]."""
    qk = qk.double()
    if weight is not None:
        qk = qk / (qk.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        qk = qk * torch.cat([weight[:1].expand(num_heads, -1), weight[1:].expand(qk.shape[1] - num_heads, -1)]).double()
    a, b = qk.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False], ids=["with norm", "rotation alone"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(4, 2, 16), (8, 1, 24), (1, 1, 128)])
def test_heads_are_normed_and_turned_in_place_and_v_is_not_touched(
    num_heads: int, num_kv_heads: int, head_size: int, normed: bool, dtype: torch.dtype
) -> None:
    qkv = normal(3, num_heads + 2 * num_kv_heads, head_size, dtype=dtype)
    weight = normal(2, head_size, dtype=dtype, seed=1) if normed else None
    positions = torch.tensor([0, 7, 63], device=DEVICE)
    frequencies = 1e4 ** (-torch.arange(0, head_size, 2, dtype=torch.float64, device=DEVICE) / head_size)
    qk, v = qkv.split([num_heads + num_kv_heads, num_kv_heads], dim=1)
    want, v_before = norm_and_rotate(qk, num_heads, positions[:, None] * frequencies, weight), v.clone()
    rotary = RotaryEmbedding(head_size, 64, ROPE).to(DEVICE)(positions)
    got = norm_rotary.norm_rotary_(qk, num_heads, rotary, weight, 1e-6)
    assert got.data_ptr() == qkv.data_ptr()
    # The table itself is float32: its angles are up to 63 radians and wrong by 4e-6.
    assert float((got.double() - want).abs().max() / want.abs().max()) < TOLERANCE[dtype] + 4e-6
    assert torch.equal(v, v_before)


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
    assert add_rms_norm.rms_norm(normal(0, 8), normal(8), 1e-6).shape == (0, 8)
    rotary = normal(0, 1, 8), normal(0, 1, 8)
    assert norm_rotary.norm_rotary_(normal(0, 2, 8), 1, rotary, None, 0.0).shape == (0, 2, 8)


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


def tiny_model(tmp_path, kind: str, **over):
    folder = make_hf_folder(tmp_path, kind, **over)
    return build_model(AutoConfig.from_pretrained(folder), 64, torch.float32, DEVICE, folder)


class NoCache:
    """Attention where each token sees itself alone: what a layer does beside attention stays visible."""

    def write(self, k, v, kv_cache, slot_mapping) -> None:
        self.v = v

    def forward(self, q, kv_cache, metadata):
        return q + self.v.repeat_interleave(q.shape[1] // self.v.shape[1], dim=1)


class NoMetadata:
    slot_mapping = None


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
def test_a_fused_model_has_the_hidden_states_of_the_model_as_it_is(tmp_path, kind: str, over: dict) -> None:
    model = tiny_model(tmp_path, kind, **over)
    want = hidden_states(model)
    assert fused.fuse(model) == 2 * 4 + 1  # two layers of two norms, an attention and an MLP; the last norm
    torch.testing.assert_close(hidden_states(model), want, atol=1e-5, rtol=1e-5)


def test_a_fused_layer_is_four_launches_beside_its_products_and_attention(tmp_path, launches: list[str]) -> None:
    model = tiny_model(tmp_path, "qwen3")
    hidden_states(model)
    assert launches == []
    fused.fuse(model)
    hidden_states(model)
    layer = ["add_rms_norm", "norm_rotary", "add_rms_norm", "silu_mul"]
    assert launches == [*layer, *layer, "add_rms_norm"]


def test_somebodys_own_subclass_is_left_alone_and_fusing_twice_is_fusing_once(tmp_path) -> None:
    model = tiny_model(tmp_path, "llama")

    class OwnNorm(type(model.model.norm)):
        pass

    model.model.norm.__class__ = OwnNorm
    assert fused.fuse(model) == 2 * 4
    assert type(model.model.norm) is OwnNorm
    assert fused.fuse(model) == 0


def test_weights_keep_their_names_in_the_checkpoint(tmp_path) -> None:
    model = tiny_model(tmp_path, "qwen3")
    before = [(name, view.shape) for name, view in model.checkpoint_slots()]
    fused.fuse(model)
    assert [(name, view.shape) for name, view in model.checkpoint_slots()] == before


def test_fusing_where_no_kernel_runs_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path, "llama")
    monkeypatch.setattr(fused, "can_fuse", lambda device: "needs a CUDA device")
    with pytest.raises(ValueError, match=r"^device must be one that Triton kernels run on .* needs a CUDA device$"):
        fused.fuse(model)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_an_engine_with_a_fused_model_says_what_hugging_face_says(tmp_path, monkeypatch, launches, kind: str) -> None:
    def build(*args, **kwargs):
        model = build_model(*args, **kwargs)
        fused.fuse(model)
        return model

    monkeypatch.setattr("folovllm.engine.build.build_model", build)
    folder = make_hf_folder(tmp_path, kind, max_position_embeddings=64)
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device=str(DEVICE))
    prompts = [[5, 100, 7], [1], [9, 8, 7, 6, 5, 4, 3]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6))
    assert "norm_rotary" in launches
    oracle = make_hf_model(kind, max_position_embeddings=64).to(DEVICE)
    assert [output.outputs[0].token_ids for output in outputs] == [hf_greedy(oracle, ids, 6) for ids in prompts]
