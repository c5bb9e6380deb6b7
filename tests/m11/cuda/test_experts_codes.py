"""Experts whose weights are codes, on a GPU: one launch for all of them, beside float64 on the weights that are meant;
and whole engines, which replay steps with them as with any others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from folovllm import LLM
from folovllm.engine.builder import kernel_cases, kernel_check
from folovllm.layers.linear import PLAIN
from folovllm.layers.moe import Routing
from folovllm.layers.ops import LayerOps, silu_mul
from folovllm.layers.quantization.codes import Codes, round_to_e4m3, round_to_nearest
from folovllm.layers.quantization.cuda import gpu_method, plain_method
from folovllm.layers.quantization.linear import QuantizedLinears
from folovllm.model_loader.quant_scheme import ONLINE, QuantScheme
from folovllm.models.decoder import MLP
from folovllm.models.registry import decoder_spec
from folovllm.models.weights import default_dtype
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, some, tiny_hf_config
from tests.m7.test_triton_codes_engine import SMALL, say
from tests.m10.support import by_hand, random_routing

pytest.importorskip("triton")
from folovllm.layers.few_rows import FewRowsOps
from folovllm.layers.quantization import experts
from folovllm.layers.quantization.experts import StackedExperts
from folovllm.layers.quantization.kernels.linear_codes import PackedCodes
from folovllm.layers.triton_ops import triton_ops

pytestmark = pytest.mark.slow  # interpreted: some seconds
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# A token is rounded three times on its way, and by the interpreter towards zero.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3 * 2**-10, torch.bfloat16: 3 * 2**-7}


def scheme(bits: int, group: int, *, symmetric: bool = True, **more: Any) -> QuantScheme:
    return QuantScheme("plain", bits, group, symmetric, **more)


E4M3 = scheme(8, -1, type="float", activation_bits=8)


def meant(weight: torch.Tensor, how: QuantScheme | None) -> torch.Tensor:
    if how is None:
        return weight
    if how.type == "float":
        numbers, scale = round_to_e4m3(weight)
        return Codes(numbers, scale, None).dequantize()
    return round_to_nearest(weight, bits=how.bits, group_size=how.group_size, symmetric=how.symmetric).dequantize()


class Case:
    """Experts as an engine builds them, `hows` (of each expert) saying how their weights are rounded; and what these
    mean."""

    def __init__(
        self, hows: list[QuantScheme | None], hidden: int, size: int, dtype: torch.dtype = torch.float32, **how: bool
    ) -> None:
        spec: Any = SimpleNamespace(hidden_size=hidden, intermediate_size=size, mlp_bias=False)

        def make(number: int) -> MLP:
            kind = hows[number]
            linear = PLAIN if kind is None else QuantizedLinears(kind, partial(gpu_method, invariant=False), PLAIN)
            return MLP(spec, LayerOps(linear), f"model.layers.0.mlp.experts.{number}")

        with DEVICE, default_dtype(dtype):
            self.experts = StackedExperts(len(hows), make, **how)
        self.means: Any = []
        built: Any = self.experts
        for expert, kind in zip(built, hows, strict=True):
            products = expert.gate_up_proj, expert.down_proj
            for product in products:
                product.weight.copy_(0.3 * torch.randn(product.weight.shape))
            weights = [SimpleNamespace(weight=meant(product.weight.cpu(), kind)) for product in products]
            self.means.append(SimpleNamespace(gate_up_proj=weights[0], down_proj=weights[1]))
        triton_ops().process_weights_after_loading(self.experts)

    def compute(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        return self.experts(x.to(DEVICE), Routing(*(part.to(DEVICE) for part in routing))).cpu()

    def check(self, x: torch.Tensor, routing: Routing) -> None:
        want = by_hand(self.means, x, routing)
        got = self.compute(x, routing).double()
        torch.testing.assert_close(got, want, atol=TOLERANCE[x.dtype] * float(want.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("how", "dtype", "num_tokens", "num_experts", "top_k", "hidden", "size"),
    some(
        [
            (scheme(4, 32), torch.bfloat16, 5, 8, 3, 96, 64),
            (scheme(8, -1, symmetric=False), torch.float32, 70, 3, 2, 100, 40),
            (scheme(4, 16, symmetric=False), torch.float16, 1, 40, 8, 48, 16),
            (scheme(8, 128), torch.float16, 20, 1, 1, 256, 128),
            (E4M3, torch.float16, 70, 3, 2, 100, 40),
            (E4M3, torch.float32, 3, 5, 2, 33, 17),
        ],
        kept=3,
    ),
)
def test_tokens_have_what_the_codes_of_their_experts_mean(
    how: QuantScheme, dtype: torch.dtype, num_tokens: int, num_experts: int, top_k: int, hidden: int, size: int
) -> None:
    case = Case([how] * num_experts, hidden, size, dtype)
    assert isinstance(case.experts.gate_up, PackedCodes)
    case.check(torch.randn(num_tokens, hidden).to(dtype), random_routing(num_tokens, num_experts, top_k))


def test_all_tokens_on_one_side_leave_the_other_experts_alone() -> None:
    """A scale that is NaN would be in the result."""
    case = Case([scheme(4, 32)] * 6, 64, 32)
    for stack in (case.experts.gate_up, case.experts.down):
        assert isinstance(stack, PackedCodes)
        stack.scale[[0, 1, 2, 4]] = torch.nan
    for chosen in ([5, 3], [3, 5]):
        case.check(torch.randn(40, 64), Routing(torch.full((40, 2), 0.5), torch.tensor([chosen] * 40)))
    assert case.compute(torch.zeros(0, 64), random_routing(0, 6, 2)).shape == (0, 64)


@pytest.mark.usefixtures("fixed_order")
def test_invariant_bits_do_not_depend_on_the_batch() -> None:
    case, routing, x = Case([scheme(4, 16)] * 2, 48, 32, invariant=True), random_routing(40, 2, 2), torch.randn(40, 48)
    together = case.compute(x, routing)
    for token in (0, 39):
        alone = case.compute(x[token][None], Routing(*(part[token][None] for part in routing)))
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("others", [[scheme(8, 32)], [scheme(4, 16)], [None], [None, None]])
def test_experts_that_are_not_alike_become_the_weights_that_are_meant(others: list[QuantScheme | None]) -> None:
    case = Case([*others[1:], scheme(4, 32), others[0]], 64, 32)
    assert isinstance(case.experts.gate_up, torch.Tensor)
    case.check(torch.randn(9, 64), random_routing(9, 1 + len(others), 2))


def test_an_experts_parameters_are_slices_of_the_stack() -> None:
    case = Case([scheme(4, 32)] * 3, 64, 32)
    stacks = [stack.words for stack in (case.experts.gate_up, case.experts.down) if isinstance(stack, PackedCodes)]
    assert {weight.untyped_storage().data_ptr() for weight in case.experts.parameters()} == {
        stack.untyped_storage().data_ptr() for stack in stacks
    }
    assert sum(weight.nbytes for weight in case.experts.parameters()) == sum(stack.nbytes for stack in stacks)


def test_w4a8_is_left_to_a_cpu() -> None:
    with pytest.raises(
        ValueError, match=r"^model.layers.0.mlp.experts.0.gate_proj has weights of 4 bits and inputs of 8"
    ):
        Case([ONLINE["w4a8"]], 64, 32)


@pytest.mark.parametrize("quantization", ["w4a16", *some(["w8a8", "fp8"])])
def test_an_engine_that_starts_tries_them(quantization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, scheme = decoder_spec(tiny_hf_config("qwen3_moe", moe_intermediate_size=32)), ONLINE[quantization]
    case = kernel_cases._product_cases(torch.randn, spec)["experts"]
    ours = QuantizedLinears(scheme, partial(gpu_method, invariant=False), PLAIN)
    plain = Mock(ops=LayerOps(QuantizedLinears(scheme, plain_method, PLAIN)))
    chosen = Mock(ops=FewRowsOps(**vars(triton_ops(ours)), few_rows=None))  # as select_ops() has it
    assert kernel_check._find_fault(case, chosen, plain, 1e-3) is None
    monkeypatch.setattr(experts, "silu_mul", lambda rows: 2 * silu_mul(rows))
    assert "is off by" in str(kernel_check._find_fault(case, chosen, plain, 1e-3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(
        tmp_path_factory.mktemp("model"), "qwen3_moe", num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, moe_intermediate_size=32,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("quantization", ["w4a16", "w8a8", "fp8"])
def test_replayed_steps_say_what_steps_layer_by_layer_say(
    folder: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    llm = LLM(str(folder), device="cuda", quantization=quantization, **SMALL)
    assert llm.engine.runner.graphs is not None
    fake_cuda.reset_counts()
    said = say(llm)
    assert fake_cuda.launches["graph"] > 0
    assert fake_cuda.compiled == []  # no request waits for a compiler
    if quantization == "w4a16":
        monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
        assert said == say(LLM(str(folder), device="cpu", quantization=quantization, **SMALL))
    else:  # a CPU rounds what goes into experts
        assert said == say(LLM(str(folder), device="cuda", quantization=quantization, enforce_eager=True, **SMALL))
