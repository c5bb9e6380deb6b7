"""`python -m milestones bench m1 m2 …`: options in; a table and JSON out."""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milestones.bench.long_prompt import LongPrompt
from milestones.bench.play import start_workers
from milestones.bench.workloads import Decode, Lengths, Requests, SharedPrefix, Workload
from milestones.chain import Course
from milestones.sources import working_tree
from milestones.spec import Milestone, MilestoneError

if TYPE_CHECKING:
    from folovllm.bench.report import Report

FIRST = 1  # the first milestone that has an engine
DEFAULT_SHAPE = "qwen3-mini"
USUAL_NUM_SEQS = 256  # what SchedulerConfig has when nothing is said
BLOCK_SIZE = 16  # tokens; what CacheConfig has when nothing is said
SWEEPS = {"sweep_budget": "max_num_batched_tokens", "sweep_threshold": "long_prefill_token_threshold"}
WORKLOADS = {
    "requests": "all at once, tokens/s (the default)",
    "decode": "the time of a step",
    "long-prompt": "a prompt arrives among steady decodes, the worst gap between tokens",
    "shared-prefix": "one request after another, the time to first token",
}
# An option -> its default in each workload that has it, and what it is. One of another workload is refused.
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "requests": ({"requests": 32}, "all there at the start (default: 32)"),
    "prompt_len": ({"requests": [16, 256]}, "prompt tokens, uniform (default: 16 256)"),
    "output_len": ({"requests": [16, 256]}, "new tokens, uniform (default: 16 256)"),
    "max_model_len": ({"requests": None}, "of every engine (default: as long as the longest request)"),
    "kv_tokens": ({"requests": None}, "a KV cache of as many tokens for every milestone: slots in m2, then blocks"),
    "batch": ({"decode": [1, 8, 64]}, "sequences at a time (default: 1 8 64)"),
    "context": ({"decode": 128}, "tokens of each prompt (default: 128)"),
    "steps": ({"decode": 32}, "measured steps of a round (default: 32)"),
    "decodes": ({"long-prompt": 8}, "requests that decode steadily (default: 8)"),
    "long_len": ({"long-prompt": 2000}, "tokens of the prompt that arrives (default: 2000)"),
    "shorts": ({"long-prompt": 0}, "short prompts right behind the long one (default: 0)"),
    "sweep_budget": ({"long-prompt": None}, "one milestone with each of these max_num_batched_tokens"),
    "sweep_threshold": ({"long-prompt": None}, "the same with long_prefill_token_threshold; none is the default"),
    "prefix": ({"shared-prefix": 1000}, "tokens that the prompts share (default: 1000)"),
    "suffix": ({"shared-prefix": 20}, "tokens that differ in each prompt (default: 20)"),
    "prompts": ({"shared-prefix": 6}, "requests of a round, one after another (default: 6)"),
    "new_tokens": ({"long-prompt": 128, "shared-prefix": 8}, "tokens that a request generates (default: 128 and 8)"),
    "dtype": (
        dict.fromkeys(("decode", "long-prompt", "shared-prefix"), "float32"),
        "float32 (the default) is where the milestones must give the same tokens",
    ),
}  # fmt: skip
# A cold request and a warm one; a gap between two tokens; a threshold of 0 is none, and there may be no short prompts.
AT_LEAST = {"prompts": 2, "new_tokens": 2, "sweep_threshold": 0, "shorts": 0}


def add_options(command: argparse.ArgumentParser) -> None:
    """Those of a workload have None for "not given", so that settle() knows."""
    command.add_argument("milestones", metavar="mK", nargs="+", help="the others are compared with the first one")
    group = command.add_mutually_exclusive_group()
    text = "a local folder, a hub id, or 'embedded' (the default of --workload requests)"
    group.add_argument("--model", help=text)
    text = f"random weights of this shape instead, such as qwen3-0.6b (default of the other workloads: {DEFAULT_SHAPE})"
    group.add_argument("--shape", help=text)
    text = "; ".join(f"{name}: {what}" for name, what in WORKLOADS.items())
    command.add_argument("--workload", choices=list(WORKLOADS), default="requests", help=text)
    for name, (defaults, text) in OPTIONS.items():
        more: dict[str, Any] = {"type": int_or_none, "metavar": "N"}
        if name in ("batch", *SWEEPS):
            more["nargs"] = "+"
        elif name in ("prompt_len", "output_len"):
            more |= {"nargs": 2, "metavar": ("MIN", "MAX")}
        elif name == "dtype":
            more = {"choices": ["float32", "bfloat16", "float16"]}
        command.add_argument("--" + flag(name), help=f"{' and '.join(defaults)}: {text}", **more)
    text = "an engine option of one milestone, such as m2.max_num_seqs=1, to see what it is worth; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="mK.FIELD=VALUE", dest="settings", help=text)
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    text = "CPU threads (default: torch's own choice, 1 for the embedded model)"
    command.add_argument("--threads", type=int, metavar="N", help=text)
    command.add_argument("--json", metavar="PATH", help="write the result here; - prints it, and no table")


