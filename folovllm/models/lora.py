"""The adapters of a decoder: which of its matrices may have one, and what of a pair a rank needs.

    columns cut (q, k, v, gate, up)    A whole, B's rows cut         each rank adds to the outputs that it has
    rows cut (o, down)                 A's columns cut, B whole      B (A₁ x₁) + B (A₂ x₂): the sum that is there anyway

So ranks send no message more.

vLLM: lora/model_manager.py, lora/layers/column_parallel_linear.py, lora/layers/row_parallel_linear.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from folovllm.layers.linear import Linear
from folovllm.layers.lora import LoRAWeights, stack_pairs
from folovllm.layers.parallel import ROWS
from folovllm.lora.request import Pair
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.models.shard import Shard, cut_tensor


def lora_modules(spec: DecoderSpec) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the matrices that an adapter may change, by their names in the checkpoint."""
    hidden, middle = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    attention = {"q_proj": (hidden, q), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (q, hidden)}
    mlp = {"gate_proj": (hidden, middle), "up_proj": (hidden, middle), "down_proj": (middle, hidden)}
    with_experts = () if spec.experts is None else spec.experts.layers
    return {
        f"model.layers.{number}.{block}.{name}": sizes
        for number in range(spec.num_layers)
        for block, its in (("self_attn", attention), ("mlp", {} if number in with_experts else mlp))
        for name, sizes in its.items()
    }


class LoRALayers:
    """The layers of a model, each with room for `num_slots` pairs. shard: the rank's part; None: it has all."""

    def __init__(
        self, model: DecoderForCausalLM, make: Callable[..., LoRAWeights], num_slots: int, max_rank: int,
        dtype: torch.dtype, device: torch.device, shard: Shard | None = None,
    ) -> None:  # fmt: skip
        self.modules = lora_modules(model.decoder_spec if shard is None else shard.whole)
        self.shard, self.device = shard, device
        self.layers: list[tuple[str, dict[str, int], Linear]] = []
        for path, layer in model.named_modules():
            if isinstance(layer, Linear):
                parent, _, name = path.rpartition(".")
                parts = {name: layer.out_features} if "" in layer.parts else layer.parts
                if f"{parent}.{next(iter(parts))}" in self.modules:
                    rank = max_rank * len(parts)
                    layer.lora = make(num_slots, rank, layer.in_features, layer.out_features, dtype, device)
                    self.layers.append((parent, parts, layer))

    @torch.inference_mode()
    def put(self, slot: int, pairs: Mapping[str, Pair]) -> None:
        for parent, parts, layer in self.layers:
            names = {part: f"{parent}.{part}" for part in parts}
            found = {part: self._part_of(name, pairs[name]) for part, name in names.items() if name in pairs}
            assert layer.lora is not None  # for the type checker
            layer.lora.put(slot, *stack_pairs(found, parts, layer.in_features))

    def _part_of(self, name: str, pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank multiplies by, the scale inside B."""
        a, b = pair.a.float(), pair.b.float() * pair.scale
        if self.shard is None:
            return a, b
        cut = self.shard
        if name.rpartition(".")[2] in ROWS:
            return a[cut_tensor(f"{name}.weight", tuple(a.shape), cut)], b
        return a, b[cut_tensor(f"{name}.weight", tuple(b.shape), cut)]
