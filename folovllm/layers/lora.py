"""What a linear layer adds for the rows that have an adapter: out[row] += B A x[row], behind its own product.

    W x [outs]                   whatever the format of W
      + B (A x)                  A [rank, in], B [outs, rank]: two thin products, of the rows of one adapter together

A stacked layer (q, k, v; gate, up) has one pair as well: the A's one above the other, the B's as a block diagonal.

         ┌ A_q ┐         ┌ B_q         ┐
    A =  │ A_k │    B =  │     B_k     │      ranks 8, 8 and none: A [16, in], and B has no column for v
         └     ┘         └             ┘

vLLM: lora/layers/base_linear.py, lora/ops/torch_ops/lora_ops.py
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from folovllm.lora.mapping import LoRAMapping


def stack_pairs(
    found: Mapping[str, tuple[torch.Tensor, torch.Tensor]], parts: Mapping[str, int], inputs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pair of a layer with these parts, by their outputs: A [ranks, inputs], B [outputs, ranks]; `found` has those
    of some parts."""
    pairs = [found.get(part, (torch.empty(0, inputs), torch.empty(outs, 0))) for part, outs in parts.items()]
    return torch.cat([a for a, _ in pairs]), torch.block_diag(*(b for _, b in pairs))


class LoRAWeights:
    """The pairs of one linear layer, [num_slots] of them, all as large as the largest: what is not used is zero.

    Args:
        rank: most that a pair has, over all parts of the layer.
    """

    def __init__(
        self, num_slots: int, rank: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.a = torch.zeros(num_slots, rank, inputs, dtype=dtype, device=device)
        self.b = torch.zeros(num_slots, outputs, rank, dtype=dtype, device=device)

    def put(self, slot: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """A pair of rank 0: the adapter leaves this layer alone."""
        self.a[slot].zero_()[: len(a)] = a
        self.b[slot].zero_()[:, : len(a)] = b

    def add(self, x: torch.Tensor, mapping: LoRAMapping, out: torch.Tensor) -> None:
        """x [num_rows, inputs] -> out [num_rows, outputs], in place."""
        for slot, rows in mapping.spans:
            out[rows] += F.linear(F.linear(x[rows], self.a[slot]), self.b[slot]).to(out.dtype)
