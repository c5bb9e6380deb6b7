"""The product of few rows against float64, and models and engines that compute with it against plain torch's and
Hugging Face's. Triton's interpreter rounds float32 to bfloat16 towards zero."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig

from folovllm import SamplingParams
from folovllm.attention import splits
from folovllm.engine.builder import kernel_cases
from folovllm.engine.builder.components import select_ops
from folovllm.layers import few_rows as module
from folovllm.layers.few_rows import FewRowsOps, takes_few_rows
from folovllm.layers.kernels import few_rows as kernels
from folovllm.layers.kernels.few_rows import TILES, constants, few_rows
from folovllm.layers.linear import PLAIN, LinearMethod
from folovllm.layers.norm import RMSNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.cuda import gpu_method, plain_method
from folovllm.layers.quantization.kernels import linear_codes
from folovllm.layers.quantization.linear import QuantizedLinears
from folovllm.layers.triton_ops import triton_ops
from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.models.weights import build_model
from folovllm.utils.gpus import Gpu
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, our_warnings, some
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve, serve_on_cpu
from tests.m4.test_triton_ops import DEVICE, hidden_states, normal, tiny_model

pytest.importorskip("triton")

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}  # relative to the largest; x * w and the result are rounded
CUDA = torch.device("cuda")


def ours(**options: Any) -> FewRowsOps:
    return FewRowsOps(**vars(triton_ops()), **options)


def normed(size: int, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(size, 1e-6)
    norm.weight.data = normal(size, dtype=dtype, seed=3)
    return norm


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.isfinite().all()
    assert float((got.double() - want).abs().max() / want.abs().max()) < TOLERANCE[got.dtype]


@pytest.mark.parametrize("dtype", some(DTYPES))
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("num_rows", "size", "columns"), some([(20, 72, 70), (64, 264, 32), (1, 64, 40), (8, 1032, 16)], 2)
)
@pytest.mark.parametrize("wide", [False, True], ids=["", "wide"])
def test_norm_product_and_swiglu_are_those_of_float64(
    num_rows: int, size: int, columns: int, bias: bool, dtype: torch.dtype, wide: bool, monkeypatch
) -> None:
    """Of sizes that are no whole number of steps or tiles, too. wide: as a larger model's programs are."""
    if wide:
        monkeypatch.setattr(kernels, "PROGRAMS", 1)
    x, weight = normal(num_rows, size, dtype=dtype) * 3, normal(2 * columns, size, dtype=dtype, seed=1)
    added, norm = normal(2 * columns, dtype=dtype, seed=2) if bias else None, normed(size, dtype)
    want = F.rms_norm(x.double(), (size,), norm.weight.double(), 1e-6) @ weight.double().T
    want = want if added is None else want + added.double()
    assert_near(few_rows(x, weight, added, norm=norm), want)
    gate, up = want.chunk(2, dim=1)
    assert_near(few_rows(x, weight, added, norm=norm, gated=True), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_added_to_the_residual_in_its_place(dtype: torch.dtype) -> None:
    x, weight = normal(5, 200, dtype=dtype), normal(48, 200, dtype=dtype, seed=1)
    residual = normal(5, 48, dtype=dtype, seed=2)
    want = residual.double() + x.double() @ weight.double().T
    assert few_rows(x, weight, add_to=residual) is residual
    assert_near(residual, want)
    assert few_rows(x[:0], weight).shape == (0, 48)


def test_rows_are_computed_by_themselves() -> None:
    """Neither how many others there are below a tile's size, nor what is in them, changes a bit."""
    x, weight, norm = normal(8, 136), normal(32, 136, seed=1), normed(136, torch.float32)
    alone = few_rows(x[:3].contiguous(), weight, norm=norm)
    x[3:] = torch.nan
    assert torch.equal(few_rows(x, weight, norm=norm)[:3], alone)


def test_each_program_has_a_multiprocessor_and_asks_for_no_more_than_it_has() -> None:
    for rows in range(1, TILES[-1] + 1):
        for shape, gated in (((4096, 1024), False), ((1024, 2048), False), ((3072, 1024), True), ((1024, 3072), False)):
            made = constants(rows, *shape, gated=gated)
            assert made["ROWS"] >= rows > max([0, *(tile for tile in TILES if tile < made["ROWS"])])
            assert 48 <= shape[0] // made["COLUMNS"] <= 132
            assert made["AHEAD"] in range(8, shape[1] + 1, 8)
            assert made["COLUMNS"] % made["num_warps"] == 0  # each warp asks for as many rows ahead


@pytest.mark.parametrize(
    ("kind", "over"),
    some([("qwen3", {}), ("qwen2", {"num_attention_heads": 4}), ("llama", {"attention_bias": True, "mlp_bias": True})]),
)
def test_a_model_has_the_hidden_states_of_plain_torch(tmp_path, kind: str, over: dict) -> None:
    models = [tiny_model(tmp_path, kind, ops, **over) for ops in (ours(), LayerOps())]
    assert models[0].model.ops.most_rows == TILES[-1]
    got, want = map(hidden_states, models)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_model_in_bfloat16_is_as_near_as_with_the_kernels_apart(tmp_path) -> None:
    """Sums are rounded less often here; both are held against float32 with the same weights."""
    folder = make_hf_folder(tmp_path, "qwen3")
    config = AutoConfig.from_pretrained(folder)
    together, apart, want = (
        hidden_states(build_model(config, 64, dtype, DEVICE, folder, ops=ops)).float()
        for dtype, ops in (
            (torch.bfloat16, ours()), (torch.bfloat16, triton_ops()), (torch.float32, LayerOps()),
        )
    )  # fmt: skip
    errors = [float((got - want).norm() / want.norm()) for got in (together, apart)]
    assert errors[0] < min(0.05, 1.2 * errors[1])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels beside attention, in the order in which they were launched."""
    names: list[str] = []

    class Counted:
        def __init__(self, name: str, kernel: Any) -> None:
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid: Any) -> Any:
            names.append(self.name)
            return self.kernel[grid]

    from folovllm.layers.kernels import add_rms_norm, norm_rotary, silu_mul

    for home, name in (
        (kernels, "few_rows"), (norm_rotary, "norm_rotary"), (add_rms_norm, "add_rms_norm"), (silu_mul, "silu_mul"),
        (linear_codes, "linear_codes"), (linear_codes, "add_splits"),
    ):  # fmt: skip
        monkeypatch.setattr(home, f"_{name}_kernel", Counted(name, getattr(home, f"_{name}_kernel")))
    return names


@pytest.mark.exhaustive
@pytest.mark.parametrize("splits", [1, 2])
def test_products_with_codes_take_over_what_they_can(tmp_path, monkeypatch, splits: int, launched: list[str]) -> None:
    """A norm, where sums are added up; SwiGLU, where they are not."""
    plan = linear_codes.choose_plan
    monkeypatch.setattr(linear_codes, "choose_plan", lambda *a, **more: plan(*a, **more)._replace(splits=splits))
    ways = (partial(gpu_method, invariant=False), plain_method)
    of_gpu, of_torch = (QuantizedLinears(ONLINE["w4a16"], way, PLAIN) for way in ways)
    ops = FewRowsOps(**vars(triton_ops(of_gpu)), few_rows=None)
    model, want = tiny_model(tmp_path, "qwen3", ops), tiny_model(tmp_path, "qwen3", LayerOps(of_torch))
    launched.clear()
    torch.testing.assert_close(hidden_states(model), hidden_states(want), atol=1e-5, rtol=1e-5)
    product = ["linear_codes", "add_splits"] if splits == 2 else ["linear_codes"]
    norm, swiglu = ([], ["silu_mul"]) if splits == 2 else (["add_rms_norm"], [])
    layer = [*product, "norm_rotary", *product, *norm, *product, *swiglu, *product, *norm]
    assert launched == ["add_rms_norm", *layer, *layer]
    ops.most_rows = 4  # there are five
    launched.clear()
    hidden_states(model)
    assert "silu_mul" in launched


def test_a_layer_is_four_products_and_a_rotation(tmp_path, launched: list[str]) -> None:
    """Beside attention, and until there are too many rows."""
    model = tiny_model(tmp_path, "qwen3", ours())
    launched.clear()
    hidden_states(model)
    layer = ["few_rows", "norm_rotary", "few_rows", "few_rows", "few_rows"]
    assert launched == [*layer, *layer, "add_rms_norm"]
    model.model.ops.most_rows = 4  # there are five
    launched.clear()
    hidden_states(model)
    assert "few_rows" not in launched


@pytest.mark.parametrize(
    ("kind", "over", "most_rows"),
    [("qwen3", {}, module.FEW), ("qwen3_moe", {}, 0), ("qwen3", {"intermediate_size": 100}, 0)],
    ids=["large weights", "experts", "no eights"],
)
def test_what_has_the_library(tmp_path, monkeypatch, kind: str, over: dict[str, int], most_rows: int) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 64 * 128)  # a layer has larger ones
    ops = ours()
    tiny_model(tmp_path, kind, ops, **over)
    assert ops.most_rows == most_rows


def test_products_that_are_made_in_another_way_are_left_alone(tmp_path) -> None:
    class Summed(LinearMethod):
        """As that of a layer which is cut between ranks."""

    ops = FewRowsOps(**vars(triton_ops(Summed())))
    tiny_model(tmp_path, "qwen3", ops)
    assert ops.most_rows == 0


def test_it_is_taken_for_plain_bfloat16_weights_on_a_hopper_gpu(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"one_by_one": False, "invariant": False}
    assert type(select_ops(torch.bfloat16, CUDA, **usual)) is FewRowsOps
    for dtype, options in (
        (torch.float32, usual), (torch.float16, usual), (torch.bfloat16, usual | {"invariant": True}),
    ):  # fmt: skip
        assert type(select_ops(dtype, CUDA, **options)) is not FewRowsOps
    with_codes: Any = select_ops(torch.bfloat16, CUDA, **usual, scheme=ONLINE["w4a16"])
    assert with_codes.few_rows is None
    for gpu in (Gpu("nvidia", (8, 0)), Gpu("amd", (9, 0))):
        monkeypatch.setattr(module, "gpu_of", lambda device, gpu=gpu: gpu)
        assert not takes_few_rows(torch.bfloat16, CUDA)


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tokens can be compared."""
    monkeypatch.setattr(module, "takes_few_rows", lambda dtype, device: device.type == "cuda")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("in_float32")
def test_an_engine_with_graphs_says_what_it_says_on_the_cpu(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    requests = [(prompt, SamplingParams(temperature=0, max_tokens=4)) for prompt in PROMPTS[:3]]
    engine = make_engine(small_oracle)
    compiled = len(fake_cuda.variants["_few_rows_kernel"])
    assert serve(engine, requests) == serve_on_cpu(small_oracle, requests)
    assert fake_cuda.launches["graph"] > 0
    assert len(fake_cuda.variants["_few_rows_kernel"]) == compiled == 4 * len(TILES)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.exhaustive
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_torch_takes_its_place_where_it_is_wrong(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    wrong: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "yes")
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(splits, "PLACES", 4)  # as test_kernel_check.py has them, for time
    monkeypatch.setattr(kernel_cases, "MANY", 8)
    kernel = kernels._few_rows_kernel

    class Doubled:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*args: Any, **options: Any) -> None:
                kernel[grid](*args, **options)
                args[4].mul_(1 + (options["ROWS"] == TILES[-1]))

            return launch

    if wrong:
        monkeypatch.setattr(kernels, "_few_rows_kernel", Doubled())
    engine = make_engine(small_oracle, max_num_seqs=1, max_model_len=16, num_kv_blocks=8, enforce_eager=True)
    said = set(our_warnings(caplog))  # some versions of pytest hear a logger twice that begins to propagate
    assert engine.runner.model.model.ops.most_rows == (0 if wrong else TILES[-1])
    assert len(said) == wrong
    assert all("the kernel 'few_rows' is off by" in line for line in said)
