"""`python -m milestones bench`: its parts by hand, its protocol with an engine of ten lines, and once for real."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm.bench.lengths import Lengths
from folovllm.bench.neighbours import Neighbours, OtherLoad
from folovllm.bench.report import Report
from folovllm.engine import threads
from milestones import cli
from milestones.bench import charts, command, requests
from milestones.bench.requests import check_same_tokens
from milestones.bench.settings import cache_settings, engine_options, parse_settings
from milestones.chain import Course
from milestones.spec import MilestoneError
from tests.milestones.conftest import make_course

ROOT = Path(__file__).resolve().parents[2]

# An engine without torch. It says what it was made with as its tokens: prompt[0], prompt[0] + 1, …
ENGINE = """\
from types import SimpleNamespace as Some

class SamplingParams:
    def __init__(self, **given):
        assert given.pop("temperature") == 0 and given.pop("ignore_eos") and not given.pop("detokenize")
        self.length = given.pop("max_tokens")

class LLM:
    def __init__(self, **options):
        if options.get("broken"):
            raise ValueError("no such model")
        if options.get("silent"):
            raise SystemExit("gone")
        print("a library that prints")
        self.engine, self.waiting, self.shift = self, [], options.get("shift", 0)

    def add_request(self, name, prompt, params):
        self.waiting.append((name, prompt, params))

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        name, prompt, params = self.waiting.pop(0)
        ids = [prompt[0] + place + self.shift * (place == 1) for place in range(params.length)]
        return [Some(request_id=name, outputs=[Some(token_ids=ids)])]
"""
STATS = """\
    def stats(self):
        left = len(self.waiting)
        return Some(running_seqs=left, kv_tokens_reserved=100 * left, kv_tokens_used=10 * left)
