"""The kernels that add all adapters of a step, against float64: in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from folovllm.lora.mapping import LoRAMapping
from tests.helpers import some

pytest.importorskip("triton")
from folovllm.layers.triton_ops import TritonLoRAWeights

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = 3


def weights_of(inputs: int, outs: int, rank: int, dtype: torch.dtype) -> TritonLoRAWeights:
    weights = TritonLoRAWeights(SLOTS, rank, inputs, outs, dtype, DEVICE)
    for slot in range(SLOTS):
        weights.put(slot, torch.randn(rank - slot, inputs) / inputs**0.5, torch.randn(outs, rank - slot))
    return weights


def added(weights: TritonLoRAWeights, x: torch.Tensor, slots: list[int], out: torch.Tensor) -> torch.Tensor:
    got = out.to(DEVICE, copy=True)
    weights.add(x.to(DEVICE), LoRAMapping(torch.tensor(slots, dtype=torch.int64, device=DEVICE)), got)
    return got.cpu()


def off(weights: TritonLoRAWeights, x: torch.Tensor, slots: list[int], out: torch.Tensor) -> float:
    """How far from float64, of the largest number."""
    want, a, b = out.double(), weights.a.cpu().double(), weights.b.cpu().double()
    for row, slot in enumerate(slots):
        if slot >= 0:
            want[row] += b[slot] @ (a[slot] @ x[row].double())
    return float((added(weights, x, slots, out).double() - want).abs().max() / want.abs().max())


ALL, NONE = [row * 7 % 4 - 1 for row in range(40)], [-1] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("slots", "inputs", "outs", "rank"),
    [
        ([2], 40, 24, 5),
        ([0, 2, 2, -1, 0], 1100, 130, 19),  # parts, columns and ranks in several programs
        *some([(ALL, 48, 33, 8), ([1] * 40, 33, 48, 16), (NONE, 16, 16, 4)]),
    ],
)
def test_rows_get_what_their_adapters_add(
    slots: list[int], inputs: int, outs: int, rank: int, dtype: torch.dtype
) -> None:
    x, out = torch.randn(len(slots), inputs).to(dtype), torch.randn(len(slots), outs).to(dtype)
    most = 1e-5 if dtype == torch.float32 else 2**-6  # the interpreter rounds towards zero
    assert off(weights_of(inputs, outs, rank, dtype), x, slots, out) < most


def test_rows_without_an_adapter_stay_and_the_other_adapters_are_not_read() -> None:
    """NaN in a weight that is read would be in the result, whatever it is multiplied by."""
    weights, x, out = weights_of(24, 40, 4, torch.float32), torch.randn(5, 24), torch.randn(5, 40)
    weights.a[[0, 2]], weights.b[[0, 2]] = float("nan"), float("nan")
    slots = [-1, 1, 1, -1, 1]
    assert off(weights, x, slots, out) < 1e-5
    got = added(weights, x, slots, out)
    assert torch.equal(got[[0, 3]], out[[0, 3]])
    assert not torch.equal(got[1], out[1])


def test_no_rows_are_no_launch() -> None:
    weights = weights_of(16, 8, 2, torch.float32)
    assert added(weights, torch.empty(0, 16), [], torch.empty(0, 8)).shape == (0, 8)


def test_rows_are_sorted_by_slot_with_those_of_none_in_front_once_a_step() -> None:
    mapping = LoRAMapping(torch.tensor([0, 0, 2, -1, 2, 1]))
    rows, ends = mapping.sorted_rows(4)
    assert rows.tolist() == [3, 0, 1, 5, 2, 4]
    assert ends.tolist() == [1, 3, 4, 6, 6]  # of none, of slots 0 to 3
    assert mapping.sorted_rows(4)[0] is rows


@pytest.mark.usefixtures("fixed_order")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_do_not_depend_on_its_company(dtype: torch.dtype) -> None:
    weights, x, out = weights_of(1100, 40, 5, dtype), torch.randn(40, 1100).to(dtype), torch.randn(40, 40).to(dtype)
    together = added(weights, x, ALL, out)
    for row in (1, 38):
        assert ALL[row] >= 0
        assert torch.equal(added(weights, x[row, None], [ALL[row]], out[row, None])[0], together[row])
