"""Several arrays travel to the device as one: every one of them arrives as it was, and lies where it may be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.utils.upload import ALIGNMENT, layout, pack, unpack, upload

DTYPES = [np.int64, np.int32, np.float32, np.uint8]
shapes = st.one_of(st.tuples(st.integers(0, 40)), st.tuples(st.integers(0, 9), st.integers(0, 9)))
many = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=8)


def make(wanted: list) -> tuple[np.ndarray, ...]:
    """Arrays of which no two have an entry in common, as far as their dtypes can tell."""
    arrays, count = [], 1
    for shape, dtype in wanted:
        size = int(np.prod(shape))
        arrays.append(np.arange(count, count + size).reshape(shape).astype(dtype))
        count += size
    return tuple(arrays)


@settings(max_examples=150)
@given(many)
def test_what_is_packed_is_unpacked(wanted: list) -> None:
    arrays = make(wanted)
    offsets, size = layout(arrays)
    buffer = torch.full((size,), 0xFF, dtype=torch.uint8)
    pack(arrays, offsets, buffer.numpy())
    tensors = unpack(buffer, arrays, offsets)
    assert len(tensors) == len(arrays)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert (tuple(tensor.shape), tensor.dtype) == (array.shape, torch.from_numpy(array).dtype)
        np.testing.assert_array_equal(tensor.numpy(), array)


@settings(max_examples=150)
@given(many)
def test_every_array_is_aligned_and_none_overlaps_the_next(wanted: list) -> None:
    arrays = make(wanted)
    offsets, size = layout(arrays)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for offset, array, end in zip(offsets, arrays, [*offsets[1:], size], strict=True):
        assert 0 <= end - (offset + array.nbytes) < ALIGNMENT  # no overlap, and no more than what alignment takes


def test_the_layout_by_hand() -> None:
    arrays = (np.zeros(3, np.int64), np.zeros(0, np.int32), np.zeros((2, 3), np.int32), np.zeros(1, np.int64))
    assert layout(arrays) == ([0, 32, 32, 64], 80)  # 24, 0, 24 and 8 bytes


def test_a_slice_that_lies_scattered_in_memory_arrives_in_order() -> None:
    table = np.arange(24, dtype=np.int32).reshape(4, 6)[:, ::2]
    offsets, size = layout((table,))
    buffer = torch.empty(size, dtype=torch.uint8)
    pack((table,), offsets, buffer.numpy())
    assert unpack(buffer, (table,), offsets)[0].tolist() == table.tolist()


def test_elsewhere_one_copy_brings_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which holds no data but says what would lie where."""
    copies, to = [], torch.Tensor.to

    def counting(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        copies.append((tensor.numel(), kwargs))
        return to(tensor, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(torch.Tensor, "to", counting)
    tensors = upload(torch.device("meta"), *make([((5,), np.int64), ((2, 3), np.int32)]))
    assert copies == [(48 + 32, {"non_blocking": False})]
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in tensors] == [((5,), torch.int64), ((2, 3), torch.int32)]
    assert [tensor.storage_offset() * tensor.element_size() for tensor in tensors] == [0, 48]


def test_on_a_cpu_nothing_is_copied() -> None:
    arrays = [np.arange(4), np.zeros((2, 3), np.int32)]
    tensors = upload(torch.device("cpu"), *arrays)
    assert [tensor.data_ptr() for tensor in tensors] == [array.ctypes.data for array in arrays]
    assert [tensor.dtype for tensor in tensors] == [torch.int64, torch.int32]