def int_or_none(text: str) -> int | None:
    return None if text == "none" else int(text)


def parse_settings(texts: Sequence[str], milestones: Collection[str]) -> dict[str, dict[str, Any]]:
    """`m3.block_size=64` -> {"m3": {"block_size": 64}}; what TOML does not read as a value is text."""
    settings: dict[str, dict[str, Any]] = {name: {} for name in milestones}
    for text in texts:
        place, _, value = text.partition("=")
        name, _, field = place.partition(".")
        if not (field and value):
            raise MilestoneError(f"set must be mK.field=value, got {text!r}")
        if name not in settings:
            raise MilestoneError(f"set must name one of {', '.join(milestones)}, got {text!r}")
        try:
            settings[name][field] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name][field] = value
    return settings


def flag(name: str) -> str:
    return name.replace("_", "-")


def settle(args: argparse.Namespace) -> None:
    """Give the workload's options that were not given their defaults.

    Raises:
        MilestoneError: an option of another workload, or a number that is too small.
    """
    for name, (defaults, _) in OPTIONS.items():
        if args.workload not in defaults and getattr(args, name) is not None:
            raise MilestoneError(
                f"{flag(name)} must not be given with --workload {args.workload}: it is for {' and '.join(defaults)}"
            )
        if getattr(args, name) is None:
            setattr(args, name, defaults.get(args.workload))
    for name in (*OPTIONS, "rounds", "threads"):
        given, least = getattr(args, name), AT_LEAST.get(name, 1)
        for number in given if isinstance(given, list) else [given]:
            if isinstance(number, int) and number < least:
                raise MilestoneError(f"{flag(name)} must be at least {least}, got {number}")


def run(root: Path, args: argparse.Namespace) -> int:
    """Needs the working tree's own folovllm, for the shape of the report; not for the engines."""
    settle(args)
    course = Course.load(working_tree(root))
    chosen = check_milestones(course, args.milestones)
    args.settings = parse_settings(args.settings, [m.id for m in chosen])
    swept_field, swept = sweep(args, chosen)
    names = dict.fromkeys(swept, chosen[0].id) or {m.id: m.id for m in chosen}
    workload = make(args, names, swept_field, swept)
    if args.model is None and args.shape is None and args.workload == "requests":
        args.model = "embedded"
    from folovllm.bench.options import prepare, show

    try:  # what the package says of a model, a shape or a file is one line already
        prepare(args)
        return show(args, measure(course, args, names, swept_field, swept, workload))
    except (ValueError, OSError) as error:
        raise MilestoneError(str(error)) from error


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
        try:
            lengths = Lengths.uniform(args.requests, tuple(args.prompt_len), tuple(args.output_len))
        except ValueError as error:
            raise MilestoneError(str(error)) from error
        longest = args.max_model_len or lengths.longest
        if longest < lengths.longest:
            text = f"max-model-len must be at least {lengths.longest}, the longest request, got {longest}"
            raise MilestoneError(text)
        return Requests("float32", lengths, longest)
    if args.workload == "decode":
        return Decode(args.dtype, args.batch, args.context, args.steps)
    if args.workload == "long-prompt":
        numbers = (args.decodes, args.long_len, args.new_tokens, args.shorts)
        return LongPrompt(args.dtype, names, *numbers, swept_field, swept)
    return SharedPrefix(args.dtype, args.prefix, args.suffix, args.prompts, args.new_tokens)


