"""A thinned grid keeps each value of each axis, and loses none of the other cells."""

from __future__ import annotations

import itertools

from tests.helpers import names, thinned


def test_each_value_is_in_a_cell_that_stays() -> None:
    axes = [names("abcde"), {"off": False, "on": True}, names("xyz"), {"no": 0, "yes": 1}]
    cells = thinned(*axes)
    assert [cell.values for cell in cells] == list(itertools.product(*(axis.values() for axis in axes)))
    kept = [cell for cell in cells if not cell.marks]
    assert {mark.name for cell in cells for mark in cell.marks} == {"exhaustive"}
    for index, axis in enumerate(axes):
        assert {cell.values[index] for cell in kept} == set(axis.values())
    assert len(kept) == 5, "the longest axis has as many"
    assert cells[0].id == "a-off-x-no"
