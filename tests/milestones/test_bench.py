"""`python -m milestones bench`: each workload once for real, and its protocol with an engine of ten lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milestones import cli
from milestones.bench.command import cache_settings, parse_settings
from milestones.bench.long_prompt import LongPrompt
from milestones.bench.play import Played, Wave, agreement, check_agreement, play, start_workers
from milestones.bench.workloads import steady_steps
from milestones.chain import Course
from milestones.spec import MilestoneError
from tests.milestones.conftest import make_course

TINY = ["--shape", "qwen3-tiny", "--rounds", "1"]
# An engine without torch, one token of one request a step: prompt[0], prompt[0] + 1, …
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
        self.engine, self.running = self, []

    def add_request(self, name, prompt, params):
        self.running.append(Some(request_id=name, left=params.length, outputs=[Some(token_ids=[])], first=prompt[0]))

    def abort_request(self, name):
        self.running = [one for one in self.running if one.request_id != name]

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        for one in self.running:
            one.outputs[0].token_ids.append(one.first + len(one.outputs[0].token_ids))
        changed = self.running
        self.running = [one for one in changed if len(one.outputs[0].token_ids) < one.left]
        return changed

    def stats(self):
        return Some(running_seqs=len(self.running), kv_tokens_reserved=100, kv_tokens_used=10 * len(self.running))
"""


