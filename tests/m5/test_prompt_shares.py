"""A short prompt behind a long one draws within two steps, and the long one loses no token that it could have had."""

from __future__ import annotations

from typing import Any

import pytest

from tests.m5.support import ChunkDesk

BUDGET, LONG, SHORT = 256, 1400, 30


def make_desk(threshold: int | None = None, **kwargs: Any) -> ChunkDesk:
    options: dict[str, Any] = {"budget": BUDGET, "max_num_seqs": 16, "max_model_len": 1600, **kwargs}
    return ChunkDesk(200, 16, threshold=threshold, **options)


def steps_until_first_token(desk: ChunkDesk, names: list[str]) -> dict[str, int]:
    """How many steps from now on each request's first token takes."""
    came: dict[str, int] = {}
    for step in range(1, 50):
        desk.step()
        for name in names:
            if name not in came and any(seq.get_output_len() for seq in desk.requests[name].get_seqs()):
                came[name] = step
        if len(came) == len(names):
            return came
    raise AssertionError(f"only {came}")


@pytest.mark.parametrize("decodes", [0, 8])
@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_a_short_prompt_draws_within_two_steps(decodes: int, steps_before: int) -> None:
    desk = make_desk()
    for i in range(decodes):
        desk.add(f"d{i}", 3, max_tokens=40)
    desk.step()
    desk.add("long", LONG, max_tokens=2)
    for _ in range(steps_before):
        desk.step()
    shorts = [f"s{i}" for i in range(6)]
    for name in shorts:
        desk.add(name, SHORT, max_tokens=2)
    came = steps_until_first_token(desk, shorts)
    assert max(came.values()) <= 2


def test_without_shares_it_waits_for_all_of_the_long_one() -> None:
    """What vLLM's default does, and what threshold 0 asks for."""
    desk = make_desk(threshold=0)
    desk.add("long", LONG, max_tokens=2)
    desk.add("short", SHORT, max_tokens=2)
    assert steps_until_first_token(desk, ["short"]) == {"short": 6}


@pytest.mark.parametrize("late", [0, 1, 4])
def test_it_takes_no_step_more(late: int) -> None:
    """Every step is as full as it can be, so all of it takes as many steps with shares as without."""
    steps = {}
    for threshold in (0, None):
        desk = make_desk(threshold)
        desk.add("long", LONG, max_tokens=1)
        sizes = [sum(desk.step().values()) for _ in range(late)]
        for i in range(9):
            desk.add(f"s{i}", 33, max_tokens=1)
        sizes += [sum(step.values()) for step in desk.run()]
        assert sum(sizes) == LONG + 9 * 33
        assert set(sizes[:-1]) <= {BUDGET}
        steps[threshold] = len(sizes)
    assert steps[0] == steps[None] == 7


def test_the_drawing_in_the_module() -> None:
    desk = make_desk(max_num_seqs=5)
    desk.add("a", 1056, max_tokens=1)
    assert desk.step() == {"a": 256}  # nobody else is there: all of it
    for name in "bcdef":
        desk.add(name, 32, max_tokens=1)
    assert desk.step() == {"a": 128, "b": 32, "c": 32, "d": 32, "e": 32}
    assert desk.step() == {"a": 224, "f": 32}


def test_what_is_in_line_for_want_of_a_row_holds_nobody_up() -> None:
    desk = make_desk(max_num_seqs=2)
    desk.add("decode", 3, max_tokens=40)
    desk.step()
    desk.add("long", 600, max_tokens=1)
    desk.add("no row", 3, max_tokens=1)
    assert desk.step() == {"decode": 1, "long": 255}
    assert desk.step() == {"decode": 1, "long": 255}


def test_a_second_long_prompt_does_not_take_the_share_of_the_first() -> None:
    """One prompt at a time, as max_num_partial_prefills says: what is left of a step goes to the one that has begun."""
    desk = make_desk()
    desk.add("a", 600, max_tokens=1)
    desk.add("b", 600, max_tokens=1)
    assert [desk.step() for _ in range(3)] == [{"a": 256}, {"a": 256}, {"a": 88, "b": 168}]


def test_each_prompt_under_way_leaves_half_to_those_behind_it() -> None:
    desk = make_desk(partial=3)
    for name in "ab":
        desk.add(name, 600, max_tokens=1)
    assert desk.step() == {"a": 192, "b": 64}  # half, then half of the rest; a, the older, gets what is left over
    desk.add("short", 64, max_tokens=1)
    assert desk.step() == {"a": 128, "b": 64, "short": 64}
    assert desk.step() == {"a": 192, "b": 64}


def test_siblings_fork_where_the_rest_of_a_step_ends_the_prompt() -> None:
    desk = make_desk()
    desk.add("a", 456, n=3, max_tokens=2)
    assert desk.step() == {"a": 256}
    desk.add("b", 20, max_tokens=1)
    assert desk.step() == {"a": 200, "b": 20}  # 128 at first
    assert [seq.get_output_len() for seq in desk.requests["a"].get_seqs()] == [1, 1, 1]


def test_the_steps_that_the_notes_count() -> None:
    """docs/*/m5/speed.md: two decodes, a prompt of 1,400 tokens, four of 32 behind it."""
    first, steps = {}, {}
    for threshold in (0, None):
        desk = make_desk(threshold)
        for name in ("d0", "d1"):
            desk.add(name, 32, max_tokens=32)
        sizes = [sum(desk.step().values()) for _ in range(8)]
        names = ["long", "s0", "s1", "s2", "s3"]
        for name in names:
            desk.add(name, LONG if name == "long" else 32, max_tokens=8)
        came: dict[str, int] = {}
        while desk.scheduler.has_unfinished_requests():
            sizes.append(sum(desk.step().values()))
            for name in names:
                if desk.requests[name].get_seqs()[0].get_output_len():
                    came.setdefault(name, len(sizes) - 8)
        assert sizes[8:14] == [BUDGET] * 6
        first[threshold], steps[threshold] = list(came.values()), len(sizes)
    assert steps == {0: 32, None: 32}
    assert sorted(first[0]) == [6, 6, 6, 6, 7]
    assert sorted(first[None]) == [1, 1, 1, 2, 7]
