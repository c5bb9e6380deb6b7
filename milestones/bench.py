"""The same requests through several milestones: what a milestone is worth, in one run on one machine.

    round 1   m1 ████████   m2 ███            each milestone's tree in a process of its own, which stays;
    round 2   m1 ████████   m2 ███            one works while the others wait for their turn

A slow minute of the machine then slows all of them. Every milestone must give the same tokens.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milestones.bench_process import Worker
from milestones.chain import Course
from milestones.spec import Milestone, MilestoneError
from milestones.trees import write_tree

FIRST = 1  # the first milestone that has an engine
WARM_UP_TOKENS = 4
BLOCK_SIZE = 16  # tokens; what CacheConfig has when nothing is said
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
Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request's prompt and output, the same in every round."""

    prompts: list[int]
    outputs: list[int]

    @classmethod
    def draw(cls, count: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0) -> Lengths:
        """Uniform between the two ends, both included."""
        if count < 1:
            raise MilestoneError(f"requests must be at least 1, got {count}")
        for name, (low, high) in (("prompt-len", prompt), ("output-len", output)):
            if not 1 <= low <= high:
                raise MilestoneError(f"{name} must be two numbers, 1 <= MIN <= MAX, got {low} and {high}")
        rng = random.Random(seed)
        pairs = [(rng.randint(*prompt), rng.randint(*output)) for _ in range(count)]
        return cls([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    @property
    def longest(self) -> int:
        """The longest request: what max_model_len must at least be."""
        return max(prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True))

    def describe(self) -> str:
        def text(values: list[int]) -> str:
            return f"{min(values)} to {max(values)} tokens (mean {statistics.mean(values):.1f})"

        return f"{len(self.prompts)} requests at once: prompts of {text(self.prompts)}, outputs of {text(self.outputs)}"

    def make_prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        rng = random.Random(f"prompts {seed}")
        return [[rng.randrange(vocab_size) for _ in range(length)] for length in self.prompts]


def parse_settings(texts: Sequence[str], names: Sequence[str]) -> Settings:
    """`m3.num_kv_blocks=64` -> {"m3": {"num_kv_blocks": 64}}; a value that is no number or boolean is text."""
    settings: Settings = {name: {} for name in names}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, field = place.partition(".")
        if not (equals and dot and field and value):
            raise MilestoneError(f"--set must be mK.field=value, got {text!r}")
        if name not in settings:
            raise MilestoneError(f"--set {text}: {name} is not measured here, only {', '.join(names)}")
        settings[name][field] = _value(value)
    return settings


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def cache_settings(
    number: int, kv_tokens: int, *, max_model_len: int, block_size: int, num_requests: int
) -> dict[str, Any]:
    """How milestone `number` is told that its KV cache has room for `kv_tokens` tokens, and for no more.

    m1 runs one sequence at a time and has room for that one, whatever is said. m2 reserves max_model_len for each
    sequence. From m3 on the cache is made of blocks, and the number of sequences is no limit of its own.
    """
    if kv_tokens < max_model_len:
        raise MilestoneError(f"kv-tokens must be at least max_model_len ({max_model_len}), got {kv_tokens}")
    if number <= 1:
        return {}
    if number == 2:
        return {"max_num_seqs": kv_tokens // max_model_len}
    return {"num_kv_blocks": kv_tokens // block_size, "block_size": block_size, "max_num_seqs": num_requests}


def engine_options(
    milestones: Sequence[Milestone],
    common: dict[str, Any],
    settings: Settings,
    *,
    kv_tokens: int | None,
    num_requests: int,
) -> Settings:
    """What each milestone's LLM is made with; what --set says goes before anything else."""
    options = {}
    for milestone in milestones:
        own = settings[milestone.id]
        cache: dict[str, Any] = {}
        if kv_tokens is not None:
            cache = cache_settings(
                milestone.number,
                kv_tokens,
                max_model_len=own.get("max_model_len", common["max_model_len"]),
                block_size=own.get("block_size", BLOCK_SIZE),
                num_requests=num_requests,
            )
        options[milestone.id] = common | cache | own
    return options


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
    """Each round's answers by milestone, in the order of `options`. See bench_worker.py for what is in them."""
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