@pytest.fixture
def course() -> Course:
    return make_course(**{"folovllm/__init__.py": ENGINE})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "columns", "rows"),
    [
        (["m1", "m2", "--requests", "3", "--prompt-len", "4", "8", "--output-len", "2", "4", "--kv-tokens", "64"],
         ["output_tokens_per_s", "speedup", "kv_used_tokens"], 2),
        (["m3", "m4", "--workload", "decode", "--batch", "1", "2", "--context", "8", "--steps", "3"],
         ["step_ms", "speedup", "same_tokens"], 4),
        (["m5", "--workload", "long-prompt", "--sweep-budget", "16", "32", "--long-len", "60", "--decodes", "2",
          "--new-tokens", "8", "--shorts", "2"], ["max_num_batched_tokens", "worst_gap_ms", "short_ttft_ms"], 2),
        (["m5", "m6", "--workload", "shared-prefix", "--prefix", "32", "--suffix", "4", "--prompts", "2",
          "--new-tokens", "2"], ["cold_ttft_ms", "ttft_ratio", "cached_tokens"], 4),
    ],
    ids=["requests", "decode", "long-prompt", "shared-prefix"],
)  # fmt: skip
def test_each_workload_runs_prints_its_table_and_writes_json(
    words: list[str], columns: list[str], rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path = tmp_path / "x.json"
    assert cli.main(["bench", *words, *TINY, "--json", str(json_path)]) == 0
    data = json.loads(json_path.read_text())
    assert data["title"] in capsys.readouterr().out
    assert data["command"].startswith("python -m milestones bench " + words[0])
    assert len(data["rows"]) == rows
    assert all(column in row for column in columns for row in data["rows"])
    if "long-prompt" in words:
        assert {"arrival_s", "first_token_s", "points"} == set(next(iter(data["details"]["gaps"].values())))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m0"], "m0 has no engine to measure; m1 is the first that has"),
        (["m1", "m1"], "each milestone once, got m1 m1"),
        (["m1", "m99"], "m99"),
        (["m1", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["m1", "--shape", "gpt-9"], "shape must be one of"),
        (["m1", "--context", "9"], "context must not be given with --workload requests: it is for decode"),
        (["m1", "--workload", "decode", "--steps", "0"], "steps must be at least 1, got 0"),
        (["m1", "--max-model-len", "9"], "max-model-len must be at least"),
        (["m1", "m2", "--workload", "long-prompt", "--sweep-budget", "8"], "must be given with one milestone"),
        (["m1", "--json", "/no/such/folder/x.json"], "json must be in an existing folder"),
        (["m1", "--set", "m2.max_num_seqs=1"], "set must name one of m1, got 'm2.max_num_seqs=1'"),
        (["m1", "--set", "max_num_seqs=1"], "set must be mK.field=value, got 'max_num_seqs=1'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], text: str, capsys) -> None:
    assert cli.main(["bench", *words]) == 2
    assert text in capsys.readouterr().err.replace("\n", " ")


def test_the_same_memory_is_slots_in_m2_and_blocks_from_m3_on() -> None:
    settings = [cache_settings(number, 1000, 300, 32) for number in (1, 2, 3)]
    assert settings == [{}, {"max_num_seqs": 3}, {"num_kv_blocks": 62, "block_size": 16, "max_num_seqs": 32}]
    assert cache_settings(3, 1000, 300, 32, 300) == {"num_kv_blocks": 3, "block_size": 300, "max_num_seqs": 32}


def test_one_milestone_gets_an_option_of_its_own() -> None:
    texts = ["m2.max_num_seqs=1", "m2.quantization=w4a16", "m2.enable_prefix_caching=false"]
    expected = {"max_num_seqs": 1, "quantization": "w4a16", "enable_prefix_caching": False}
    assert parse_settings(texts, ["m1", "m2"]) == {"m1": {}, "m2": expected}


def test_a_wave_comes_when_those_before_have_their_tokens_and_what_is_enough_is_not_waited_for(course: Course) -> None:
    waves = [Wave([[5], [7]], [4, 4]), Wave([[9]], [2], after=2)]
    with start_workers(course, {"a": ("m1", {})}, None, lambda text: None) as (worker,):
        played = play(worker, waves)
        few = play(worker, [Wave([[5], [7]], [9, 9])], enough=2)
    assert played.tokens == [[5, 6, 7, 8], [7, 8, 9, 10], [9, 10]]
    assert played.times[0][1] <= played.arrivals[2] <= played.times[0][2]
    assert played.peak == {"running_seqs": 3, "kv_reserved_tokens": 100, "kv_used_tokens": 30}
    assert [len(tokens) for tokens in few.tokens] == [2, 2]


@pytest.mark.parametrize(("option", "text"), [("broken", "no such model"), ("silent", "ended without an answer")])
def test_an_engine_that_refuses_or_ends_says_so(course: Course, option: str, text: str) -> None:
    with (
        pytest.raises(MilestoneError, match=text),
        start_workers(course, {"a": ("m1", {option: True})}, None, lambda text: None),
    ):
        pass


def played(tokens: list[list[int]], times: list[list[float]], arrivals: list[float]) -> Played:
    return Played(max(map(max, times)), arrivals, times, tokens, [None] * len(tokens))


def test_other_tokens_are_an_error_where_rounding_is_no_excuse() -> None:
    one = played([[1, 2, 3, 4]], [[1.0, 2.0, 3.0, 4.0]], [0.0])
    other = played([[1, 2, 9, 4]], [[1.0, 2.0, 3.0, 4.0]], [0.0])
    assert agreement(other, one) == 0.5  # it ends with the first other token
    with pytest.raises(MilestoneError, match="m2 gives other tokens: only 50% are the first milestone's"):
        check_agreement("m2", 0.5, "float32")
    check_agreement("m2", 0.5, "bfloat16")


def test_steady_steps_and_gaps_lie_between_the_last_start_and_the_first_end() -> None:
    assert steady_steps([[1.0, 2.0, 3.0, 5.0], [2.0, 3.0, 5.0]]) == [1.0, 2.0]
    assert steady_steps([[1.0, 2.0, 3.0], [1.0, 3.0]]) == []  # one missed a step
    work = LongPrompt("float32", {"m1": "m1"}, 2, 50, 4)
    times = [[1.0, 2.0, 5.0], [1.0, 2.0, 5.0], [5.0, 6.0, 7.0]]
    work.keep(None, {"m1": [played([[1] * 3] * 3, times, [0.0, 0.0, 2.0])]})
    (row,) = work.rows()
    assert (row["gap_p50_ms"], row["worst_gap_ms"], row["ttft_ms"]) == (2000.0, 3000.0, 3000.0)
