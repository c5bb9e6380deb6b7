"""The workloads that watch each token's time: decode, long-prompt and shared-prefix, from options to a report.

Each is a class with what to play in a round and how to make rows of what came back; here is what they have in common:
an engine in a process of its own for each milestone (or for each budget of a sweep), rounds in turn, one report.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from milestones.bench.decode import DecodeWorkload
from milestones.bench.long_prompt import LongPromptWorkload
from milestones.bench.options import check_shape
from milestones.bench.process import Worker
from milestones.bench.requests import start_workers
from milestones.bench.settings import Settings
from milestones.bench.shared_prefix import PrefixWorkload
from milestones.chain import Course
from milestones.spec import Milestone, MilestoneError

if TYPE_CHECKING:
    from folovllm.bench.report import Report
    from folovllm.bench.workload import BenchModel

DEFAULT_SHAPE = "qwen3-mini"
USUAL_NUM_SEQS = 256  # what SchedulerConfig has when nothing is said


class Workload(Protocol):
    """One kind of measurement, and what its rounds have brought so far. Round 0 is not counted."""

    @property
    def columns(self) -> list[str]: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def num_seqs(self) -> int: ...
    @property
    def plays(self) -> int: ...

    def play_round(
        self, workers: Sequence[Worker], number: int, vocab_size: int, tick: Callable[[str], None]
    ) -> None: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def notes(self) -> list[str]: ...
    def details(self) -> dict[str, Any]: ...
    def draw(self, title: str) -> str: ...


TITLES = {
    "decode": "Decode steps",
    "long-prompt": "A long prompt among decodes",
    "shared-prefix": "Prompts that begin alike",
}


def make(args: argparse.Namespace, names: dict[str, str], field: str, swept: dict[str, int | None]) -> Workload:
    """`names`: an engine's name -> its milestone."""
    if args.workload == "decode":
        return DecodeWorkload(args.batch, args.context, args.steps, args.dtype)
    if args.workload == "long-prompt":
        numbers = (args.decodes, args.long_len, args.new_tokens)
        return LongPromptWorkload(names, *numbers, args.dtype, args.shorts, field, swept)
    return PrefixWorkload(args.prefix, args.suffix, args.prompts, args.new_tokens, args.dtype)


def measure(
    course: Course, chosen: list[Milestone], settings: Settings, args: argparse.Namespace
) -> tuple[Report, Callable[[], str]]:
    """The report, and what draws it."""
    check_shape(args.shape)
    swept_field, swept = sweep(args, chosen, settings)
    names = dict.fromkeys(swept, chosen[0].id) or {m.id: m.id for m in chosen}
    workload = make(args, names, swept_field, swept)

    from folovllm.bench.options import settle_threads
    from folovllm.bench.report import Report, counted
    from folovllm.bench.workload import bench_model, progress_bar, vocab_size

    settle_threads(args.threads, args.model)

    with bench_model(args.model, args.shape or DEFAULT_SHAPE) as model:
        common = engine_common(model, workload.max_model_len, args.dtype)
        if workload.num_seqs > USUAL_NUM_SEQS:
            common["max_num_seqs"] = workload.num_seqs
        engines = {}
        for name, milestone in names.items():
            own = {swept_field: swept[name]} if swept else {}
            engines[name] = (milestone, common | own | settings[milestone])
        total = len(engines) * (1 + (args.rounds + 1) * workload.plays)
        with progress_bar(total) as tick, start_workers(course, engines, args.threads, tick) as workers:
            vocab = vocab_size(model)
            for number in range(args.rounds + 1):
                label = f"round {number}/{args.rounds}" if number else "warm-up"
                workload.play_round(workers, number, vocab, prefixed(tick, label))
    said = {name: {k: v for k, v in options.items() if k != "model"} for name, (_, options) in engines.items()}
    title = f"{TITLES[args.workload]}, {model.label}"
    notes = [
        *workload.notes(),
        f"{counted(args.rounds, 'round')} after a warm-up; a process for each engine, in turn; greedy, {args.dtype}; "
        "token ids uniform, seeds fixed, others in each round. same_tokens: the share of tokens that are the first's.",
        f"max_model_len {workload.max_model_len}{own_options(said, common)}.",
    ]
    command = shlex.join(["python", "-m", "milestones", *args.words])
    rows = [{column: row[column] for column in workload.columns} for row in workload.rows()]
    details = {"workload": args.workload, "model": model.label, "engines": said, **workload.details()}
    report = Report("milestones", title, command, workload.columns, rows, notes, details=details)
    return report, lambda: workload.draw(title)


def prefixed(tick: Callable[[str], None], label: str) -> Callable[[str], None]:
    return lambda text: tick(f"{label}, {text}")


SWEEPS = {"sweep_budget": "max_num_batched_tokens", "sweep_threshold": "long_prefill_token_threshold"}


def sweep(args: argparse.Namespace, chosen: list[Milestone], settings: Settings) -> tuple[str, dict[str, int | None]]:
    """The field that is swept, and an engine's name -> its value; empty without a sweep."""
    given = [name for name in SWEEPS if getattr(args, name, None)]
    if not given:
        return "", {}
    option, field, values = given[0].replace("_", "-"), SWEEPS[given[0]], getattr(args, given[0])
    if len(given) > 1:
        raise MilestoneError("sweep-budget and sweep-threshold must not be given together")
    if len(chosen) != 1:
        raise MilestoneError(f"{option} must be given with one milestone, got {' '.join(m.id for m in chosen)}")
    if field in settings[chosen[0].id]:
        raise MilestoneError(f"--set must leave {field} alone: {option} sets it")
    if len(set(values)) < len(values):
        noun = option.removeprefix("sweep-")
        raise MilestoneError(f"{option} must name each {noun} once, got {' '.join(map(str, values))}")
    return field, {f"{chosen[0].id} with {value if value is None else f'{value:,}'}": value for value in values}


def own_options(said: Settings, common: dict[str, Any]) -> str:
    """What --set gave to whom; of a sweep's engines, which all have the same, nothing: the table says it."""
    parts = []
    for name, options in said.items():
        own = [f"{field}={value}" for field, value in options.items() if common.get(field) != value]
        parts += [f"; {name} with {', '.join(own)}"] if own else []
    return "".join(parts)


def engine_common(model: BenchModel, max_model_len: int, dtype: str = "float32") -> dict[str, Any]:
    """float32 is where a batch's tokens and a single sequence's agree."""
    return {
        "model": model.path,
        "load_format": model.load_format,
        "dtype": dtype,
        "max_model_len": max_model_len,
        "skip_tokenizer_init": True,
    }
