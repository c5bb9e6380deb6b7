"""The workloads that watch each token's time: by hand, and with an engine whose clock counts steps."""

from __future__ import annotations

from typing import Any

import pytest

from milestones.bench.decode import DecodeWorkload, steady_gaps
from milestones.bench.long_prompt import LongPromptWorkload
from milestones.bench.requests import start_workers
from milestones.bench.shared_prefix import PrefixWorkload
from milestones.bench.timeline import Played, Wave, agreement, check_agreement, draw_prompt, in_turn, play
from milestones.spec import MilestoneError
from tests.milestones.conftest import make_course
from tests.milestones.svg import texts

# An engine without torch: a token a step for everybody who is there. Its time is counted in steps: the clock that the
# worker reads goes on by the prompt tokens of a step, or by one, or by a tenth of that with "chunk".
ENGINE = """\
import time
from types import SimpleNamespace as Some

now = 0.0
time.perf_counter = lambda: now

class SamplingParams:
    def __init__(self, **given):
        self.length = given["max_tokens"]

class LLM:
    def __init__(self, **options):
        self.engine, self.requests, self.seen, self.options = self, {}, set(), options

    def add_request(self, name, prompt, params):
        self.requests[name] = Some(prompt=prompt, left=len(prompt), length=params.length, ids=[])

    def abort_request(self, name):
        del self.requests[name]

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        global now
        budget, changed, spent = self.options.get("chunk", 10**9), [], 1.0
        for name, request in list(self.requests.items())[: self.options.get("at_once", 99)]:
            if request.left:
                known = len(request.prompt) // 2 if self.options.get("caches") else 0
                if known and request.left == len(request.prompt) and tuple(request.prompt[:known]) in self.seen:
                    request.left -= known
                taken = min(budget, request.left)
                budget, spent, request.left = budget - taken, spent + taken, request.left - taken
                self.seen.add(tuple(request.prompt[:known]))
            if not request.left:
                request.ids.append(request.prompt[0] + len(request.ids) + self.options.get("shift", 0))
                changed.append(Some(request_id=name, outputs=[Some(token_ids=list(request.ids))]))
                if len(request.ids) == request.length:
                    del self.requests[name]
        now += spent
        return changed
"""


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Any:
    """Workers named by their options: start(a={...}, b={...})."""
    course = make_course(**{"folovllm/__init__.py": ENGINE})
    open_ones = []

    def start(**engines: dict[str, Any]) -> list[Any]:
        given = {name: ("m1", options) for name, options in engines.items()}
        context = start_workers(course, given, None, lambda text: None)
        open_ones.append(context)
        return context.__enter__()

    yield start
    for context in open_ones:
        context.__exit__(None, None, None)


def rounds(workload: Any, workers: list[Any], count: int) -> list[dict[str, Any]]:
    for number in range(count + 1):
        workload.play_round(workers, number, 50, lambda text: None)
    rows: list[dict[str, Any]] = workload.rows()
    assert all(set(row) == set(workload.columns) for row in rows)
    return rows


# Requests in waves.


def test_a_wave_comes_when_those_before_have_their_tokens(workers: Any) -> None:
    (worker,) = workers(a={})
    played = play(worker, [Wave([[5, 6], [7]], [4, 2]), Wave([[1, 2, 3]], [2], after=3)])
    # Step 1 takes 1 + 3 prompt tokens; the second request ends with step 2, the first has three tokens after step 3.
    assert played.arrivals == [0, 0, 6]
    assert played.times == [[4, 5, 6, 10], [4, 5], [10, 11]]
    assert played.tokens == [[5, 6, 7, 8], [7, 8], [1, 2]]
    assert played.ttft == [4, 4, 4]
    assert (played.seconds, played.cached) == (11, [None, None, None])


def test_what_is_enough_is_not_waited_for(workers: Any) -> None:
    (worker,) = workers(a={})
    assert [len(tokens) for tokens in play(worker, [Wave([[5], [6, 7]], [9, 9])], enough=3).tokens] == [3, 3]
    assert play(worker, [Wave([[5]], [2])]).tokens == [[5, 6]]  # nobody is left from before


def test_an_output_that_is_too_short_is_an_error() -> None:
    class Short:
        name = "m7"

        def ask(self, request: Any) -> dict[str, Any]:
            return vars(Played(1.0, [0.0], [[1.0]], [[5]], [None]))

    with pytest.raises(MilestoneError, match="m7 gave shorter outputs than were asked for"):
        play(Short(), [Wave([[1]], [2])])  # type: ignore[arg-type]


