"""Row counts that agree are found, whichever they are on this CPU; what has none is refused. Products with a known
fault stand for other CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import nn

from folovllm.attention import tiling
from folovllm.attention.tiling import Probe, Tiling, find_tiling
from folovllm.layers.linear import Linear
from folovllm.layers.linear_kernels import KERNELS, NativeKernel
from folovllm.layers.row_slabs import ROW_COUNTS, RowSlabs, agreeing_counts, zero_sum_probe
from folovllm.models.batch_invariant import InvariantMLP, calibrate, make_batch_invariant
from folovllm.models.decoder import MLP
from folovllm.models.registry import get_model_class
from tests.helpers import tiny_hf_config

WEIGHT, PROBES = zero_sum_probe(48, 65, torch.float32, torch.float32)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def forwards(x: torch.Tensor) -> torch.Tensor:
    """Summed from the first input to the last, whatever the number of rows."""
    return _summed(x, range(WEIGHT.shape[1]))


def backwards(x: torch.Tensor) -> torch.Tensor:
    return _summed(x, reversed(range(WEIGHT.shape[1])))


def _summed(x: torch.Tensor, order: Iterable[int]) -> torch.Tensor:
    total = torch.zeros(len(x), len(WEIGHT))
    for column in order:
        total += x[:, column, None] * WEIGHT[:, column]
    return total


def other_from(rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: forwards(x) if len(x) < rows else backwards(x)


def last_row_otherwise(x: torch.Tensor) -> torch.Tensor:
    """As a kernel of six rows at a time does with what is left over."""
    whole = len(x) // 6 * 6
    return torch.cat([forwards(x[:whole]), backwards(x[whole:])])


def test_the_probe_is_zero_and_its_sums_are_not() -> None:
    assert float((PROBES.double() @ WEIGHT.double().T).abs().max()) < 1e-12
    assert not torch.equal(forwards(PROBES), backwards(PROBES))


@pytest.mark.parametrize(
    ("product", "counts"),
    [
        (forwards, ROW_COUNTS),
        (other_from(2), ROW_COUNTS[1:]),  # oneDNN's, where the inputs are many
        (other_from(33), tuple(n for n in ROW_COUNTS if n < 33)),  # oneDNN's with AMX
        (other_from(7), ROW_COUNTS[6:]),  # padding one row to 7 costs less than reading the weight for each 6
        (last_row_otherwise, (6, 12, 24, 48, 96, 192)),
    ],
)
def test_the_cheapest_counts_that_agree(product, counts) -> None:
    assert agreeing_counts(product, PROBES) == counts


def test_a_weight_of_few_digits_hides_no_order() -> None:
    """64 products of two bfloat16 numbers may have an exact float32 sum, in any order."""
    weight, probes = zero_sum_probe(48, 64, torch.bfloat16, torch.float32)

    def product(x: torch.Tensor) -> torch.Tensor:
        order = range(64) if len(x) < 6 else reversed(range(64))
        return sum((x[:, k, None] * weight[:, k].float() for k in order), torch.zeros(len(x), 48))

    assert float((probes.double() @ weight.double().T).abs().max()) < 1e-12
    assert agreeing_counts(product, probes) == tuple(n for n in ROW_COUNTS if n >= 6)


def test_a_product_that_never_agrees_has_no_counts() -> None:
    def by_place(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(x))[:, None] == 1, forwards(x), backwards(x))

    assert agreeing_counts(by_place, PROBES, ROW_COUNTS[1:]) == ()


@pytest.mark.parametrize("product", [other_from(2), other_from(33), last_row_otherwise])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 33, 300])
def test_slabs_give_a_row_the_same_bits_among_any_number(product, num_rows: int) -> None:
    slabs = RowSlabs(agreeing_counts(product, PROBES))
    x = torch.randn(num_rows, WEIGHT.shape[1])
    together = slabs.run(product, x)
    for row in {0, 1 % num_rows, num_rows // 2, num_rows - 1}:
        assert torch.equal(slabs.run(product, x[[row]])[0], together[row])
    assert torch.allclose(together, x @ WEIGHT.T, atol=1e-4)


def test_a_plan_takes_every_row_once_in_slabs_that_agree() -> None:
    slabs = RowSlabs((2, 8, 32))
    assert slabs.plan(1) == [(1, 2)]
    assert slabs.plan(8) == [(8, 8)]
    assert slabs.plan(75) == [(32, 32), (32, 32), (11, 32)]
    assert slabs.run(forwards, torch.empty(0, WEIGHT.shape[1])).shape == (0, WEIGHT.shape[0])


def test_every_kernel_is_calibrated_as_it_is(three_threads: None) -> None:
    """In both dtypes, where it can run here: one row's bits are those of any number."""
    for dtype in (torch.float32, torch.bfloat16):
        weight, rows = zero_sum_probe(96, 64, dtype, dtype)
        for kernel in KERNELS:
            if kernel.unavailable_reason(weight) is not None:
                continue
            packed = kernel.pack(weight, None)
            slabs = RowSlabs(agreeing_counts(lambda x: kernel.apply(x, packed), rows))  # noqa: B023
            x = torch.randn(70, 64).to(dtype)
            alone = torch.cat([slabs.run(lambda x: kernel.apply(x, packed), row[None]) for row in x])  # noqa: B023
            assert torch.equal(slabs.run(lambda x: kernel.apply(x, packed), x), alone), kernel.name  # noqa: B023


