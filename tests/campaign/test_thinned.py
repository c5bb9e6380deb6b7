"""A thinned grid keeps a cell for every two settings, and loses none of the others."""

from __future__ import annotations

import itertools

from tests.helpers import names, thinned


def test_any_two_values_meet_in_a_cell_that_stays() -> None:
    axes = [names("abcde"), {"off": False, "on": True}, names("xyz"), {"no": 0, "yes": 1}]
    cells = thinned(*axes)
    assert [cell.values for cell in cells] == list(itertools.product(*(axis.values() for axis in axes)))
    kept = [cell for cell in cells if not cell.marks]
    assert {mark.name for cell in cells for mark in cell.marks} == {"exhaustive"}
    for (i, one), (j, other) in itertools.combinations(enumerate(axes), 2):
        met = {(cell.values[i], cell.values[j]) for cell in kept}
        assert met == set(itertools.product(one.values(), other.values()))
    assert len(kept) <= 18, "15 is the least: each of a to e with each of x to z"
    assert cells[0].id == "a-off-x-no"
