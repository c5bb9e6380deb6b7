"""A rank's part of a decoder, and of a checkpoint's tensors.

    4 query heads, 2 KV heads, 2 ranks     rank 0   q 0 1 · kv 0      rank 1   q 2 3 · kv 1
    4 query heads, 2 KV heads, 4 ranks     rank 0   q 0   · kv 0      rank 1   q 1   · kv 0      rank 2   q 2   · kv 1 …

Where there are fewer KV heads than ranks, several ranks compute and keep the same ones.

vLLM: model_executor/layers/linear.py (weight_loader of each class)
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from folovllm.distributed.parallel_state import GroupCoordinator, part
from folovllm.layers.linear import LinearMethod
from folovllm.layers.moe import block_of
from folovllm.layers.ops import LayerOps
from folovllm.layers.parallel import ROWS, ParallelLMHead, RowParallelMethod, VocabParallelEmbedding
from folovllm.models.decoder import DecoderSpec
from folovllm.utils.checks import wrong

TURNED = ("qweight", "qzeros", "scales")  # of GPTQ and AWQ: the first dimension is a layer's inputs


@dataclass(frozen=True)
class Shard:
    """Which heads, columns of the MLP and tokens a rank has of the `whole` decoder."""

    rank: int
    whole: DecoderSpec
    heads: range
    kv_heads: range
    columns: range
    tokens: range
    of_experts: dict[str, range]
    """Columns of the MLPs in layers with experts, by ExpertsSpec.sizes."""

    @property
    def spec(self) -> DecoderSpec:
        """That of the decoder which this rank builds."""
        heads, kv_heads, experts = len(self.heads), len(self.kv_heads), self.whole.experts
        if experts is not None:
            mine = {block: len(columns) for block, columns in self.of_experts.items()}
            experts = replace(experts, size=mine["experts"], shared_size=mine.get("shared_expert", 0))
        size = len(self.columns)
        return replace(self.whole, intermediate_size=size, num_heads=heads, num_kv_heads=kv_heads, experts=experts)

    def cut(self, layer: str, block: str = "mlp") -> tuple[range, int]:
        """Of a layer's outputs, or its inputs if it is one of ROWS: this rank's, and how many there are."""
        whole = self.whole
        if layer in ("gate_proj", "up_proj", "down_proj"):
            if block != "mlp" and whole.experts is not None:
                return self.of_experts[block], whole.experts.sizes[block]
            return self.columns, whole.intermediate_size
        if layer in ("embed_tokens", "lm_head"):
            return self.tokens, whole.vocab_size
        of_kv, size = layer in ("k_proj", "v_proj"), whole.head_size
        heads, count = (self.kv_heads, whole.num_kv_heads) if of_kv else (self.heads, whole.num_heads)
        return range(heads.start * size, heads.stop * size), count * size


def kv_heads_of(count: int, rank: int, world_size: int) -> range:
    """A rank's KV heads of `count`, which divides the number of ranks or is a multiple of it."""
    return range(rank * count // world_size, -(-(rank + 1) * count // world_size))


def shard_of(spec: DecoderSpec, linear: LinearMethod, rank: int, world_size: int) -> Shard:
    """linear: what makes the whole model's products, which says where a weight may be cut. Raises ValueError: the model
    cannot be cut into so many parts, by tensor_parallel_size."""
    heads, kv_heads, columns, must = spec.num_heads, spec.num_kv_heads, spec.intermediate_size, None
    sizes, units = {} if spec.experts is None else spec.experts.sizes, {}

    def together(layer: str, of: int) -> int:
        names = [f"model.layers.{number}.{layer}".rsplit(".", 1) for number in range(spec.num_layers)]
        return math.lcm(*(linear.for_layer(parent, [name]).columns_together(of) for parent, name in names))

    unit, of_heads = together("mlp.down_proj", columns), together("self_attn.o_proj", heads * spec.head_size)
    if heads % world_size:
        must = f"divide the model's {heads} attention heads"
    elif kv_heads % world_size and world_size % kv_heads:
        must = f"divide the model's {kv_heads} KV heads, or be a multiple of them"
    elif (most := min(-(-columns // unit), spec.vocab_size)) < world_size:
        must = f"be at most {most}: the MLP is cut at multiples of {unit} columns"
    elif heads // world_size * spec.head_size % of_heads:
        must = f"leave each rank whole groups of {of_heads} quantised columns, not {heads // world_size} heads"
    for block, size in sizes.items():
        inside = ".0" if block == "experts" else ""
        units[block] = together(f"mlp.{block}{inside}.down_proj", size)
        if (most := -(-size // units[block])) < world_size:
            must = f"be at most {most}: {block} are cut at multiples of {units[block]} columns"
    if must is not None:
        raise wrong("tensor_parallel_size", must, world_size)
    return Shard(
        rank, spec, heads=part(heads, rank, world_size), kv_heads=kv_heads_of(kv_heads, rank, world_size),
        columns=part(spec.intermediate_size, rank, world_size, unit), tokens=part(spec.vocab_size, rank, world_size),
        of_experts={block: part(size, rank, world_size, units[block]) for block, size in sizes.items()},
    )  # fmt: skip


def parallel_ops(ops: LayerOps, shard: Shard, group: GroupCoordinator) -> LayerOps:
    """`ops` for a rank's part of a model: the same, with the sums that join the parts."""
    ours, spec = copy(ops), shard.whole
    columns = dict(zip(ROWS, (spec.num_heads * spec.head_size, spec.intermediate_size), strict=True))
    columns |= {} if spec.experts is None else spec.experts.sizes
    ours.linear = RowParallelMethod(ops.linear, group, columns)
    ours.embedding = lambda vocab, hidden: VocabParallelEmbedding(vocab, hidden, group)
    ours.lm_head = lambda hidden, vocab, method: ParallelLMHead(hidden, vocab, method, group)
    ours.group = group
    return ours


def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    """Of a dimension of `size` numbers the share that `mine` is of a layer's `count` outputs or inputs: a number may
    hold several of them packed, or be for a group. Raises ValueError, with the name `tensor`: the cut goes through
    such a number."""
    if mine.start * size % count or mine.stop * size % count:
        raise ValueError(f"{tensor} cannot be cut at {mine.start} and {mine.stop} of {count}")
    return slice(mine.start * size // count, mine.stop * size // count)


def cut_tensor(name: str, shape: tuple[int, ...], shard: Shard) -> tuple[slice, ...] | None:
    """A rank's part of a checkpoint's tensor: a slice of each dimension. None: it reads nothing of it.

    Raises:
        ValueError: as share_of().
    """
    for ours, theirs in shard.whole.names:
        name = name.replace(theirs, ours)
    layer, kind = name.split(".")[-2:]
    everything, by_inputs = tuple(slice(0, size) for size in shape), layer in ROWS
    if by_inputs and kind == "bias":
        return None if shard.rank else everything
    if layer.endswith(("norm", "gate")) or kind in ("weight_shape", "inv_freq") or (kind == "g_idx" and not by_inputs):
        return everything
    mine, count = shard.cut(layer, block_of(name))
    dim = 0 if len(shape) == 1 else int(by_inputs != (kind in TURNED))
    size = shape[dim]
    if size == 1 and by_inputs:  # one group for a whole row
        return everything
    cut = share_of(f"{name} {shape}", size, mine, count)
    return (*everything[:dim], cut, *everything[dim + 1 :])


def read_part(tensor: Any, name: str, shard: Shard) -> torch.Tensor | None:
    """A rank's part of a tensor that safetensors has opened, and no more of it is read. None: it has none."""
    shape = tuple(tensor.get_shape())
    if (cut := cut_tensor(name, shape, shard)) is None:
        return None
    part: torch.Tensor = tensor[cut]
    if name.endswith(".g_idx"):  # groups are counted from the rank's first one
        return part - part[:1]
    if name.endswith(".weight_shape"):
        mine, (outs, size) = len(shard.cut(name.split(".")[-2])[0]), part.tolist()
        return torch.tensor([outs, mine] if name.split(".")[-2] in ROWS else [mine, size])
    return part
