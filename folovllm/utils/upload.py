"""A step's small arrays on their way to the device: all of them in one copy.

    host, pinned   | input_ids ....... | positions ....... | slots ....... | seq_lens ... | tables ...... |
                                                    │ one cudaMemcpyAsync
    device         | input_ids ....... | positions ....... | slots ....... | seq_lens ... | tables ...... |

A copy from ordinary memory makes the host wait until the driver has read it; from pinned memory it is queued like a
kernel, and the host goes on. Each copy costs a few microseconds whatever its size, so six arrays travel as one. The
pinned memory comes from torch's caching allocator, which reuses a buffer only when the copy out of it is over.

vLLM: v1/worker/gpu_input_batch.py, v1/utils.py (CpuGpuBuffer)
"""

from __future__ import annotations

import numpy as np
import torch

# Each array starts at a multiple of this, so that any dtype can be read in place.
ALIGNMENT = 16


def upload(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    """The arrays as tensors on `device`, same shapes and dtypes. On CUDA, does not wait for the copy.

    On a CPU nothing is copied: the tensors are the arrays' own memory.
    """
    if device.type == "cpu":
        return list(map(torch.from_numpy, arrays))
    offsets, size = layout(arrays)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    pack(arrays, offsets, host.numpy())
    # A copy out of other memory than pinned must be over before `host` is freed.
    return unpack(host.to(device, non_blocking=device.type == "cuda"), arrays, offsets)


def layout(arrays: tuple[np.ndarray, ...]) -> tuple[list[int], int]:
    """(where each array begins, how long the whole is), in bytes."""
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def pack(arrays: tuple[np.ndarray, ...], offsets: list[int], buffer: np.ndarray) -> None:
    """Write each array's bytes to its place in `buffer` (uint8)."""
    for array, offset in zip(arrays, offsets, strict=True):
        buffer[offset : offset + array.nbytes].view(array.dtype)[:] = array.reshape(-1)


def unpack(buffer: torch.Tensor, arrays: tuple[np.ndarray, ...], offsets: list[int]) -> list[torch.Tensor]:
    """Views of `buffer` (uint8) with the arrays' shapes and dtypes."""
    typed = {dtype: buffer.view(getattr(torch, dtype.name)) for dtype in {array.dtype for array in arrays}}
    tensors = []
    for array, offset in zip(arrays, offsets, strict=True):
        start = offset // array.itemsize
        flat = typed[array.dtype][start : start + array.size]
        tensors.append(flat if array.ndim == 1 else flat.view(array.shape))
    return tensors


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
