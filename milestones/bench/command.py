"""`python -m milestones bench m1 m2 …`: options in; a table, JSON and a chart out."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.bench.lengths import Lengths
from folovllm.bench.neighbours import Neighbours
from milestones.bench.long_prompt import LongPrompt
from milestones.bench.play import start_workers
from milestones.bench.settings import Settings, engine_options, parse_settings
from milestones.bench.workloads import Decode, Requests, SharedPrefix, Workload
from milestones.chain import Course
from milestones.sources import working_tree
from milestones.spec import Milestone, MilestoneError

if TYPE_CHECKING:
    from folovllm.bench.report import Report

FIRST = 1  # the first milestone that has an engine
DEFAULT_SHAPE = "qwen3-mini"
USUAL_NUM_SEQS = 256  # what SchedulerConfig has when nothing is said
SWEEPS = {"sweep_budget": "max_num_batched_tokens", "sweep_threshold": "long_prefill_token_threshold"}
# A workload -> its own options and their defaults. An option of another workload is refused, not ignored.
WORKLOADS: dict[str, dict[str, Any]] = {
    "requests": {
        "requests": 32, "prompt_len": (16, 256), "output_len": (16, 256), "max_model_len": None, "kv_tokens": None,
    },
    "decode": {"batch": [1, 8, 64], "context": 128, "steps": 32, "dtype": "float32"},
    "long-prompt": {
        "decodes": 8, "long_len": 2000, "new_tokens": 128, "shorts": 0, "sweep_budget": None, "sweep_threshold": None,
        "dtype": "float32",
    },
    "shared-prefix": {"prefix": 1000, "suffix": 20, "prompts": 6, "new_tokens": 8, "dtype": "float32"},
}  # fmt: skip
# A cold request and a warm one; a gap between two tokens; a threshold of 0 is none, and there may be no short prompts.
AT_LEAST = {"prompts": 2, "new_tokens": 2, "sweep_threshold": 0, "shorts": 0}
HELP = {
    "requests": "all there at the start (default: 32)",
    "prompt_len": "prompt tokens, uniform (default: 16 256)",
    "output_len": "new tokens, uniform (default: 16 256)",
    "max_model_len": "of every engine (default: as long as the longest request)",
    "kv_tokens": "give every milestone a KV cache of as many tokens: slots in m2, blocks from m3 on",
    "batch": "sequences at a time (default: 1 8 64)",
    "context": "tokens of each prompt (default: 128)",
    "steps": "measured steps of a round (default: 32)",
    "decodes": "requests that decode steadily (default: 8)",
    "long_len": "tokens of the prompt that arrives (default: 2000)",
    "sweep_budget": "one milestone with each of these max_num_batched_tokens, instead of several milestones",
    "sweep_threshold": "the same with long_prefill_token_threshold; none is the default, shares",
    "shorts": "short prompts right behind the long one (default: 0)",
    "prefix": "tokens that the prompts share (default: 1000)",
    "suffix": "tokens that are each prompt's own (default: 20)",
    "prompts": "requests of a round, one after another (default: 6)",
    "new_tokens": "tokens that a request generates (default: 128 for long-prompt, 8 for shared-prefix)",
    "dtype": "float32 (the default) is where the milestones must give the same tokens",
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Those of a workload have None for "not given", so that settle() can tell."""
    command.add_argument("milestones", metavar="mK", nargs="+", help="the others are compared with the first one")
    group = command.add_mutually_exclusive_group()
    text = "a local folder, a hub id, or 'embedded' (the default of --workload requests)"
    group.add_argument("--model", help=text)
    text = f"random weights of this shape instead, such as qwen3-0.6b (default of the other workloads: {DEFAULT_SHAPE})"
    group.add_argument("--shape", help=text)
    text = (
        "requests: all at once, tokens/s (the default). decode: the time of a step. long-prompt: a prompt arrives "
        "among steady decodes, the worst gap between tokens. shared-prefix: one request after another, the time to "
        "first token"
    )
    command.add_argument("--workload", choices=list(WORKLOADS), default="requests", help=text)
    for name, text in HELP.items():
        users = [workload for workload, own in WORKLOADS.items() if name in own]
        more: dict[str, Any] = {"type": int_or_none, "metavar": "N"}
        if name in ("batch", *SWEEPS):
            more["nargs"] = "+"
        elif name in ("prompt_len", "output_len"):
            more |= {"nargs": 2, "metavar": ("MIN", "MAX")}
        elif name == "dtype":
            more = {"choices": ["float32", "bfloat16", "float16"]}
        command.add_argument("--" + flag(name), help=f"{' and '.join(users)}: {text}", **more)
    text = "an engine option of one milestone, such as m2.max_num_seqs=8; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="mK.FIELD=VALUE", dest="settings", help=text)
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    text = "CPU threads (default: torch's own choice, 1 for the embedded model)"
    command.add_argument("--threads", type=int, metavar="N", help=text)
    command.add_argument("--json", metavar="PATH", type=Path, help="write the result here")
    command.add_argument("--plot", metavar="PATH.svg", type=Path, help="draw it")


