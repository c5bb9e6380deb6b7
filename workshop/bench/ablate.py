"""Our engine against itself with one thing changed: what is it worth on this machine, and how sure is that?

    round 1   whole  without        round 2   without  whole        ...       one ratio a round, then the next feature
              └── without / whole ──┘

Two engines at a time, in turn, so that a slow minute slows both. What makes the engine fast is left out alone; what
costs something, such as a trace, is added alone. What is left out is left out where it would have been chosen, when an
engine is built, so the rest is the engine that users run. Paging stays: without it there is no engine here. What this
device or model does not have is a row that says why. A part of each prompt is the same for all requests, or there would
be nothing for prefix caching to find.

vLLM: none; its switches are --enforce-eager, --no-async-scheduling, --no-enable-prefix-caching and others
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from folovllm.bench.options import add_common, add_lengths, add_model, add_number, source
from folovllm.bench.report import Line, Report, median_of
from folovllm.bench.runs import FoloVLLM, Run, Work
from folovllm.bench.workload import progress_bar, random_prompts, vocab_size
from folovllm.config import EngineConfig
from folovllm.engine.builder.components import Components, choose_components, select_ops
from folovllm.engine.llm_engine import LLMEngine
from folovllm.layers.ops import LayerOps
from folovllm.models.one_call import OneCallOps
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import attach
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.utils.devices import default_device
from folovllm.worker import cuda_graph
from folovllm.worker.model_runner import current_device
from milestones.bench.spread import in_turn
from workshop.bench.decode import host_seconds
from workshop.bench.presets import PRESETS
from workshop.bench.rounds import keep, take_turns
from workshop.bench.sampler import NaiveSampler

COLUMNS = [
    "feature", "seconds", "seconds_without", "ratio", "low", "high", "sure", "longest_step_ratio", "host_ms",
    "host_ms_without", "verdict",
]  # fmt: skip
WARM_UP = 2  # requests
Played = tuple[Run, float | None]
"""A run, and the seconds of the host in one of its steps; None on a CPU."""


def left_out(names: Sequence[str]) -> tuple[dict[str, Any], list[Callable[[FoloVLLM], object]]]:
    """What an engine has to be given so that it has none of `names`, and what is done to it then.

    Raises:
        ValueError: a name that there is not.
    """
    options: dict[str, Any] = {}
    for name in names:
        if name not in WITHOUT:
            raise ValueError(f"without must be of {', '.join(WITHOUT)}, got {name!r}")
        options |= FEATURES[name].options
    return options, [FEATURES[name].after for name in names]


def _choose_without(
    operations: Sequence[str], config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device,
    *rest: Any,
) -> Components:  # fmt: skip
    """choose_components(), but these operations are torch's, so that the layers are called one by one."""
    parts = choose_components(config, hf_config, dtype, device, *rest)
    ops = select_ops(dtype, device, one_by_one=True, invariant=config.model_config.batch_invariant)
    for name in operations:
        # A field of a dataclass; nothing has been built with it yet.
        setattr(ops, name, getattr(LayerOps(), name, None))
    return replace(parts, ops=ops)


def _choose_without_prompt_graphs(*given: Any) -> Components:
    parts = choose_components(*given)
    backend = type(parts.backend.__name__, (parts.backend,), {"supports_prompt_graphs": False})
    return replace(parts, backend=backend)


def leave_out_draw(engine: LLMEngine) -> None:
    """Let an engine that has no request yet, and a kernel that draws, draw by torch's operators, behind its graphs."""
    engine.runner.sampling.uses_kernel = False
    if (graphs := engine.runner.graphs) is not None:  # which would go on drawing
        graphs.draws = False
        with current_device(engine.device):
            graphs.record()


