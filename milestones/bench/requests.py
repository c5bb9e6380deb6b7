"""The same requests through several milestones: what a milestone is worth, in one run on one machine.

    round 1   m1 ████████   m2 ███            each milestone's tree in a process of its own, which stays;
    round 2   m1 ████████   m2 ███            one works while the others wait for their turn

A slow minute of the machine then slows all of them. Every milestone must give the same tokens.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from folovllm.bench.lengths import Lengths
from milestones.bench.process import Worker
from milestones.bench.settings import Settings
from milestones.chain import Course
from milestones.spec import Milestone, MilestoneError
from milestones.trees import write_tree

FIRST = 1  # the first milestone that has an engine
WARM_UP_TOKENS = 4
COLUMNS = [
    "milestone",
    "requests",
    "prompt_tokens",
    "output_tokens",
    "seconds",
    "output_tokens_per_s",
    "speedup",
    "mean_ttft_ms",
    "running_seqs",
    "kv_reserved_tokens",
    "kv_used_tokens",
]


def check_milestones(course: Course, names: Sequence[str]) -> list[Milestone]:
    chosen = [course.get(name) for name in names]
    if len({m.id for m in chosen}) < len(chosen):
        raise MilestoneError(f"each milestone once, got {' '.join(names)}")
    for milestone in chosen:
        if milestone.number < FIRST:
            raise MilestoneError(f"{milestone.id} has no engine to measure; m{FIRST} is the first that has")
    return chosen


def measure(
    course: Course,
    options: Settings,
    lengths: Lengths,
    vocab_size: int,
    *,
    rounds: int,
    threads: int | None = None,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, list[dict[str, Any]]]:
    """Each round's answers by milestone, in the order of `options`. See worker.py for what is in them."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options}
    with start_workers(course, {name: (name, engine) for name, engine in options.items()}, threads, tick) as workers:
        for number in range(rounds + 1):  # round 0 warms up: every prompt, a few tokens
            prompts = lengths.make_prompts(vocab_size, number)  # fresh ones, so that nothing can be remembered
            outputs = lengths.outputs if number else [min(n, WARM_UP_TOKENS) for n in lengths.outputs]
            answers = {}
            for worker in workers:
                tick(f"round {number}/{rounds}: {worker.name}" if number else f"warm-up: {worker.name}")
                answers[worker.name] = worker.ask({"prompts": prompts, "max_tokens": outputs})
            check_same_tokens({name: answer["tokens"] for name, answer in answers.items()}, outputs)
            if number:
                for name, answer in answers.items():
                    results[name].append(answer)
    return results


@contextmanager
def start_workers(
    course: Course,
    engines: dict[str, tuple[str, dict[str, Any]]],
    threads: int | None,
    tick: Callable[[str], None],
) -> Iterator[list[Worker]]:
    """A process for each engine: a name -> whose tree, and what its LLM is made with. They end with the block."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-bench-"))).resolve()
        workers = []
        for name, (milestone, engine) in engines.items():
            tick(f"loading {name}")
            write_tree(course.tree(course.get(milestone).number), scratch / name)
            workers.append(stack.enter_context(Worker(name, scratch / name, threads)))
            workers[-1].ask({"tree": str(scratch / name), "engine": engine})
        yield workers


def check_same_tokens(tokens: dict[str, list[list[int]]], lengths: list[int]) -> None:
    """Faster with other tokens is no faster: it is a mistake."""
    first, *others = tokens
    for name, outputs in tokens.items():
        if [len(output) for output in outputs] != lengths:
            raise MilestoneError(f"{name} gave outputs of other lengths than were asked for")
    for name in others:
        for request, (output, expected) in enumerate(zip(tokens[name], tokens[first], strict=True)):
            if output != expected:
                at = next(i for i, pair in enumerate(zip(output, expected, strict=True)) if pair[0] != pair[1])
                raise MilestoneError(
                    f"{name} and {first} give different tokens: request {request}, output token {at} is {output[at]} "
                    f"in {name} and {expected[at]} in {first}"
                )


def make_rows(results: dict[str, list[dict[str, Any]]], lengths: Lengths) -> list[dict[str, Any]]:
    """Medians over the rounds; `speedup` is the first milestone's seconds over this one's."""
    rows = []
    base = statistics.median(answer["seconds"] for answer in next(iter(results.values())))
    for name, answers in results.items():
        seconds = statistics.median(answer["seconds"] for answer in answers)
        peaks = {key: _median_or_none(answers, key) for key in COLUMNS[-3:]}
        row = {
            "milestone": name,
            "requests": len(lengths.prompts),
            "prompt_tokens": sum(lengths.prompts),
            "output_tokens": sum(lengths.outputs),
            "seconds": seconds,
            "output_tokens_per_s": sum(lengths.outputs) / seconds,
            "speedup": base / seconds,
            "mean_ttft_ms": statistics.median(statistics.mean(answer["ttft"]) for answer in answers) * 1e3,
        }
        rows.append(row | peaks)
    return rows


def _median_or_none(answers: list[dict[str, Any]], key: str) -> int | None:
    """None for a milestone that keeps no statistics."""
    values = [answer[key] for answer in answers if key in answer]
    return round(statistics.median(values)) if values else None
