import pytest
import torch

from folovllm.lora.mapping import group_rows
from lab_judge import expect, invariant


def grouped(*slots):
    return [each.tolist() for each in group_rows(torch.tensor(slots, dtype=torch.int64))]


@invariant(1)
def test_one_group():
    expect(grouped(1, 1), [[1], [2], [0, 1]])


@invariant(1)
def test_groups_lie_side_by_side():
    expect(grouped(2, 0, 2, 0, 0), [[0, 2], [3, 5], [1, 3, 4, 0, 2]])


@invariant(1)
def test_slots_that_do_not_occur_have_no_group():
    expect(grouped(5, 1), [[1, 5], [1, 2], [1, 0]])


@invariant(2)
def test_the_rows_of_a_large_group_rise():
    slots = [(7 * row) % 3 for row in range(90)]
    expect(grouped(*slots)[2], [row for slot in range(3) for row in range(90) if slots[row] == slot])


@invariant(3)
def test_rows_without_an_adapter_are_left_out():
    expect(grouped(0, 0, 2, -1, 2, 1), [[0, 1, 2], [2, 3, 5], [0, 1, 5, 2, 4]])


@invariant(4)
@pytest.mark.parametrize("slots", [(), (-1, -1)])
def test_no_row_has_one(slots):
    expect(grouped(*slots), [[], [], []])


@invariant(4)
def test_all_are_int64():
    expect([str(each.dtype) for each in group_rows(torch.tensor([0, -1, 0]))], ["torch.int64"] * 3)
