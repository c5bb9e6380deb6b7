"""A busy neighbour beside the engine: which rounds count, and that the neighbour runs only when it is let."""

from __future__ import annotations

import psutil
import pytest

from workshop.neighbour_bench import Neighbour, Pair, parse, summary


def test_a_round_beside_other_programs_does_not_count() -> None:
    pairs = [Pair(1.0, 1.5, 0.0), Pair(2.0, 2.5, 0.1), Pair(3.0, 30.0, 0.9)]
    assert summary(pairs, most_others=0.2) == (1.5, 1.375, 2)


def test_without_a_round_that_counts_there_is_no_figure() -> None:
    assert summary([Pair(1.0, 1.0, 0.9)], most_others=0.2) is None


def test_the_neighbour_stands_still_unless_it_is_let() -> None:
    neighbour = Neighbour()
    process = psutil.Process(neighbour.process.pid)
    try:
        with neighbour.let():
            assert process.status() != psutil.STATUS_STOPPED
        while process.status() != psutil.STATUS_STOPPED:  # a signal takes a moment
            pass
    finally:
        neighbour.end()
    assert neighbour.process.returncode is not None


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--layers", "0"], ["--requests", "8", "0"]])
def test_nothing_to_measure_is_refused_by_name(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
    assert f"{wrong[0]} must be at least 1, got 0" in capsys.readouterr().err
