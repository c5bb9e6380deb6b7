"""A decode step's inputs in one piece, so that they come to where a CUDA graph reads them by one copy.

    int64   | input_ids ......................... |
            | positions ......................... |
            | slot_mapping ...................... |
    int32   | seq_lens ....... | decode_order ... |

vLLM: none (it has a buffer and a copy for each)
"""

from __future__ import annotations

import numpy as np
import torch


def longest_first(seq_lens: np.ndarray, padding: int) -> np.ndarray:
    """[len(seq_lens) + padding] int32: their numbers, and behind them those of added sequences of one token."""
    order = np.argsort(-seq_lens, kind="stable")
    return np.concatenate([order, np.arange(len(order), len(order) + padding)]).astype(np.int32)


def pack_inputs(
    size: int, token_ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, seq_lens: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """[4, size] int64 of `len(seq_lens)` sequences with a token each; the rest is padding, which reads and writes slot
    0 as a sequence of one token. order: longest_first() of them all."""
    packed, count = np.zeros((4, size), np.int64), len(seq_lens)
    packed[0, :count], packed[1, :count], packed[2, :count] = token_ids, positions, slots
    lens, decode_order = packed[3].view(np.int32).reshape(2, size)
    lens[:count], lens[count:], decode_order[:] = seq_lens, 1, order
    return packed


def unpack_inputs(
    packed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of [4, size] int64: input_ids, positions, slot_mapping, seq_lens and decode_order, [size] each, the last
    two in int32."""
    input_ids, positions, slots, lens_and_order = packed.unbind(0)
    lens, order = lens_and_order.view(torch.int32).view(2, -1)
    return input_ids, positions, slots, lens, order