def int_or_none(text: str) -> int | None:
    return None if text == "none" else int(text)


def flag(name: str) -> str:
    return name.replace("_", "-")


def settle(args: argparse.Namespace) -> None:
    """Give the workload's options that were not given their defaults.

    Raises:
        MilestoneError: an option of another workload, or a number that is too small.
    """
    own = WORKLOADS[args.workload]
    for name in HELP:
        given = getattr(args, name)
        if name not in own and given is not None:
            owners = [workload for workload, options in WORKLOADS.items() if name in options]
            raise MilestoneError(
                f"{flag(name)} must not be given with --workload {args.workload}: it is for {' and '.join(owners)}"
            )
        if given is None:
            setattr(args, name, own.get(name))
        least = AT_LEAST.get(name, 1)
        for number in given if isinstance(given, list) else [given]:
            if isinstance(number, int) and number < least and name not in ("requests", "prompt_len", "output_len"):
                raise MilestoneError(f"{flag(name)} must be at least {least}, got {number}")


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
    settle(args)
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


def check_milestones(course: Course, names: Sequence[str]) -> list[Milestone]:
    chosen = [course.get(name) for name in names]
    if len({m.id for m in chosen}) < len(chosen):
        raise MilestoneError(f"each milestone once, got {' '.join(names)}")
    for milestone in chosen:
        if milestone.number < FIRST:
            raise MilestoneError(f"{milestone.id} has no engine to measure; m{FIRST} is the first that has")
    return chosen


def make(args: argparse.Namespace, names: dict[str, str], swept_field: str, swept: dict[str, int | None]) -> Workload:
    """`names`: an engine's name -> its milestone."""
    if args.workload == "requests":
        lengths = Lengths.uniform(args.requests, tuple(args.prompt_len), tuple(args.output_len))
        longest = args.max_model_len or lengths.longest
        if longest < lengths.longest:
            text = f"max-model-len must be at least {lengths.longest}, the longest request, got {longest}"
            raise MilestoneError(text)
        return Requests(lengths, longest)
    if args.workload == "decode":
        return Decode(args.batch, args.context, args.steps, args.dtype)
    if args.workload == "long-prompt":
        numbers = (args.decodes, args.long_len, args.new_tokens)
        return LongPrompt(names, *numbers, args.dtype, args.shorts, swept_field, swept)
    return SharedPrefix(args.prefix, args.suffix, args.prompts, args.new_tokens, args.dtype)


