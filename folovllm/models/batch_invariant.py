"""A model whose rows are bit for bit the same in any company: what LLM(batch_invariant=True) rests on below attention.

    products        our own compiled kernel as it is; others in slabs of row counts that agree on this machine
                    (layers/row_slabs.py)
    SwiGLU          our own compiled kernel as it is; else with exp, because F.silu computes the last numbers of each
                    thread's share in another way
    norms, RoPE     as they are: each row is reduced by itself

F.silu's numbers are shared among threads without regard to rows. A share is computed 32 numbers at a time, and what is
left at its end by another formula, with another last bit. Where a share ends depends on how many rows there are.

make_batch_invariant() comes last, when the modules have the classes that are fastest here. A class that it does not
know is refused by name.

vLLM: model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

import time

import torch
from torch import nn

from folovllm.attention.layer import Attention
from folovllm.layers.embedding import Embedding, LMHead
from folovllm.layers.linear import Linear
from folovllm.layers.linear_kernels import MAX_UNSLICED_ROWS, CompiledKernel, PackedLinear, PackedLMHead
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.layers.row_slabs import NUM_PROBES, ROW_COUNTS, Product, RowSlabs, agreeing_counts, zero_sum_probe
from folovllm.models.compiled_decoder import CompiledDecoder
from folovllm.models.decoder import MLP, Decoder, DecoderForCausalLM, DecoderLayer, SelfAttention
from folovllm.models.fused_compiled import CompiledMLP, CompiledRMSNorm, CompiledSelfAttention
from folovllm.models.fused_cpu import LeanMLP, LeanQKNorm, LeanRMSNorm, LeanSelfAttention, SmallLinear
from folovllm.models.packing import WideEmbedding
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

# A head as wide as a vocabulary is tried with fewer counts, for each of them takes a while. It sees a row per sequence.
HEAD_COUNTS = (1, 2, 4, 8, 16, 32, 64)


class InSlabs(Linear):
    """A linear layer that multiplies in slabs; mixed into the class that says how."""

    slabs: RowSlabs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.slabs.run(super().forward, x)


class SlabLinear(InSlabs, Linear):
    pass


class SlabLMHead(InSlabs, LMHead):
    pass


class SlabPackedLinear(InSlabs, PackedLinear):
    pass


class SlabPackedLMHead(InSlabs, PackedLMHead):
    pass


class SlabSmallLinear(InSlabs, SmallLinear):
    pass


class InvariantMLP(MLP):
    """silu(gate) is gate / (1 + exp(-gate)): exp and the division know no other formula at the end of a share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        wide = gate.float()
        silu = wide / wide.neg().exp_().add_(1.0)
        return self.down_proj(silu.mul_(up).to(x.dtype))


IN_SLABS: dict[type[Linear], type[InSlabs]] = {
    Linear: SlabLinear,
    LMHead: SlabLMHead,
    PackedLinear: SlabPackedLinear,
    PackedLMHead: SlabPackedLMHead,
    SmallLinear: SlabSmallLinear,
}
MLPS = (MLP, LeanMLP)
# Each row of their results is computed from its own row alone, in an order that is the same in any company.
ROW_BY_ROW: tuple[type[nn.Module], ...] = (
    Embedding, WideEmbedding, RMSNorm, QKNorm, LeanRMSNorm, LeanQKNorm, RotaryEmbedding, Attention, SelfAttention,
    LeanSelfAttention, CompiledRMSNorm, CompiledSelfAttention, CompiledMLP, DecoderLayer, Decoder,
    CompiledDecoder, nn.ModuleList,
)  # fmt: skip


def make_batch_invariant(model: DecoderForCausalLM) -> None:
    """Swap the classes of a model's modules for those above, and find out in which slabs each product keeps its bits.

    What is found holds for the number of threads that torch has now.

    Raises:
        ValueError: a module is of a class that is not known to keep its rows' bits, or no slab does; by name.
    """
    start, found = time.perf_counter(), dict[tuple[object, ...], RowSlabs]()
    for name, module in model.named_modules():
        if type(module) in MLPS:
            module.__class__ = InvariantMLP
        elif isinstance(module, PackedLinear) and isinstance(module.kernel, CompiledKernel):
            continue  # each number is one chain of sums, in one order, whatever the rows (csrc/linear.cpp)
        elif isinstance(module, Linear) and type(module) in IN_SLABS:
            key = _kind(module)
            if key not in found:
                found[key] = calibrate(module, name)
            module.__class__ = IN_SLABS[type(module)]
            module.slabs = found[key]  # type: ignore[assignment]
        elif type(module) not in ROW_BY_ROW and module is not model:
            raise ValueError(
                f"batch_invariant=True cannot be kept by {type(module).__name__} ({name}): its rows may depend on one "
                f"another; leave batch_invariant out"
            )
    seconds = time.perf_counter() - start
    logger.info("batch invariance: slabs for %d kinds of products found in %.1f s", len(found), seconds)


def calibrate(layer: Linear, name: str = "layer") -> RowSlabs:
    """The slabs in which a layer of this kind keeps each row's bits.

    Raises:
        ValueError: none do.
    """
    with torch.inference_mode():
        product, probes, counts = _probe(layer)
        agreed = agreeing_counts(product, probes, counts)
    if not agreed:
        what = ", ".join(map(str, _kind(layer)[:4]))
        raise ValueError(
            f"batch_invariant=True cannot be kept by the product of {name} ({what}): at no number of rows does "
            f"a row have the same bits at every place; leave batch_invariant out, or give another dtype"
        )
    return RowSlabs(agreed)


def _probe(layer: Linear) -> tuple[Product, torch.Tensor, tuple[int, ...]]:
    """A product as the layer's own, its rows, and the counts to try. The kernel is chosen by shape, so another weight
    of the same shape tells of this one, and one whose products are zero tells more. A head is large: it is not made a
    second time, and has so many numbers that random rows will do."""
    dtype = layer.weight.dtype
    if layer.out_features > MAX_UNSLICED_ROWS:
        rows = torch.randn(NUM_PROBES, layer.in_features, generator=torch.Generator().manual_seed(0))
        return layer.forward, rows.to(_input_dtype(layer)), HEAD_COUNTS
    weight, rows = zero_sum_probe(layer.out_features, layer.in_features, dtype, _input_dtype(layer))
    bias = None if layer.bias is None else torch.zeros(layer.out_features, dtype=dtype)
    if isinstance(layer, PackedLinear):
        kernel, packed = layer.kernel, layer.kernel.pack(weight, bias)
        return lambda x: kernel.apply(x, packed), rows, ROW_COUNTS
    twin = Linear(layer.in_features, layer.out_features)
    twin.weight.data = weight
    twin.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    if isinstance(layer, SmallLinear):
        twin.__class__ = SmallLinear
        assert isinstance(twin, SmallLinear)  # for the type checker
        twin.prepare()
    return twin.forward, rows, ROW_COUNTS


def _input_dtype(layer: Linear) -> torch.dtype:
    """What flows into the layer: float32, where the products around it widen."""
    widens = isinstance(layer, SmallLinear) or (isinstance(layer, PackedLinear) and layer.kernel.name == "fbgemm")
    return torch.float32 if widens else layer.weight.dtype


def _kind(layer: Linear) -> tuple[object, ...]:
    """Layers of one kind are computed by the same kernels."""
    kernel = layer.kernel.name if isinstance(layer, PackedLinear) else type(layer).__name__
    dtype = str(layer.weight.dtype).removeprefix("torch.")
    return kernel, dtype, layer.out_features, layer.in_features, layer.bias is not None
