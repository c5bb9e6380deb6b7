"""`folovllm bench throughput | latency | …`: prints a table; --json keeps all of it.

A benchmark is a file with `add_arguments(command)` and `run(args)`, which returns its Report. The file is imported when
its name is typed: `folovllm bench --help` and a wrong name answer without torch.

vLLM: entrypoints/cli/benchmark/main.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from folovllm.bench.options import prepare, show
from folovllm.entrypoints.cli.parser import Parser
from folovllm.entrypoints.cli.recording import add_recording
from folovllm.model_loader.model_files import resolve_model_path


@dataclass(frozen=True)
class Bench:
    """A benchmark as `bench --help` lists it."""

    module: str
    help: str
    traced: bool = True
    """Whether an engine in this process is measured, so that --trace has steps to write down."""


BENCHES = {
    "throughput": Bench("folovllm.bench.throughput", "several requests: tokens/s"),
    "latency": Bench("folovllm.bench.latency", "one request at a time: ms per token"),
    "serve": Bench("folovllm.bench.serve", "a server under load", traced=False),
    "simulate": Bench("folovllm.simulator.command", "a device, a model and a load that are not here", traced=False),
}


def add_parser(commands: Any) -> None:
    text = "measure speed and memory"
    add_benches(commands.add_parser("bench", help=text, description="Measure the engine."), BENCHES)


def add_benches(parser: argparse.ArgumentParser, benches: Mapping[str, Bench]) -> None:
    kinds = parser.add_subparsers(dest="bench", metavar="BENCH", required=True, parser_class=_BenchParser)
    for name, bench in benches.items():
        kinds.add_parser(name, help=bench.help, bench=bench)


class _BenchParser(Parser):
    """Gets its options when it is the one that was typed."""

    def __init__(self, *, bench: Bench, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._bench: Bench | None = bench

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        bench, self._bench = self._bench, None
        if bench is not None:
            named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            named.add_argument("--model")
            if bench.traced and (model := named.parse_known_args(*args)[0].model):
                resolve_model_path(model, weights=False)  # that engine's, before torch is imported
            module = import_module(bench.module)
            module.add_arguments(self)
            self.set_defaults(run=lambda given: _run(module, given))
            if bench.traced:
                add_recording(self)
        return super().parse_known_args(*args, **kwargs)


def _run(module: Any, args: argparse.Namespace) -> int:
    prepare(args)
    report = module.run(args)
    status = show(args, report)
    for writer in report.traces:
        writer.check_whole()
    return status
