"""The running example's pictures show what the stored steps say, and the stored steps are what the engine does."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from workshop.example_trace import BUDGET, NUM_BLOCKS, REQUESTS, SETTINGS, trace_engine
from workshop.running_example import MILESTONES, as_text, picture_file, stored

TRACES = stored()


def parts(milestone: str, name: str) -> list[dict[str, Any]]:
    return [part for step in TRACES[milestone]["steps"] for part in step if part["r"] == name]


@pytest.mark.parametrize("milestone", ["m6", "m8"])
def test_the_newest_engine_does_what_is_stored(milestone: str) -> None:
    trace = trace_engine(milestone)
    trace.pop("outputs")
    assert json.loads(json.dumps(trace)) == TRACES[milestone]


def test_the_file_is_as_the_command_writes_it() -> None:
    assert list(TRACES) == MILESTONES
    assert json.loads(as_text(TRACES)) == TRACES


@pytest.mark.parametrize("milestone", [name for name in SETTINGS if name != "m8"])  # there wrong drafts count, too
def test_every_request_computes_its_prompt_and_all_but_its_last_token_once(milestone: str) -> None:
    for name, _, size, outputs, _ in REQUESTS:
        mine = parts(milestone, name)
        found = mine[0]["start"]
        assert [p["start"] for p in mine] == [found + sum(q["n"] for q in mine[:i]) for i in range(len(mine))]
        assert found + sum(p["n"] for p in mine) == size + outputs - 1
        assert found == (16 if (milestone, name) == ("m6", "C") else 0)


def test_what_the_pages_tell_of_the_steps_is_so() -> None:
    lengths = {m: len(TRACES[m]["steps"]) for m in SETTINGS}
    assert lengths == {"m1": 14, "m2": 9, "m3": 8, "m4": 9, "m5": 10, "m6": 8, "m8": 8}
    sizes = {m: [sum(p["n"] for p in step) for step in TRACES[m]["steps"]] for m in SETTINGS}
    assert sizes["m1"].count(1) == 11
    assert sum(len(step) == 2 for step in TRACES["m2"]["steps"]) == 5
    assert [i for i, size in enumerate(sizes["m3"], 1) if size == 21] == [2, 5]
    assert max(sum(len(p["blocks"]) for p in step) for step in TRACES["m3"]["steps"]) == NUM_BLOCKS - 2
    assert max(sizes["m5"] + sizes["m6"]) == BUDGET
    assert [p["n"] for p in parts("m5", "B")][:3] == [7, 7, 6]
    assert [p["n"] for p in parts("m5", "C")][:3] == [6, 6, 7]
    assert (sum(sizes["m5"]), sum(sizes["m6"])) == (55, 39)
    steps = {m: list(enumerate(TRACES[m]["steps"], 1)) for m in ("m6", "m8")}
    ends = {m: [max(i for i, step in steps[m] if name in {p["r"] for p in step}) for name in "ABC"] for m in steps}
    assert ends == {"m6": [6, 7, 8], "m8": [5, 6, 8]}
    guesses = sum(p["n"] - 1 for name, _, size, *_ in REQUESTS for p in parts("m8", name) if p["start"] >= size)
    assert (guesses, sum(sizes["m8"]) - sum(sizes["m6"])) == (6, 4)  # wrong ones are computed, and computed for nothing


def test_the_host_plans_a_step_before_it_has_read_the_one_before_but_once() -> None:
    order = [f"{what[0]}{step}" for what, step in TRACES["m4"]["events"]]
    ahead = [n for n in range(1, 9) if order.index(f"s{n + 1}") < order.index(f"u{n}")]
    assert ahead == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("milestone", MILESTONES)
def test_a_picture_stands_still_for_readers_who_prefer_that(milestone: str) -> None:
    svg = picture_file(milestone).read_text(encoding="utf-8")
    groups = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
    animated = set(re.findall(r"@keyframes (\S+?)\{", svg))
    assert {g.get("class") for g in groups} == animated
    assert "@media (prefers-reduced-motion:reduce){g{animation:none!important}}" in svg
    still = re.findall(r"\.(\S+?)\{opacity:1;animation", svg)
    assert any(name.endswith("w") or name.startswith("from") for name in still)
