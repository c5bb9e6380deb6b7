"""Several requests against several peers: who gets which work, in which turn, and what comes of it in the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from folovllm.bench.contestant import FoloVLLM, Run, Step
from folovllm.bench.lengths import Lengths
from folovllm.bench.peers import registry
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import InBatches
from folovllm.bench.race import take_turns
from folovllm.bench.throughput import make_lengths
from folovllm.bench.workload import BenchModel
from tests.bench.support import Local, bench, hf_engine, refusal
from tests.helpers import make_hf_folder

pytestmark = pytest.mark.slow
TINY = "qwen3-tiny"


# Lengths.


def test_mixed_lengths_lie_between_an_eighth_and_the_whole() -> None:
    lengths = make_lengths(300, 40, 16, mixed=True)
    assert (min(lengths.prompts), max(lengths.prompts)) == (5, 40)
    assert (min(lengths.outputs), max(lengths.outputs)) == (2, 16)
    assert lengths == make_lengths(300, 40, 16, mixed=True)
    assert [len(prompt) for prompt in lengths.make_prompts(100, 1, 4)] == lengths.prompts[:4]


def test_equal_lengths_are_as_given() -> None:
    assert make_lengths(2, 5, 3, mixed=False) == Lengths([5, 5], [3, 3])


def test_each_round_has_token_ids_of_its_own() -> None:
    lengths = Lengths.equal(3, 9, 1)
    one, again, two = (lengths.make_prompts(100, number) for number in (1, 1, 2))
    assert one == again
    assert not set(map(tuple, one)) & set(map(tuple, two))


# Contestants.


def test_a_static_batch_runs_to_its_longest_output_and_counts_what_was_wanted(tmp_path: Path) -> None:
    model = BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto")
    prompts, wanted = [[1, 2], [3, 4, 5, 6, 7], [8, 9, 10]], [2, 4, 3]
    run = InBatches(Local(hf_engine(model)), batch_size=2).run(prompts, wanted)
    assert [(one.tokens, one.prefill) for one in run] == [
        (2, True), (2, False), (1, False), (1, False),  # the first output is done after two steps
        (1, True), (1, False), (1, False),
    ]  # fmt: skip


def test_the_whole_run_takes_longer_than_its_steps(tmp_path: Path) -> None:
    model = BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto")
    run = FoloVLLM(model, "float32", "cpu", 16).run([[1, 2], [3, 4, 5]], [2, 4])
    assert run.tokens == 6
    assert run.wall_seconds is not None
    assert run.wall_seconds > run.seconds > 0


def test_an_engine_that_gives_too_few_tokens_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = FoloVLLM(BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto"), "float32", "cpu", 16)
    monkeypatch.setattr(ours.engine, "has_unfinished_requests", lambda: False)
    with pytest.raises(RuntimeError, match="not every request got the tokens it asked for"):
        ours.run([[1, 2]], [3])


class Metronome:
    """A peer whose every step takes a second."""

    name = "metronome"

    def __init__(self, setup: PeerSetup | None = None) -> None:
        self.seen: list[list[list[int]]] = []
        if setup is not None:
            setup.cleanup.callback(lambda: closed.append(self.name))

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        self.seen.append(prompts)
        return Run(Step(1.0, sum(n > number for n in num_tokens), number == 0) for number in range(max(num_tokens)))


closed: list[str] = []


@pytest.fixture
def metronomes(monkeypatch: pytest.MonkeyPatch) -> None:
    closed.clear()
    monkeypatch.setitem(registry.PEERS, "metronome", lambda setup: [Metronome(setup)])


def test_contestants_take_turns_and_the_warm_up_is_left_out() -> None:
    one, two = Metronome(), Metronome()
    ticks: list[str] = []
    measured: list[bool] = []
    runs = take_turns([one, two], 2, lambda number: ([[number]], [number + 1]), ticks.append, measured.append)
    assert [[len(run) for run in results] for results in runs] == [[2, 3], [2, 3]]
    assert one.seen == two.seen == [[[0]], [[1]], [[2]]]
    assert ticks == [f"{label}: metronome" for label in ("warm-up", "round 1/2", "round 2/2") for _ in range(2)]
    assert measured == [True, True, False, False, False, False]


# The report.

LENGTHS = ["--num-requests", "3", "--input-len", "6", "--output-len", "3", "--rounds", "1"]


@pytest.mark.parametrize("given", [["--peer", "hf,metronome"], ["--peer", "hf", "--peer", "metronome"]])
def test_throughput_against_several_peers(given: list[str], metronomes: None, tmp_path: Path) -> None:
    argv = ["throughput", "--shape", TINY, "--dtype", "float32", *given, *LENGTHS]
    rows = bench(argv, tmp_path / "throughput-x.json")
    ours, _, metronome = rows
    assert [row["engine"] for row in rows] == ["folovllm", "hf", "metronome"]
    assert [row["batch"] for row in rows] == [None, 1, None]
    assert (metronome["seconds"], metronome["prefill_tokens_per_s"], metronome["decode_tokens_per_s"]) == (3, 18, 3)
    assert metronome["speedup"] == pytest.approx(3 / ours["seconds"])
    assert ours["speedup"] is None
    assert closed == ["metronome"]


def test_mixed_throughput_is_the_same_work_for_all(metronomes: None, tmp_path: Path) -> None:
    argv = ["throughput", "--shape", TINY, "--dtype", "float32", "--peer", "metronome", "--mixed",
            "--num-requests", "6", "--input-len", "16", "--output-len", "8", "--rounds", "1"]  # fmt: skip
    path = tmp_path / "throughput-mixed.json"
    ours, mixed = bench(argv, path)
    lengths = make_lengths(6, 16, 8, mixed=True)
    assert mixed["seconds"] == max(lengths.outputs)
    assert mixed["prompt_tokens"] == ours["prompt_tokens"] == pytest.approx(sum(lengths.prompts) / 6)
    assert mixed["output_tokens_per_s"] == pytest.approx(sum(lengths.outputs) / max(lengths.outputs))
    assert "prompts of 2 to 16 tokens, outputs of 2 to 8" in json.loads(path.read_text())["notes"][-1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["throughput", "--shape", TINY, "--peer", "gpt"], "peer must be one of "),
        (["throughput", "--shape", TINY, "--peer", "hf,hf"], "peer must name each peer once, got 'hf' twice"),
    ],
)
def test_bad_peers_are_refused_before_anything_is_measured(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(argv, capsys)