def measure(root: Path, args: argparse.Namespace) -> tuple[Report, Callable[[], str]]:
    """The report, and what draws it."""
    course = Course.load(working_tree(root))
    chosen = check_milestones(course, args.milestones)
    settings = parse_settings(args.settings, [m.id for m in chosen])
    swept_field, swept = sweep(args, chosen, settings)
    names = dict.fromkeys(swept, chosen[0].id) or {m.id: m.id for m in chosen}
    workload = make(args, names, swept_field, swept)

    from folovllm.bench.options import settle_threads
    from folovllm.bench.report import Report, medians
    from folovllm.bench.shapes import SHAPES
    from folovllm.bench.workload import bench_model, progress_bar, vocab_size

    if args.shape is not None and args.shape not in SHAPES:
        raise MilestoneError(f"shape must be one of {', '.join(SHAPES)}, got {args.shape!r}")
    name = args.model or ("embedded" if args.workload == "requests" and args.shape is None else None)
    settle_threads(args.threads, name)
    with bench_model(name, args.shape or DEFAULT_SHAPE) as model:
        # float32 is where a batch's tokens and a single sequence's agree.
        common = {"model": model.path, "load_format": model.load_format, "dtype": args.dtype or "float32"}
        common |= {"max_model_len": workload.max_model_len, "skip_tokenizer_init": True}
        if workload.num_seqs > USUAL_NUM_SEQS:
            common["max_num_seqs"] = workload.num_seqs
        engines = {
            engine: (milestone, engine_options(args, course.get(milestone), common | set_, settings[milestone]))
            for engine, milestone in names.items()
            for set_ in ([{swept_field: swept[engine]}] if swept else [{}])
        }
        total = len(engines) * (1 + (args.rounds + 1) * workload.plays)
        with progress_bar(total) as tick, start_workers(course, engines, args.threads, tick) as workers:
            vocab = vocab_size(model)
            for number in range(args.rounds + 1):
                label = f"round {number}/{args.rounds}" if number else "warm-up"
                workload.play_round(workers, number, vocab, prefixed(tick, label))
    said = {name: {k: v for k, v in options.items() if k != "model"} for name, (_, options) in engines.items()}
    title = f"{workload.title}, {model.label}"
    notes = [
        *workload.notes(),
        f"{medians(args.rounds, 'round')} after a warm-up; a process for each engine, in turn; greedy, "
        f"{common['dtype']}; token ids uniform, seeds fixed, others in each round. same_tokens: the share of tokens "
        "that are the first's.",
        f"max_model_len {workload.max_model_len}{own_options(said, common, swept_field)}.",
    ]
    command = shlex.join(["python", "-m", "milestones", *args.words])
    rows = [{column: row[column] for column in workload.columns} for row in workload.rows()]
    details = {"workload": args.workload, "model": model.label, "engines": said, **workload.details()}
    report = Report("milestones", title, command, workload.columns, rows, notes, details=details)
    return report, lambda: workload.draw(title)


def prefixed(tick: Callable[[str], None], label: str) -> Callable[[str], None]:
    return lambda text: tick(f"{label}, {text}")


def sweep(args: argparse.Namespace, chosen: list[Milestone], settings: Settings) -> tuple[str, dict[str, int | None]]:
    """The field that is swept, and an engine's name -> its value; empty without a sweep."""
    given = [name for name in SWEEPS if getattr(args, name, None)]
    if not given:
        return "", {}
    option, swept, values = flag(given[0]), SWEEPS[given[0]], getattr(args, given[0])
    if len(given) > 1:
        raise MilestoneError("sweep-budget and sweep-threshold must not be given together")
    if len(chosen) != 1:
        raise MilestoneError(f"{option} must be given with one milestone, got {' '.join(m.id for m in chosen)}")
    if swept in settings[chosen[0].id]:
        raise MilestoneError(f"--set must leave {swept} alone: {option} sets it")
    if len(set(values)) < len(values):
        noun = option.removeprefix("sweep-")
        raise MilestoneError(f"{option} must name each {noun} once, got {' '.join(map(str, values))}")
    return swept, {f"{chosen[0].id} with {value if value is None else f'{value:,}'}": value for value in values}


def own_options(said: Settings, common: dict[str, Any], swept_field: str) -> str:
    """What is particular to an engine; of a sweep's engines the table says it."""
    parts = []
    for name, options in said.items():
        own = [f"{key}={value}" for key, value in options.items() if common.get(key) != value and key != swept_field]
        parts += [f"; {name} with {', '.join(own)}"] if own else []
    return "".join(parts)
