"""A run of guesses: what is drawn, what is gained, and that nothing is drawn behind the first difference."""

from __future__ import annotations

import random

import pytest

from folovllm.worker.verify import verify


class Draws:
    """The token that each place draws at each position."""

    def __init__(self, *runs: list[int | None]) -> None:
        self.runs, self.asked = runs, []

    def __call__(self, places: list[int], position: int) -> list[int | None]:
        self.asked.append((list(places), position))
        return [self.runs[place][position] for place in places]


@pytest.mark.parametrize(
    ("draft", "drawn", "gained"),
    [
        ([], [5], [5]),
        ([5, 6], [5, 6, 7], [5, 6, 7]),
        ([5, 6], [5, 9, 7], [5, 9]),
        ([5, 6], [8, 6, 7], [8]),
        ([5, 5], [5, 5, 5], [5, 5, 5]),
    ],
)
def test_one_sequence(draft, drawn, gained):
    draw = Draws(drawn)
    assert verify([draft], draw) == [gained]
    assert draw.asked == [([0], position) for position in range(len(gained))]


def test_each_goes_on_alone():
    draw = Draws([1, 2, 3], [1], [4, 5, 6])
    assert verify([[1, 2], [], [4, 7]], draw) == [[1, 2, 3], [1], [4, 5]]
    assert draw.asked == [([0, 1, 2], 0), ([0, 2], 1), ([0], 2)]


def test_nothing_to_draw_ends_a_run():
    assert verify([[1, 2], [3]], Draws([1, None], [None])) == [[1], []]
    assert verify([], Draws()) == []


class Speaker:
    """A sequence whose next token depends on all that it has said."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def __call__(self, places: list[int], position: int) -> list[int | None]:
        self.said.append(hash(tuple(self.said)) % 5)
        return [self.said[-1]]


def test_a_sequence_says_what_it_says_without_guesses():
    """Guesses of any kind only change how many tokens come at a time."""
    rng = random.Random(0)
    alone = Speaker()
    for _ in range(40):
        assert verify([[]], alone) == [[alone.said[-1]]]
    for _ in range(50):
        speaker, gained = Speaker(), []
        while len(gained) < 30:
            gained += verify([[rng.randrange(5) for _ in range(rng.randrange(4))]], speaker)[0]
        assert gained == speaker.said
        assert gained == alone.said[: len(gained)]