@dataclass(frozen=True)
class Feature:
    """`options` make the engine without it, or with it where it `adds` something."""

    what: str
    options: dict[str, Any] = field(default_factory=dict)
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Around building and running that engine."""
    after: Callable[[FoloVLLM], object] = lambda engine: None
    """Done to the engine that has been built."""
    adds: bool = False


def missing(name: str, engine: FoloVLLM, device: torch.device) -> str | None:
    """Why this device or this engine does not have the feature; None where it has."""
    if name in ("graphs", "ahead", *KERNELS):
        return f"a CPU has no {FEATURES[name].what}" if device.type != "cuda" else None
    if name == "sampling":
        greedy = engine.sampling["temperature"] == 0 and device.type == "cpu"
        return "greedy requests draw nothing: give --preset gpt2-sampling" if greedy else None
    if name == "few-rows":
        taken = getattr(engine.engine.runner.model.model.ops, "most_rows", 0)
        return None if taken else "this model's products are not ours on this device"
    if name == "fusing":
        return unavailable_reason() if device.type == "cpu" else None
    if name in ("one-call", "kernels", "threads"):
        if device.type != "cpu":
            return "it is for CPUs"
        if name == "kernels":
            return unavailable_reason()
        if name == "threads":
            return None if torch.get_num_threads() > 1 else "there is one thread anyway"
        one_call = isinstance(engine.engine.runner.model.model.ops, OneCallOps)
        return None if one_call else "no compiled kernels run all of this model's layers here"
    return None


def _draw_naively(contestant: FoloVLLM) -> None:
    """As sampling is first written, over the whole vocabulary; on a GPU by torch's operators, behind its graphs."""
    if contestant.engine.runner.sampling.uses_kernel:
        leave_out_draw(contestant.engine)
        return
    contestant.engine.runner.sampling.sampler = NaiveSampler(SamplingParams(**contestant.sampling))


def _trace(contestant: FoloVLLM) -> None:
    attach(contestant.engine, TraceWriter(Path(tempfile.mkdtemp(prefix="folovllm-bench-")) / "run.gz"))


@contextmanager
def _without_kernels() -> Iterator[None]:
    before = os.environ.get("FOLOVLLM_CPU_KERNELS")
    os.environ["FOLOVLLM_CPU_KERNELS"] = "no"
    try:
        yield
    finally:
        os.environ.pop("FOLOVLLM_CPU_KERNELS")
        os.environ |= {} if before is None else {"FOLOVLLM_CPU_KERNELS": before}


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


KERNELS = {
    "fused-decode": Feature("decodes that turn q and k", {"choose": partial(_choose_without, ("fuses_decode",))}),
    "prompt-graphs": Feature("graphs for prompts", {"choose": _choose_without_prompt_graphs}),
    "padded-rows": Feature("rows padded to eight", inside=partial(patch.object, cuda_graph, "FEWEST_TOKENS", 1)),
}
"""Of a GPU alone."""
WITHOUT = ("graphs", "ahead", "attention", "fusing", "few-rows", "sampling")
"""What may be left out of a preset's run."""
FEATURES: dict[str, Feature] = {
    "graphs": Feature("CUDA graphs", {"enforce_eager": True}),
    "ahead": Feature("running ahead", {"async_scheduling": False}),
    "attention": Feature("our attention", {"attention_backend": "paged_torch"}),
    "chunked-prefill": Feature("chunked prefill", {"enable_chunked_prefill": False}),
    "prefix-caching": Feature("prefix caching", {"enable_prefix_caching": False}),
    "sampling": Feature("fast sampling", after=_draw_naively),
    "one-call": Feature("all layers in one call", {"enforce_eager": True}),
    "fusing": Feature(
        "fused layers", {"choose": partial(_choose_without, ("rms_norm", "norm_rotary", "silu_mul", "few_rows"))}
    ),
    "few-rows": Feature("our products of few rows", {"choose": partial(_choose_without, ("few_rows",))}),
    **KERNELS,
    "kernels": Feature("C++ kernels", inside=_without_kernels),
    "threads": Feature("more than one thread", inside=_one_thread),
    "trace": Feature("a trace", after=_trace, adds=True),
    "invariant": Feature("the same bits in any batch", {"batch_invariant": True}, adds=True),
    "fp8-cache": Feature("a KV cache in fp8", {"kv_cache_dtype": "fp8"}, adds=True),
    "int8-cache": Feature("a KV cache in int8", {"kv_cache_dtype": "int8"}, adds=True),
}  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "One thing of the engine changed, each in turn: what is it worth here?"
    add_model(command)
    text = "only these (default: all that make it fast; a wrong name is answered with all)"
    command.add_argument("--features", nargs="+", default=[], metavar="NAME", help=text)
    add_lengths(command, 8, 128, 32)
    text = "tokens with which all prompts begin alike (default: half of them)"
    add_number(command, "--shared-len", help=text, least=0)
    text = "the requests of this workload, drawn as it says, instead of greedy ones of these lengths"
    command.add_argument("--preset", choices=list(PRESETS), help=text)
    add_common(command, rounds=6)