"""
LENGTHS = Lengths([3, 2, 4], [2, 3, 5])


@pytest.fixture
def course() -> Course:
    """m0 has the engine without statistics, m1 the one with them."""
    files = {"folovllm/__init__.py": ENGINE + STATS, "milestones/m0/folovllm/__init__.py": ENGINE}
    return make_course(**files)


def measure(course: Course, rounds: int = 2, **options: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return requests.measure(course, options, LENGTHS, 50, rounds=rounds)


# Requests and settings.


def test_lengths_lie_in_their_range_and_repeat() -> None:
    lengths = Lengths.uniform(200, (3, 6), (1, 2))
    assert set(lengths.prompts) == {3, 4, 5, 6}
    assert set(lengths.outputs) == {1, 2}
    assert lengths == Lengths.uniform(200, (3, 6), (1, 2))
    assert lengths.longest == 8


def test_prompts_have_their_lengths_and_differ_from_round_to_round() -> None:
    first, second = LENGTHS.make_prompts(50, 1), LENGTHS.make_prompts(50, 2)
    assert [len(prompt) for prompt in first] == [3, 2, 4]
    assert first == LENGTHS.make_prompts(50, 1) != second


def test_the_lengths_are_said_in_words() -> None:
    assert LENGTHS.describe() == (
        "3 requests at once: prompts of 2 to 4 tokens (mean 3.0), outputs of 2 to 5 tokens (mean 3.3)"
    )


def test_settings_go_to_their_milestone_with_their_type() -> None:
    texts = ["m3.num_kv_blocks=64", "m3.preemption_mode=swap", "m2.swap_space=0.5", "m2.enforce_eager=true"]
    assert parse_settings(texts, ["m2", "m3"]) == {
        "m2": {"swap_space": 0.5, "enforce_eager": True},
        "m3": {"num_kv_blocks": 64, "preemption_mode": "swap"},
    }


@pytest.mark.parametrize("text", ["m2.max_num_seqs", "max_num_seqs=8", "m2.=8", "m2.max_num_seqs="])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(MilestoneError, match="--set must be mK.field=value"):
        parse_settings([text], ["m2"])


def test_a_setting_of_a_milestone_that_is_not_measured_is_refused() -> None:
    with pytest.raises(MilestoneError, match="m3 is not measured here, only m1, m2"):
        parse_settings(["m3.block_size=8"], ["m1", "m2"])


def test_the_same_memory_is_slots_in_m2_and_blocks_from_m3_on() -> None:
    def settings(number: int) -> dict[str, Any]:
        return cache_settings(number, 1000, max_model_len=300, block_size=16, num_requests=32)

    assert settings(1) == {}
    assert settings(2) == {"max_num_seqs": 3}  # three whole slots of 300
    assert settings(3) == settings(4) == {"num_kv_blocks": 62, "block_size": 16, "max_num_seqs": 32}


def test_a_cache_that_cannot_hold_the_longest_request_is_refused() -> None:
    with pytest.raises(MilestoneError, match=r"kv-tokens must be at least max_model_len \(300\), got 299"):
        cache_settings(2, 299, max_model_len=300, block_size=16, num_requests=32)


def test_what_is_set_by_hand_goes_before_what_follows_from_the_memory(course: Course) -> None:
    milestones = [replace(course.get("m1"), number=3)]
    settings = {"m3": {"block_size": 8, "max_num_seqs": 5}}
    options = engine_options(milestones, {"max_model_len": 40}, settings, kv_tokens=80, num_requests=9)
    assert options == {"m3": {"max_model_len": 40, "num_kv_blocks": 10, "block_size": 8, "max_num_seqs": 5}}


# The processes.


def test_every_round_answers_for_every_milestone(course: Course) -> None:
    results = measure(course, m0={}, m1={})
    assert {name: len(answers) for name, answers in results.items()} == {"m0": 2, "m1": 2}
    for number, answers in enumerate(zip(*results.values(), strict=True), 1):
        prompts = LENGTHS.make_prompts(50, number)
        wanted = [[prompt[0] + i for i in range(n)] for prompt, n in zip(prompts, LENGTHS.outputs, strict=True)]
        assert [answer["tokens"] for answer in answers] == [wanted, wanted]
        assert all(0 < first <= answer["seconds"] for answer in answers for first in answer["ttft"])


def test_the_peak_is_known_where_there_are_statistics(course: Course) -> None:
    (without,), (answer,) = measure(course, rounds=1, m0={}, m1={}).values()
    assert "running_seqs" not in without
    # Of three requests two are left after the first step.
    assert (answer["running_seqs"], answer["kv_reserved_tokens"], answer["kv_used_tokens"]) == (2, 200, 20)


def test_other_tokens_are_an_error(course: Course) -> None:
    with pytest.raises(MilestoneError, match=r"m1 and m0 give different tokens: request 0, output token 1 is \d+"):
        measure(course, m0={}, m1={"shift": 1})


def test_outputs_that_are_too_short_are_an_error() -> None:
    with pytest.raises(MilestoneError, match="m2 gave outputs of other lengths"):
        check_same_tokens({"m1": [[1, 2]], "m2": [[1]]}, [2])


def test_an_engine_that_refuses_says_why(course: Course) -> None:
    with pytest.raises(MilestoneError, match="m1 failed: ValueError: no such model"):
        measure(course, m1={"broken": True})


def test_a_process_that_ends_is_noticed(course: Course) -> None:
    with pytest.raises(MilestoneError, match=r"m1's process ended without an answer; its last words:\ngone"):
        measure(course, m1={"silent": True})


def test_a_package_from_elsewhere_is_noticed(course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the tree's package were missing and an installed one took its place."""
    (tmp_path / "folovllm").mkdir()
    (tmp_path / "folovllm/__init__.py").write_text(ENGINE)
    monkeypatch.setattr(requests, "write_tree", lambda tree, folder: (folder).mkdir())
    original = requests.Worker
    monkeypatch.setattr(requests, "Worker", lambda name, tree, threads: original(name, tmp_path, threads))
    with pytest.raises(MilestoneError, match="RuntimeError: folovllm was loaded from"):
        measure(course, m1={})


# The result.

ANSWERS = {
    "m1": [{"seconds": s, "ttft": [0.1, 0.3]} for s in (2.0, 4.0, 3.0)],
    "m2": [
        {"seconds": 1.5, "ttft": [0.1], "running_seqs": 3, "kv_reserved_tokens": 27, "kv_used_tokens": 18},
        {"seconds": 1.0, "ttft": [0.2], "running_seqs": 3, "kv_reserved_tokens": 27, "kv_used_tokens": 18},
    ],
}


def test_rows_hold_medians_and_the_speedup_over_the_first() -> None:
    m1, m2 = requests.make_rows(ANSWERS, LENGTHS)
    assert list(m1) == list(m2) == requests.COLUMNS
    assert (m1["seconds"], m2["seconds"], m2["speedup"]) == (3.0, 1.25, pytest.approx(2.4))
    assert (m1["output_tokens"], m2["output_tokens_per_s"]) == (10, pytest.approx(8.0))
    assert (m1["mean_ttft_ms"], m2["mean_ttft_ms"]) == (pytest.approx(200), pytest.approx(150))
    assert (m1["kv_used_tokens"], m2["kv_used_tokens"], m2["kv_reserved_tokens"]) == (None, 18, 27)


