import sys

import pytest
import torch

from folovllm.lora.mapping import group_rows
from lab_judge import expect, invariant


def grouped(*slots):
    return [each.tolist() for each in group_rows(torch.tensor(slots, dtype=torch.int64))]


def lines_run(slots):
    """Lines of the file that one call executes, each as often as it does."""
    lines = []

    def watch(frame, event, arg):
        is_here = frame.f_code.co_filename == group_rows.__code__.co_filename
        lines.extend([frame.f_lineno] * (is_here and event == "line"))
        return watch if is_here else None

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        group_rows(slots)
    finally:
        sys.settrace(before)
    return len(lines)


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
    slots = [(7 * row) % 3 for row in range(1200)]
    rows = [row for slot in range(3) for row in range(1200) if slots[row] == slot]
    expect(grouped(*slots)[2] == rows, True)


@invariant(2)
def test_there_may_be_many_slots():
    expect(grouped(300, 2, 300), [[2, 300], [1, 3], [1, 0, 2]])


@invariant(3)
def test_rows_without_an_adapter_are_left_out():
    expect(grouped(0, 0, 2, -1, 2, 1), [[0, 1, 2], [2, 3, 5], [0, 1, 5, 2, 4]])


@invariant(4)
def test_the_slots_stay_as_they_are():
    slots = torch.tensor([2, -1, 0])
    group_rows(slots)
    expect(slots.tolist(), [2, -1, 0])


@invariant(4)
def test_each_step_has_groups_of_its_own():
    first, second = group_rows(torch.tensor([1, 0])), group_rows(torch.tensor([2, 4]))
    expect([first.rows.tolist(), first.slots.tolist(), second.slots.tolist()], [[1, 0], [0, 1], [2, 4]])


@invariant(4)
@pytest.mark.parametrize("slots", [(), (-1, -1)])
def test_no_row_has_one(slots):
    expect(grouped(*slots), [[], [], []])


@invariant(4)
def test_all_are_int64():
    expect([str(each.dtype) for each in group_rows(torch.tensor([0, -1, 0]))], ["torch.int64"] * 3)


@invariant(4)
def test_no_line_is_run_once_for_each_row():
    lines = lines_run(torch.tensor([2, 0, -1] * 200))
    expect(lines > 200, False)