class NewMLP(MLP):
    """Nobody knows what it computes."""


def test_a_class_that_is_not_known_is_refused_by_name() -> None:
    config = tiny_hf_config("qwen3", architectures=["Qwen3ForCausalLM"])
    model = get_model_class(config)(config, 64)
    model.model.layers[1].mlp.__class__ = NewMLP
    with pytest.raises(ValueError, match=r"^batch_invariant=True cannot be kept by NewMLP \(model.layers.1.mlp\): "):
        make_batch_invariant(model)


def test_a_product_without_slabs_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear(8, 4)
    nn.init.normal_(layer.weight)
    monkeypatch.setattr(Linear, "forward", lambda self, x: torch.randn(len(x), 4))
    with pytest.raises(
        ValueError, match=r"^batch_invariant=True cannot be kept by the product of qkv \(Linear, float32, 4, 8\): "
    ):
        calibrate(layer, "qkv")


def test_silu_does_not_depend_on_where_threads_share_it(three_threads: None) -> None:
    """In a size whose rows are cut when three threads share 50 of them."""
    mlp = InvariantMLP.__new__(InvariantMLP)
    nn.Module.__init__(mlp)
    mlp.gate_up_proj = mlp.down_proj = nn.Identity()
    x = torch.randn(50, 2 * 1001)
    alone = torch.cat([mlp(row[None]) for row in x])
    assert torch.equal(mlp(x), alone)
    gate, up = x.double().chunk(2, dim=-1)
    assert torch.allclose(alone.double(), torch.nn.functional.silu(gate) * up, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 2, 16), (1, 4, 32), (3, 1, 24)])
def test_a_tiling_is_found_and_holds(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    found = find_tiling(*shape, dtype)
    assert found.num_rows >= shape[1]
    probe = Probe(found.tile, *shape, dtype)
    assert all(probe.agrees(found, num_keys) for num_keys in probe.lengths)


def test_a_decode_of_one_query_is_told_from_a_tile() -> None:
    """The products of one query are others; were none found to differ, the probe would see nothing."""
    probe = Probe(32, 1, 1, 64, torch.float32)
    assert not all(probe.agrees(Tiling(32, 1), num_keys) for num_keys in probe.lengths)


def test_attention_without_a_tiling_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling.Probe, "agrees", lambda *_: False)
    with pytest.raises(
        ValueError, match="^batch_invariant=True cannot be kept by torch's attention with 5 KV heads of 8"
    ):
        find_tiling(5, 1, 8, torch.float32)
    tiling._find_tiling.cache_clear()


def test_the_native_kernel_is_one_of_them() -> None:
    """What is left when no other can take a weight has slabs as well."""
    assert any(isinstance(kernel, NativeKernel) for kernel in KERNELS)
