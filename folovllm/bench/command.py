"""`folovllm bench throughput | latency | …`: prints a table; --json keeps all of it.

A benchmark is a file with `add_arguments(command)` and `run(args)`, which returns its Report. Where there is
`check_args(args)`, it is asked first. The file is imported when its name is typed: `folovllm bench --help` and a wrong
name answer without torch.

vLLM: entrypoints/cli/benchmark/main.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from folovllm.bench.options import prepare, show
from folovllm.entrypoints.cli.parser import Parser
from folovllm.entrypoints.cli.recording import add_recording
from folovllm.model_files import resolve_model_path


@dataclass(frozen=True)
class Bench:
    """A benchmark as `bench --help` lists it."""

    module: str
    help: str
    not_traced: str = ""
    """Why --trace has nothing to write down here; empty where a step of an engine in this process is measured."""


NO_ENGINE = "it has no engine with steps to write down: use `folovllm bench throughput --trace FILE`"
BENCHES = {
    "throughput": Bench("folovllm.bench.throughput", "several requests: tokens/s"),
    "latency": Bench("folovllm.bench.latency", "one request at a time: ms per token"),
    "serve-load": Bench("folovllm.bench.serve_load", "an engine or a server under load"),
    "compare": Bench("folovllm.bench.compare", "two results: ratios, and what of them is noise", NO_ENGINE),
    "simulate": Bench("folovllm.simulator.command", "a device, a model and a load that are not here", "it has --trace"),
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
            if model := named.parse_known_args(*args)[0].model:
                resolve_model_path(model, weights=False)  # before torch is imported
            module = import_module(bench.module)
            module.add_arguments(self)
            self.set_defaults(run=lambda given: _run(module, given))
            if not bench.not_traced:
                add_recording(self)
            elif "--trace" not in self._option_string_actions:
                self.add_argument("--trace", metavar="FILE", type=_refused(bench.not_traced), help=argparse.SUPPRESS)
            recorded, check = self.get_default("run"), getattr(module, "check_args", lambda given: None)
            # What is wrong with the options is said before a file of --trace is made.
            self.set_defaults(run=lambda given: check(given) or recorded(given))
        return super().parse_known_args(*args, **kwargs)


def _run(module: Any, args: argparse.Namespace) -> int:
    prepare(args)
    report = module.run(args)
    status = show(args, report)
    for writer in report.traces:
        writer.check_whole()
    return status


def _refused(reason: str) -> Any:
    def refuse(_: str) -> NoReturn:
        raise argparse.ArgumentTypeError(reason)

    return refuse
