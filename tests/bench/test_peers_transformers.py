"""transformers' peers in processes of their own: the same weights, the same counts, and errors that come through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from folovllm.bench import latency
from folovllm.bench.peers.apart import Apart, PeerSetup
from folovllm.bench.peers.registry import PEERS, InBatches
from folovllm.bench.workload import BenchModel
from tests.helpers import make_hf_folder


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[PeerSetup]:
    model = BenchModel("tiny", str(make_hf_folder(tmp_path, "qwen3")), "auto")
    made = PeerSetup(model, "float32", "cpu", 64, 3, 2)
    with made.cleanup:
        yield made


@pytest.mark.parametrize(
    ("name", "sizes"), [("hf", [1, 2]), pytest.param("hf-continuous", [None], marks=pytest.mark.exhaustive)]
)
def test_each_runs_in_another_process_and_gives_what_was_asked_for(
    name: str, sizes: list[int | None], setup: PeerSetup
) -> None:
    peers = PEERS[name](setup)
    assert [getattr(peer, "batch_size", None) for peer in peers] == sizes
    for peer in peers:
        process = peer._engine if isinstance(peer, InBatches) else peer
        assert isinstance(process, Apart)
        assert peer.name == process.name == name
        assert process.pipe.process.pid != os.getpid()
        run = peer.run([[1, 2, 3], [4], [5, 6]], [3, 1, 2])
        assert run.tokens == 6
        assert run[0].prefill
        assert all(step.seconds > 0 for step in run)
        assert peer.run([[7, 8]], [4]).tokens == 4


def test_latency_runs_its_peer_in_another_process(setup: PeerSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("transformers' model was loaded into this process")

    monkeypatch.setattr("folovllm.model_loader.ModelLoader.load", refuse)
    report = latency.run(
        setup.model, command="c", dtype="float32", peer="hf", device="cpu", input_len=4, output_len=3, rounds=1
    )
    assert [row["engine"] for row in report.rows] == ["folovllm", "hf"]
    assert all(row["tpot_ms"] > 0 for row in report.rows)


@pytest.mark.exhaustive
def test_what_fails_over_there_is_told_here(setup: PeerSetup) -> None:
    (peer, _) = PEERS["hf"](setup)
    with pytest.raises(RuntimeError, match=r"hf failed: IndexError: .*its last words"):
        peer.run([[10**6]], [2])
    setup.model = BenchModel("gone", "/no/such/folder", "auto")
    with pytest.raises(RuntimeError, match=r"hf failed: ModelLoadError: .*no such folder"):
        PEERS["hf"](setup)
