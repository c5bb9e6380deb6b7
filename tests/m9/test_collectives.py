"""Sums and gathers of ranks: the bits of one process that adds the same parts in the order of the ranks, by whatever
the ranks are joined; and what becomes of them when one has gone.
"""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from folovllm.distributed.collectives import SLOT_BYTES, _Group
from folovllm.distributed.parallel_state import part
from folovllm.errors import EngineDeadError
from folovllm.utils import cpu_kernels
from tests.m9.support import KINDS, MEMORY, group_of, together


def in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for each in parts[1:]:
        total = total + each.float()
    return total.to(parts[0].dtype)


@pytest.mark.parametrize(
    ("total", "size", "unit", "expected"),
    [
        (10, 4, 1, [range(2), range(2, 5), range(5, 7), range(7, 10)]),
        (257, 2, 1, [range(128), range(128, 257)]),
        (96, 2, 32, [range(32), range(32, 96)]),
        (100, 2, 8, [range(48), range(48, 100)]),  # the last unit is not whole
    ],
)
def test_parts_follow_each_other_and_end_at_whole_units(total, size, unit, expected) -> None:
    assert [part(total, rank, size, unit) for rank in range(size)] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sum_has_the_bits_of_one_process_that_adds_in_order(kind: str, dtype: torch.dtype) -> None:
    """Of one number, of some that fill no register, and of more than a slot holds, one after the other."""
    size, counts = 3, (1, 1003, SLOT_BYTES // 4 + 5)
    parts = [[torch.randn(count).mul(1e3).to(dtype) for _ in range(size)] for count in counts]
    expected = [in_order(each) for each in parts]
    groups = group_of(kind, size)

    def work(rank: int) -> None:
        for each in parts:
            groups[rank].all_reduce(each[rank])

    together([lambda rank=rank: work(rank) for rank in range(size)])
    for want, got in zip(expected, parts, strict=True):
        for each in got:
            assert torch.equal(each, want)
    assert [group.collectives.counts()[0] for group in groups] == [3] * size


@pytest.mark.parametrize("kind", KINDS)
def test_rank_0_gets_all_columns_and_the_others_no_rows(kind: str) -> None:
    widths, rows = [3, 5, 4], SLOT_BYTES // 16  # more than a slot
    whole = torch.arange(rows * 12.0).view(rows, 12)
    groups = group_of(kind, 3)
    parts = whole.split(widths, 1)
    got = together([lambda rank=rank: groups[rank].gather(parts[rank], widths) for rank in range(3)])
    assert torch.equal(got[0], whole)
    assert [each.shape for each in got[1:]] == [(0, 12)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_has_gone_ends_the_sum_of_the_others(kind: str) -> None:
    groups = group_of(kind, 2)
    if kind == "gloo":
        groups[1].collectives.group.abort()  # as the end of its process does
    groups[1].close()
    with pytest.raises(EngineDeadError, match="^rank 1 has gone; start the engine anew$"):
        groups[0].lead([0], None, lambda: groups[0].all_reduce(torch.ones(4)))
    with pytest.raises(EngineDeadError, match="^rank 1 has gone"):  # and it stays so
        groups[0].lead([0], None, lambda: None)


@MEMORY
def test_a_rank_that_does_not_come_is_given_up() -> None:
    groups = group_of("memory", 2, timeout=1)
    with pytest.raises(EngineDeadError, match="^rank 1 does not answer: nothing came for 1 s"):
        groups[0].lead([0], None, lambda: groups[0].all_reduce(torch.ones(4)))


@MEMORY  # gloo would have to meet within that second
def test_a_rank_that_does_not_read_is_given_up() -> None:
    """It hangs, and a step is more than its socket holds. What was heard of it before had another limit."""
    groups = group_of("memory", 2, timeout=1)
    groups[1].links[0].send([7])
    assert groups[0].fewest([9]) == [7]
    with pytest.raises(EngineDeadError, match=r"^rank 1 does not answer: .* start the engine anew$"):
        groups[0].lead([0], torch.zeros(1 << 20), lambda: pytest.fail("the step was computed"))


def test_what_fails_in_the_middle_of_a_step_ends_the_group() -> None:
    groups = group_of("gloo", 2)

    def work() -> None:
        raise MemoryError

    with pytest.raises(EngineDeadError, match="^a step failed in its middle") as raised:
        groups[0].lead([0], None, work)
    assert isinstance(raised.value.__cause__, MemoryError)
    assert groups[1].links[0].is_closed()


def test_the_group_that_is_handed_over_has_the_fields_of_the_header() -> None:
    """In the same order, each of 64 bits."""
    header = (cpu_kernels.SOURCES / "kernels.h").read_text()
    body = re.sub(r" *//.*", "", re.search(r"struct Group \{\n(.*?)\n\};", header, re.DOTALL)[1])
    names = [name for line in re.findall(r"(?:int64_t|char|int32_t) ([^;]+);", body) for name in line.split(",")]
    assert [name.strip(" *") for name in names] == [name for name, _ in _Group._fields_]
    assert {ctypes.sizeof(kind) for _, kind in _Group._fields_} == {8}