def run(args: argparse.Namespace) -> Report:
    """Each feature against the whole engine. Raises ValueError: a feature that there is not, or a wrong number."""
    shared = args.input_len // 2 if args.shared_len is None else args.shared_len
    if not 0 <= shared < args.input_len:
        raise ValueError(f"shared_len must be in [0, {args.input_len - 1}], less than input_len, got {shared}")
    for name in args.features:
        if name not in FEATURES:
            raise ValueError(f"features must be of {', '.join(FEATURES)}, got {name!r}")
    chosen = args.features or [name for name, feature in FEATURES.items() if not feature.adds]
    device, preset = torch.device(args.device or default_device()), PRESETS.get(args.preset)
    lines: list[Line] = []
    with source(args) as model, progress_bar(len(chosen) * 2 * (args.rounds + 1)) as tick:
        vocab = vocab_size(model)

        def work(number: int) -> Work:
            """Other ids in each round: what a cache finds, it found in the same round."""
            if preset is not None:
                prompts, outputs = replace(preset, seed=args.seed + number, top_id=vocab - 1).draw()
                return (prompts, outputs) if number else (prompts[:WARM_UP], outputs[:WARM_UP])
            count = args.num_requests if number else WARM_UP
            common, *rests = random_prompts([shared] + [args.input_len - shared] * count, vocab, args.seed + number)
            return [common + rest for rest in rests], [args.output_len] * count

        longest = args.input_len + args.output_len
        if preset is not None:
            longest = max(len(prompt) + output for prompt, output in zip(*preset.draw(), strict=True))

        def build(feature: Feature) -> FoloVLLM:
            with feature.inside():
                made = FoloVLLM(model, args.dtype, args.device, longest, **feature.options)
            made.sampling = made.sampling if preset is None else preset.sampling
            feature.after(made)
            return made

        def play(engine: FoloVLLM, feature: Feature, number: int) -> Played:
            with feature.inside(), host_seconds(engine.engine) as host:
                return engine.run(*work(number)), median_of(host)

        def report() -> Report:
            title, notes = f"One feature changed at a time, {model.label}", _notes(args, shared)
            return Report.of(args, title, COLUMNS, lines, notes)

        whole = Feature("nothing")
        plain = build(whole)
        for name in chosen:
            feature = FEATURES[name]
            if (why := missing(name, plain, device)) is not None:
                unknown: dict[str, Any] = dict.fromkeys(COLUMNS)
                lines.append((unknown | {"feature": feature.what, "verdict": f"not here: {why}"}, {}))
                continue
            pair = [("whole", partial(play, plain, whole)), (feature.what, partial(play, build(feature), feature))]
            found = take_turns(pair, args.rounds, tick, back_and_forth=True)
            lines.append(_line(feature, *(reversed(found) if feature.adds else found)))
            keep(args, report())
        return report()


def _notes(args: argparse.Namespace, shared: int) -> list[str]:
    requests = f"{args.num_requests} requests at once, {args.input_len} tokens in, the first {shared} of them the same "
    requests += f"for all, {args.output_len} out"
    return [
        f"{requests if args.preset is None else 'the requests of ' + args.preset}, {args.dtype}; {args.rounds} rounds "
        "of each pair in turn, after a warm-up.",
        "ratio: seconds without the feature over seconds with it, the middle one of the rounds; low to high holds the "
        "true one, as sure as the column says. worth it: above 1. costs: below 1. noise: 1 is inside.",
        "longest step: the same ratio of each round's longest step, which is what others wait for.",
        "host: what it does in a step, on a GPU beside it.",
        "Each is changed alone. Together they are not the product: fused layers are C++ kernels where those can run.",
    ]


def _line(feature: Feature, with_it: list[Played], without: list[Played]) -> Line:
    samples = {
        "seconds": [run.seconds for run, _ in with_it],
        "seconds_without": [run.seconds for run, _ in without],
    }
    found = in_turn(*samples.values())
    longest = [[max(step.seconds for step in run) for run, _ in runs] for runs in (with_it, without)]
    verdict = {"above": "worth it", "below": "costs"}.get(found.verdict, found.verdict)
    facts = {"feature": feature.what, "ratio": found.ratio, "low": found.low, "high": found.high, "sure": found.level}
    ratio = statistics.median(one / other for other, one in zip(*longest, strict=True))
    for name, runs in (("host_ms", with_it), ("host_ms_without", without)):
        facts[name] = median_of([1e3 * host for _, host in runs if host is not None])
    return facts | {"longest_step_ratio": ratio, "verdict": verdict}, samples