def make_played(*tokens: list[int], times: list[list[float]] | None = None) -> Played:
    return Played(9.0, [0.0] * len(tokens), times or [[1.0]] * len(tokens), list(tokens), [None] * len(tokens))


def test_agreement_ends_with_the_first_other_token() -> None:
    assert agreement(make_played([1, 2, 3, 4], [1, 2]), make_played([1, 2, 9, 4], [1, 2])) == pytest.approx(4 / 6)


def test_other_tokens_are_refused_where_rounding_is_no_excuse() -> None:
    check_agreement("m2", 0.95, "float32")
    check_agreement("m2", 0.5, "bfloat16")
    with pytest.raises(MilestoneError, match="m2 gives other tokens: only 50% are the first milestone's"):
        check_agreement("m2", 0.5, "float32")


def test_who_goes_first_goes_last_the_next_time() -> None:
    assert in_turn(["a", "b"], 1) == ["a", "b"]  # type: ignore[list-item]
    assert in_turn(["a", "b"], 2) == ["b", "a"]  # type: ignore[list-item]


def test_prompts_follow_from_their_seed() -> None:
    assert draw_prompt("a", 20, 50) == draw_prompt("a", 20, 50) != draw_prompt("b", 20, 50)


# Decode steps.


def test_steady_gaps_lie_between_the_last_start_and_the_first_end() -> None:
    assert steady_gaps([[1, 4, 5, 7], [4, 5, 7, 8]]) == [1, 2]
    assert steady_gaps([[1, 2, 3], [4, 5]]) == []  # one after the other
    assert steady_gaps([[1, 2, 3, 4], [1, 2, 4]]) == []  # the second missed a step


def test_a_decode_step_is_timed_without_its_prefill(workers: Any) -> None:
    workload = DecodeWorkload([1, 2], context=30, steps=3, dtype="float32")
    rows = rounds(workload, workers(a={}, b={}), 2)
    assert [(row["milestone"], row["batch"], row["steps"], row["step_ms"]) for row in rows] == [
        ("a", 1, 6, 1000), ("b", 1, 6, 1000), ("a", 2, 6, 1000), ("b", 2, 6, 1000),
    ]  # fmt: skip
    assert [row["output_tokens_per_s"] for row in rows] == [1, 1, 2, 2]
    assert {(row["speedup"], row["same_tokens"]) for row in rows} == {(1, 1)}


def test_a_milestone_that_decodes_one_at_a_time_has_no_step_of_two(workers: Any) -> None:
    workload = DecodeWorkload([2], context=3, steps=3, dtype="float32")
    with pytest.raises(MilestoneError, match="a did not decode 2 sequences of 3 tokens together for 3 steps"):
        rounds(workload, workers(a={"at_once": 1}), 1)


def test_the_speedup_is_the_first_ones_step_over_this_ones() -> None:
    workload = DecodeWorkload([4], context=3, steps=2, dtype="float32")
    workload.steps_s = {("m1", 4): [[0.4] * 2, [0.6] * 2, [0.2] * 2], ("m2", 4): [[0.1] * 2, [0.2] * 2, [0.1] * 2]}
    workload.shares = {("m1", 4): [1.0], ("m2", 4): [0.98, 1.0]}
    m1, m2 = workload.rows()
    assert (m1["step_ms"], m2["step_ms"]) == (pytest.approx(400), pytest.approx(100))
    assert (m1["speedup"], m2["speedup"]) == (1, pytest.approx(3))  # of 4, 3 and 2
    assert (m2["same_tokens"], m2["steps"]) == (0.98, 6)
    assert "40   (3.00 × m1)" in texts(workload.draw("Steps"))


# A long prompt among decodes.


def test_the_long_prompt_makes_the_worst_gap_and_chunks_make_it_smaller(workers: Any) -> None:
    names = {"whole": "m4", "chunks": "m5"}
    workload = LongPromptWorkload(names, decodes=3, long_len=200, new_tokens=40, dtype="float32")
    whole, chunked = rounds(workload, workers(whole={}, chunks={"chunk": 100}), 1)
    assert (whole["milestone"], chunked["milestone"]) == ("m4", "m5")
    assert (whole["worst_gap_ms"], chunked["worst_gap_ms"]) == (201_000, 101_000)
    assert chunked["worst_gap_ratio"] == pytest.approx(201 / 101)
    assert (whole["gap_p50_ms"], whole["ttft_ms"], chunked["ttft_ms"]) == (1000, 201_000, 202_000)
    assert whole["output_tokens"] == 3 * 40 + 10
    # The prompts take as long; what is left of the steady requests is one step less after a prompt in two steps.
    assert chunked["throughput_ratio"] == pytest.approx(whole["seconds"] / chunked["seconds"]) == pytest.approx(1)
    gaps = workload.details()["gaps"]
    assert [max(gap for _, gap in gaps[name]["points"]) for name in names] == [201_000, 101_000]
    assert gaps["whole"]["first_token_s"] - gaps["whole"]["arrival_s"] == 201
    assert ["whole: worst 201,000.0 ms" in texts(workload.draw("Gaps"))] == [True]


