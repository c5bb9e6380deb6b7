"""`python -m milestones bench m1 m2 …`: options in; a table, JSON and a chart out."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.bench.lengths import Lengths
from folovllm.bench.neighbours import Neighbours
from milestones.bench import charts, options, requests, workloads
from milestones.bench.settings import Settings, engine_options, parse_settings
from milestones.chain import Course
from milestones.sources import working_tree
from milestones.spec import Milestone, MilestoneError

if TYPE_CHECKING:
    from folovllm.bench.report import Report


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("milestones", metavar="mK", nargs="+", help="the others are compared with the first one")
    group = command.add_mutually_exclusive_group()
    text = "a local folder, a hub id, or 'embedded' (the default of --workload requests)"
    group.add_argument("--model", help=text)
    text = "random weights of this shape instead, such as qwen3-0.6b (default of the other workloads: qwen3-mini)"
    group.add_argument("--shape", help=text)
    options.add_workload_options(command)
    text = "an engine option of one milestone, such as m2.max_num_seqs=8; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="mK.FIELD=VALUE", dest="settings", help=text)
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    command.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: torch's own choice, 1 for the embedded model)"
    )
    command.add_argument("--json", metavar="PATH", type=Path, help="write the result here")
    command.add_argument("--plot", metavar="PATH.svg", type=Path, help="draw it")


def run(root: Path, args: argparse.Namespace) -> int:
    """Needs the working tree's own folovllm, for the shape of the report; not for the engines."""
    for option in ("json", "plot"):
        path = getattr(args, option)
        if path is not None and path.is_dir():
            raise MilestoneError(f"{option} must be a file, got {path}, which is a folder")
        if path is not None and not path.parent.is_dir():
            raise MilestoneError(f"{option} must be in an existing folder, got {path}")
    for option in ("rounds", "threads"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise MilestoneError(f"{option} must be at least 1, got {value}")
    options.settle(args)
    neighbours = Neighbours()
    try:
        report, svg = measure(root, args)
    except (ValueError, OSError) as error:  # what the package says of a model or a shape is one line already
        raise MilestoneError(str(error)) from error
    report.other_load = neighbours.look()
    from folovllm.entrypoints.cli.console import PlainConsole
    from folovllm.utils.named_files import writing

    report.show(PlainConsole())
    try:
        if args.json is not None:
            report.name = args.json.stem
            report.save(args.json)
            print(f"written: {args.json}", file=sys.stderr)
        if args.plot is not None:
            with writing("plot", args.plot) as file:
                file.write(svg())
            print(f"written: {args.plot}", file=sys.stderr)
    except ValueError as error:  # the disk is full: what was measured has been shown
        raise MilestoneError(str(error)) from error
    return 0


def measure(root: Path, args: argparse.Namespace) -> tuple[Report, Callable[[], str]]:
    """The report, and what draws it."""
    course = Course.load(working_tree(root))
    chosen = requests.check_milestones(course, args.milestones)
    settings = parse_settings(args.settings, [m.id for m in chosen])
    if args.workload != "requests":
        return workloads.measure(course, chosen, settings, args)
    report = measure_requests(course, chosen, settings, args)
    return report, lambda: charts.draw_requests(report.as_dict())


def measure_requests(course: Course, chosen: list[Milestone], settings: Settings, args: argparse.Namespace) -> Report:
    lengths = Lengths.uniform(args.requests, tuple(args.prompt_len), tuple(args.output_len))
    max_model_len = args.max_model_len or lengths.longest
    if max_model_len < lengths.longest:
        raise MilestoneError(
            f"max-model-len must be at least {lengths.longest}, the longest request, got {max_model_len}"
        )
    name = args.model or (None if args.shape else "embedded")

    from folovllm.bench.options import settle_threads
    from folovllm.bench.report import Report, medians
    from folovllm.bench.workload import bench_model, progress_bar, vocab_size

    settle_threads(args.threads, name)

    options.check_shape(args.shape)
    with bench_model(name, args.shape or "") as model:
        common = workloads.engine_common(model, max_model_len)
        engines = engine_options(chosen, common, settings, kv_tokens=args.kv_tokens, num_requests=args.requests)
        with progress_bar(len(chosen) * (args.rounds + 2)) as tick:
            results = requests.measure(
                course, engines, lengths, vocab_size(model), rounds=args.rounds, threads=args.threads, tick=tick
            )
    notes = [
        f"{lengths.describe()}; lengths and token ids uniform, seeds fixed, other ids in each round.",
        f"{medians(args.rounds, 'round')} after a warm-up; a process for each milestone's tree, in turn.",
        "Greedy, float32; all milestones gave the same tokens in every round.",
        f"max_model_len {max_model_len}{describe_limits(args.kv_tokens, engines, common)}.",
        "running_seqs: the most at once. kv: the cache's tokens when most of them were used; – where the milestone "
        "keeps no statistics.",
    ]
    command = shlex.join(["python", "-m", "milestones", *args.words])
    rows = requests.make_rows(results, lengths)
    return Report("milestones", f"Milestones, {model.label}", command, requests.COLUMNS, rows, notes)


def describe_limits(kv_tokens: int | None, engines: Settings, common: dict[str, Any]) -> str:
    parts = [] if kv_tokens is None else [f"a KV cache of {kv_tokens} tokens"]
    for name, engine in engines.items():
        own = [f"{field}={value}" for field, value in engine.items() if common.get(field) != value]
        parts += [f"{name} with {', '.join(own)}"] if own else []
    return "".join(f"; {part}" for part in parts)
