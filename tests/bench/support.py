"""Shared by the benchmarks' tests: a command run as a user does, and the report that it writes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from folovllm.bench.contestant import Contestant, Run, Step
from folovllm.bench.peers import registry
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import InBatches, batch_sizes
from folovllm.bench.peers.workers.hf_engine import Engine
from folovllm.bench.workload import BenchModel
from folovllm.entrypoints.cli.main import main
from workshop.bench.__main__ import MAKERS
from workshop.bench.__main__ import main as makers_main


def here(setup: PeerSetup) -> list[Contestant]:
    """Hugging Face in this process, to save the imports."""
    engine = Local(hf_engine(setup.model, setup.dtype, setup.device))
    return [InBatches(engine, size) for size in batch_sizes(setup)]


def hf_engine(model: BenchModel, dtype: str = "float32", device: str | None = "cpu") -> Engine:
    return Engine(asdict(model), dtype, device)


class Local:
    """An engine file's Engine, asked as through its pipe."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def generate(self, prompts: list[list[int]], num_tokens: list[int], **more: Any) -> tuple[list[list[int]], Run]:
        steps, tokens = self.engine.generate(prompts, num_tokens, **more)
        assert [len(ids) for ids in tokens] == list(num_tokens)
        return tokens, Run(Step(*step) for step in steps)


def run(argv: list[str]) -> int:
    """The exit status of a benchmark, of the command that has it."""
    return makers_main(argv) if argv[0] in MAKERS else main(["bench", *argv])


def bench_report(argv: list[str], path: Path) -> dict[str, Any]:
    """A report that is as the documentation wants it."""
    with mock.patch.dict(registry.PEERS, {"hf": here}):
        assert run([*argv, "--json", str(path)]) == 0
    data: dict[str, Any] = json.loads(path.read_text())
    assert data["name"] == path.stem
    program = "python -m workshop.bench" if argv[0] in MAKERS else "folovllm bench"
    assert data["command"] == f"{program} {' '.join(argv)} --json {path}"
    for row in data["rows"]:
        assert list(row) == data["columns"]
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    return data


def bench(argv: list[str], path: Path) -> list[dict[str, Any]]:
    """The rows of such a report."""
    rows: list[dict[str, Any]] = bench_report(argv, path)["rows"]
    return rows


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that is refused says."""
    assert run(argv) == 2
    return capsys.readouterr().err