def test_the_picture_is_of_the_round_whose_worst_gap_is_the_median() -> None:
    workload = LongPromptWorkload({"m5": "m5"}, decodes=1, long_len=9, new_tokens=2, dtype="float32")
    workload.played["m5"] = [make_played([1], [2], times=[[1.0, 1.0 + worst], [2.0]]) for worst in (3.0, 9.0, 5.0)]
    assert workload.details()["gaps"]["m5"]["points"] == [[6.0, 5000.0]]


def test_a_sweep_has_a_row_for_each_budget(workers: Any) -> None:
    budgets = {"m5 with 50": 50, "m5 with 100": 100}
    field = "max_num_batched_tokens"
    workload = LongPromptWorkload(dict.fromkeys(budgets, "m5"), 2, 200, 40, "float32", 0, field, budgets)
    engines = workers(**{name: {"chunk": budget} for name, budget in budgets.items()})
    rows = rounds(workload, engines, 1)
    found = [(row["milestone"], row["max_num_batched_tokens"], row["worst_gap_ms"]) for row in rows]
    assert found == [("m5", 50, 51_000), ("m5", 100, 101_000)]
    assert [row["ttft_ms"] for row in rows] == [204_000, 202_000]
    assert {"50", "100"} <= set(texts(workload.draw("Sweep")))


def test_short_prompts_come_behind_the_long_one_and_the_slowest_counts(workers: Any) -> None:
    names = {"whole": "m4", "chunks": "m5"}
    workload = LongPromptWorkload(names, decodes=2, long_len=200, new_tokens=40, dtype="float32", shorts=3)
    rows = rounds(workload, workers(whole={}, chunks={"chunk": 100}), 1)
    assert workload.num_seqs == 6
    assert [row["shorts"] for row in rows] == [3, 3]
    assert all(row["ttft_ms"] <= row["short_ttft_ms"] for row in rows)  # the simulated engine serves in order
    assert {"shorts", "short_ttft_ms"} <= set(workload.columns)
    assert "3 prompts of 32 tokens come right behind it" in workload.notes()[0]


# Prompts that begin alike.


def test_a_cache_of_prefixes_is_seen_in_the_warm_requests_only(workers: Any) -> None:
    workload = PrefixWorkload(prefix=50, suffix=50, requests=3, new_tokens=2, dtype="float32")
    rows = rounds(workload, workers(a={}, b={"caches": True}), 2)
    table = {(row["milestone"], row["prompts"]): row for row in rows}
    warm, cold = table["b", "shared"], table["a", "shared"]
    assert (cold["cold_ttft_ms"], cold["ttft_ms"], warm["cold_ttft_ms"], warm["ttft_ms"]) == (
        101_000, 101_000, 101_000, 51_000,
    )  # fmt: skip
    assert warm["ttft_ratio"] == pytest.approx(101 / 51)
    assert (warm["seconds"], cold["seconds"]) == (102 + 52 + 52, 3 * 102)
    different = table["b", "different"]
    assert (different["ttft_ms"], different["ttft_ratio"], different["seconds_ratio"]) == (101_000, 1, 1)
    assert (different["cold_ttft_ms"], different["shared_tokens"], warm["shared_tokens"]) == (None, 0, 50)


def test_prefixes_are_shared_in_a_round_and_fresh_in_each() -> None:
    workload = PrefixWorkload(prefix=8, suffix=3, requests=3, new_tokens=2, dtype="float32")

    def prompt(kind: str, number: int, place: int) -> list[int]:
        return workload.make_prompt(kind, number, place, 1000)

    first, second, later = prompt("shared", 1, 0), prompt("shared", 1, 1), prompt("shared", 2, 0)
    assert first[:8] == second[:8] != later[:8]
    assert first[8:] != second[8:]
    assert len(first) == 11
    assert prompt("different", 1, 0)[:8] != prompt("different", 1, 1)[:8]