def measure(
    course: Course, args: argparse.Namespace, names: dict[str, str], swept_field: str, swept: dict[str, int | None],
    workload: Workload,
) -> Report:  # fmt: skip
    from folovllm.bench.report import Report, medians
    from folovllm.bench.shapes import SHAPES
    from folovllm.bench.workload import bench_model, progress_bar, vocab_size

    if args.shape is not None and args.shape not in SHAPES:
        raise MilestoneError(f"shape must be one of {', '.join(SHAPES)}, got {args.shape!r}")
    with bench_model(args.model, args.shape or DEFAULT_SHAPE) as model:
        # float32 is where a batch's tokens and a single sequence's agree.
        common: dict[str, Any] = {"model": model.path, "load_format": model.load_format, "dtype": workload.dtype}
        common |= {"max_model_len": workload.max_model_len, "skip_tokenizer_init": True}
        if workload.num_seqs > USUAL_NUM_SEQS:
            common["max_num_seqs"] = workload.num_seqs
        engines: dict[str, tuple[str, dict[str, Any]]] = {}
        for engine, milestone in names.items():
            options = common | ({swept_field: swept[engine]} if swept else {})
            if args.kv_tokens is not None:
                number, longest = course.get(milestone).number, workload.max_model_len
                block_size = args.settings[milestone].get("block_size", BLOCK_SIZE)
                options |= cache_settings(number, args.kv_tokens, longest, args.requests, block_size)
            engines[engine] = milestone, options | args.settings[milestone]
        total = len(engines) * (1 + (args.rounds + 1) * workload.plays)
        with progress_bar(total) as tick, start_workers(course, engines, args.threads, tick) as workers:
            vocab = vocab_size(model)
            for number in range(args.rounds + 1):
                label = f"round {number}/{args.rounds}" if number else "warm-up"
                workload.play_round(workers, number, vocab, prefixed(tick, label))
    said = {name: {k: v for k, v in options.items() if k != "model"} for name, (_, options) in engines.items()}
    notes = [
        *workload.notes(),
        f"{medians(args.rounds, 'round')} after a warm-up; a process for each engine, in turn; greedy, "
        f"{workload.dtype}; token ids uniform, seeds fixed, others in each round. same_tokens: the share of tokens "
        "that are the first's.",
        f"max_model_len {workload.max_model_len}{cache_notes(said, common, swept_field)}.",
    ]
    details: dict[str, Any] = {"workload": args.workload, "model": model.label, "engines": said}
    if isinstance(workload, LongPrompt):
        details["gaps"] = {name: workload.picture(name) for name in names}
    command = shlex.join(["python", "-m", "milestones", *args.words])
    title, columns = f"{workload.title}, {model.label}", list(workload.columns)
    return Report("milestones", title, command, columns, workload.rows(), notes, details=details)


def prefixed(tick: Callable[[str], None], label: str) -> Callable[[str], None]:
    return lambda text: tick(f"{label}, {text}")


def cache_settings(
    number: int, kv_tokens: int, max_model_len: int, num_requests: int, block_size: int = BLOCK_SIZE
) -> dict[str, Any]:
    """How milestone `number` gets a KV cache with room for `kv_tokens` tokens, and for no more.

    m1 runs one sequence at a time and has room for that one, whatever is said. m2 reserves max_model_len for each
    sequence. From m3 on the cache is made of blocks, and the number of sequences is no limit.
    """
    if kv_tokens < max_model_len:
        raise MilestoneError(f"kv-tokens must be at least max_model_len ({max_model_len}), got {kv_tokens}")
    if number <= 1:
        return {}
    if number == 2:
        return {"max_num_seqs": kv_tokens // max_model_len}
    return {"num_kv_blocks": kv_tokens // block_size, "block_size": block_size, "max_num_seqs": num_requests}


def sweep(args: argparse.Namespace, chosen: list[Milestone]) -> tuple[str, dict[str, int | None]]:
    """The field that is swept, and an engine's name -> its value; empty without a sweep."""
    given = [name for name in SWEEPS if getattr(args, name)]
    if not given:
        return "", {}
    option, values = flag(given[0]), getattr(args, given[0])
    if len(given) > 1:
        raise MilestoneError("sweep-budget and sweep-threshold must not be given together")
    if len(chosen) != 1:
        raise MilestoneError(f"{option} must be given with one milestone, got {' '.join(m.id for m in chosen)}")
    if len(set(values)) < len(values):
        noun = option.removeprefix("sweep-")
        raise MilestoneError(f"{option} must name each {noun} once, got {' '.join(map(str, values))}")
    swept = {f"{chosen[0].id} with {value if value is None else f'{value:,}'}": value for value in values}
    return SWEEPS[given[0]], swept


def cache_notes(said: dict[str, dict[str, Any]], common: dict[str, Any], swept_field: str) -> str:
    """What is particular to an engine; of a sweep's engines the table says it."""
    parts = []
    for name, options in said.items():
        own = [f"{key}={value}" for key, value in options.items() if common.get(key) != value and key != swept_field]
        parts += [f"; {name} with {', '.join(own)}"] if own else []
    return "".join(parts)
