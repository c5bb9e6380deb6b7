"""Memory in huge pages; and memory of large results is handed out again when nothing holds it, and not before."""

from __future__ import annotations

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from folovllm.utils.recycled_memory import HUGE_PAGE, RecycledMemory, empty_in_huge_pages

ROW = HUGE_PAGE // 4  # float32 numbers in a huge page


def test_a_dropped_result_gives_its_memory_to_the_next():
    memory = RecycledMemory()
    first = memory.empty((2, ROW), torch.float32)
    place = first.data_ptr()
    del first
    assert memory.empty((4, ROW), torch.bfloat16).data_ptr() == place


def test_memory_is_not_handed_out_while_a_view_is_left():
    memory = RecycledMemory()
    first = memory.empty((2, ROW), torch.float32).fill_(1)
    row = first.view(-1)[ROW:].unflatten(0, (2, -1))
    del first
    gc.collect()
    memory.empty((2, ROW), torch.float32).fill_(2)
    assert row.unique().tolist() == [1]


def test_the_smallest_piece_that_fits_is_taken():
    memory = RecycledMemory()
    large, small = memory.empty((3, ROW), torch.float32), memory.empty((1, ROW), torch.float32)
    places = large.data_ptr(), small.data_ptr()
    del large, small
    first, second = memory.empty((1, ROW), torch.float32), memory.empty((1, ROW), torch.float32)
    assert (second.data_ptr(), first.data_ptr()) == places


def test_a_result_may_be_dropped_by_another_thread_while_a_piece_is_looked_for(monkeypatch):
    memory = RecycledMemory()
    held = [memory.empty((rows, ROW), torch.float32) for rows in (3, 2, 1)]
    late = [held.pop()]
    held.clear()
    length = torch.Tensor.__len__

    def drop_late(tensor: torch.Tensor) -> int:
        late.clear()
        return length(tensor)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch.Tensor, "__len__", drop_late)
        first = memory.empty((2, ROW), torch.float32)
    assert len(memory._free) == 2  # the one that is too large, and the late one
    assert first.data_ptr() not in memory._free


def test_threads_never_hold_the_same_memory():
    memory = RecycledMemory()

    def work(number: int) -> bool:
        return all(
            bool((memory.empty((1 + turn % 3, ROW), torch.float32).fill_(number) == number).all()) for turn in range(60)
        )

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_growing_results_leave_no_trail_of_small_pieces():
    memory = RecycledMemory()
    for rows in range(1, 9):
        memory.empty((rows, ROW), torch.float32)
    assert [len(piece) for piece in memory._free.values()] == [8 * HUGE_PAGE]


def test_shape_and_dtype_are_what_was_asked_for():
    memory = RecycledMemory()
    for shape, dtype in [((3, ROW), torch.bfloat16), ((0, 4), torch.float32), ((5, 2, 3), torch.float32)]:
        result = memory.empty(shape, dtype)
        assert (result.shape, result.dtype, result.is_contiguous()) == (torch.Size(shape), dtype, True)


@pytest.mark.parametrize("numbers", [10, 1_000_000])
def test_memory_in_huge_pages_is_a_tensor_like_any_other(numbers: int) -> None:
    made = empty_in_huge_pages((2, numbers), torch.float32)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((2, numbers), torch.float32, True)
    made.zero_()[1].fill_(3.0)
    view = made[1, -1:]
    del made  # the memory stays as long as somebody sees it
    assert view.item() == 3.0


def test_a_large_tensor_begins_with_a_huge_page() -> None:
    made = [empty_in_huge_pages((1_500_000,), torch.bfloat16) for _ in range(3)]
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("the system has no huge pages to ask for")
    assert [tensor.data_ptr() % HUGE_PAGE for tensor in made] == [0, 0, 0]


def test_a_system_that_refuses_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert empty_in_huge_pages((3, 1_000_000), torch.float32).shape == (3, 1_000_000)