def test_the_charts_bars_are_as_long_as_their_figures() -> None:
    svg = charts.draw_requests({"title": "M & N", "rows": requests.make_rows(ANSWERS, LENGTHS)})
    document = ET.fromstring(svg)
    lengths = [float(bar.attrib["width"]) for bar in document.iter("{http://www.w3.org/2000/svg}rect")]
    m1, m2, reserved, used = lengths
    assert m2 / m1 == pytest.approx(2.4, rel=0.01)
    assert used / reserved == pytest.approx(18 / 27, rel=0.01)
    texts = [text.text for text in document.iter("{http://www.w3.org/2000/svg}text")]
    assert "18 of 27 (67%)" in texts
    assert "8   (2.4 × m1)" in texts


def test_a_chart_without_statistics_has_no_cache_in_it() -> None:
    rows = requests.make_rows({"m1": ANSWERS["m1"]}, LENGTHS)
    assert "KV cache" not in charts.draw_requests({"title": "M", "rows": rows})


# The command.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m0", "m1"], "m0 has no engine to measure; m1 is the first that has"),
        (["m1", "m1"], "each milestone once, got m1 m1"),
        (["m9"], "no milestone is called 'm9'"),
        (["m1", "--requests", "0"], "requests must be at least 1, got 0"),
        (["m1", "--prompt-len", "9", "3"], "prompt-len must be two numbers, 1 <= MIN <= MAX, got 9 and 3"),
        (["m1", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["m1", "--threads", "0"], "threads must be at least 1, got 0"),
        (["m1", "--max-model-len", "5"], "max-model-len must be at least"),
        (["m1", "--shape", "gpt-5"], "shape must be one of qwen3-0.6b"),
        (["m1", "--model", "/no/such/folder"], "no such folder"),
        (["m1", "--json", "/no/such/folder/x.json"], "json must be in an existing folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(("cpu_seconds", "says_so"), [(1.5, True), (0.01, False)])
def test_the_table_says_that_other_work_ran_beside(
    cpu_seconds: float, says_so: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = OtherLoad(wall_seconds=1.0, cpu_seconds=cpu_seconds, stolen_seconds=0.0, cores=2)
    report = Report("milestones", "Milestones", "python -m milestones bench", ["seconds"], [{"seconds": 1.0}], [])
    monkeypatch.setattr(command, "measure", lambda root, args: (report, str))
    monkeypatch.setattr(Neighbours, "look", lambda self: load)
    assert cli.main(["bench", "m1"]) == 0
    assert ("Busy neighbours: other processes used 1.5 of 2 cores" in capsys.readouterr().out) is says_so


def test_the_embedded_model_is_measured_with_the_threads_that_an_engine_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is made in another process than the engines' and must name their number."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # to be as before afterwards
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "torchs_own_numbers", lambda: frozenset({3}))
    monkeypatch.setattr(requests, "measure", lambda *args, **kwargs: {"m1": ANSWERS["m1"]})
    try:
        for words, number in ((["m1"], 1), (["m1", "--shape", "qwen3-mini"], 3), (["m1", "--threads", "2"], 2)):
            torch.set_num_threads(3)
            assert cli.main(["bench", *words, "--json", str(tmp_path / "x.json")]) == 0
            assert json.loads((tmp_path / "x.json").read_text())["hardware"]["threads"] == number
    finally:
        torch.set_num_threads(before)


@pytest.mark.exhaustive
def test_two_milestones_answer_three_requests_with_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plot = tmp_path / "m1-m2.json", tmp_path / "m1-m2.svg"
    words = ["bench", "m1", "m2", "--requests", "3", "--prompt-len", "2", "5", "--output-len", "2", "4",
             "--rounds", "1", "--kv-tokens", "20", "--max-model-len", "10",
             "--json", str(path), "--plot", str(plot)]  # fmt: skip
    assert cli.main(words) == 0
    data = json.loads(path.read_text())
    assert (data["name"], data["columns"]) == ("m1-m2", requests.COLUMNS)
    assert data["command"].startswith("python -m milestones bench m1 m2 --requests 3")
    assert {"title", "versions", "hardware", "date", "rows", "notes", "samples", "other_load"} < set(data)
    m1, m2 = data["rows"]
    assert (m1["milestone"], m2["milestone"], m2["running_seqs"]) == ("m1", "m2", 2)
    assert m2["kv_used_tokens"] <= m2["kv_reserved_tokens"] == 20  # two slots of ten tokens
    assert all(math.isfinite(value) for row in data["rows"] for value in row.values() if isinstance(value, float))
    assert any("m2 with max_num_seqs=2" in note for note in data["notes"])
    assert "m2" in capsys.readouterr().out
    ET.fromstring(plot.read_text())
