"""What is asked of the simulated engines: a preset, lengths of one's own, or a file with a line for each request.

    {"t": 0.25, "prompt_tokens": 900, "output_tokens": 120, "group": "tools", "prefix_tokens": 512}

The first `prefix_tokens` of a prompt are those of its group, the same for all that name it; the rest is like no other.
With "chat" in place of that, the rest belongs to a chat: its next turn names the same chat, and its prompt is all that
was said so far and more. A line may have "prompt_token_ids" instead of lengths, and "priority".

Jobs come one by one, so no load of a million requests is in memory as a whole, but for the times of arrival.

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from folovllm.bench.arrivals import Arrivals
from folovllm.utils.checks import check_float, check_int, check_str, wrong
from folovllm.utils.named_files import parse_json, read_lines

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Job:
    """A request without its text. `time`: seconds at which it arrives."""

    time: float
    prompt_tokens: int
    output_tokens: int
    group: str | None = None
    prefix_tokens: int = 0
    chat: str | None = None
    priority: int = 0
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Load:
    """Lengths are drawn between two ends, both included; a prompt of `prompt` tokens follows its group's prefix.

    Raises:
        ValueError: ends that are no 1 <= MIN <= MAX, or a prefix without groups.
    """

    prompt: Range
    output: Range
    groups: int = 0
    prefix: int = 0
    urgent: float = 0.0
    """The share of requests with priority -1, before all others where the policy is "priority"."""

    def __post_init__(self) -> None:
        for name, (low, high) in (("prompt_len", self.prompt), ("output_len", self.output)):
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two numbers, 1 <= MIN <= MAX, got {low} and {high}")
        check_int("prefix_groups", self.groups, 0)
        check_int("prefix_len", self.prefix, 0)
        if not 0 <= self.urgent <= 1:
            raise wrong("urgent", "be a share from 0 to 1", self.urgent)
        if bool(self.groups) != bool(self.prefix):
            raise ValueError(
                f"prefix_groups and prefix_len must both be given or none, got {self.groups} and {self.prefix}"
            )

    def jobs(self, count: int, arrivals: Arrivals, seed: int) -> Iterator[Job]:
        """`count` of them, in the order of their arrival; the same seed draws the same."""
        rng = random.Random(f"load {seed}")
        for time in arrivals.times(count, seed):
            prompt, output = rng.randint(*self.prompt), rng.randint(*self.output)
            group = f"g{rng.randrange(self.groups)}" if self.groups else None
            priority = -1 if self.urgent and rng.random() < self.urgent else 0
            yield Job(time, self.prefix + prompt, output, group, self.prefix, priority=priority)

    def describe(self) -> str:
        text = (
            f"prompts of {self.prompt[0]} to {self.prompt[1]} tokens, outputs of {self.output[0]} to {self.output[1]}"
        )
        text += f", behind one of {self.groups} prefixes of {self.prefix} tokens" if self.groups else ""
        return text + (f", {self.urgent:.0%} urgent" if self.urgent else "")


LOADS = {
    # A system prompt for each of a few products; people type little and read an answer.
    "chat": Load((50, 400), (50, 400), groups=4, prefix=256),
    # Retrieved pages in front of a question, a short answer.
    "documents": Load((2000, 6000), (100, 300)),
    # Tools described at length, one program for each of many customers; short turns.
    "agents": Load((100, 600), (50, 200), groups=32, prefix=2000),
    # The lengths that nano-vllm and mini-sglang publish figures for.
    "batch": Load((100, 1024), (100, 1024)),
}


def read_jobs(path: Path) -> Iterator[Job]:
    """The requests of a file, one JSON object a line, in the order of their `t`.

    Raises:
        ValueError: at the line that is wrong, by its number and field.
    """
    before = None
    for number, line in enumerate(read_lines("requests", path), 1):
        if line.strip():
            try:
                job = _job(line)
                if before is not None and job.time < before:
                    raise wrong("t", f"be at least {before:g}, that of the line before", job.time)
            except ValueError as error:
                raise ValueError(f"line {number} of {path}: {error}") from error
            before = job.time
            yield job
    if before is None:
        raise wrong("requests", "have a request in it", str(path), "which has none")


FIELDS = {"t", "prompt_tokens", "output_tokens", "group", "prefix_tokens", "chat", "priority", "prompt_token_ids"}


def _job(line: bytes) -> Job:
    found = parse_json(line)
    if not isinstance(found, dict):
        raise wrong("it", "be a JSON object", found)
    if unknown := sorted(found.keys() - FIELDS):
        raise wrong("fields", f"be of {', '.join(sorted(FIELDS))}", unknown[0])
    time = check_float("t", found.get("t"))
    if time < 0:
        raise wrong("t", "be non-negative", time)
    check_int("output_tokens", found.get("output_tokens"), 1)
    job = Job(time, 0, found["output_tokens"], priority=found.get("priority", 0))
    check_int("priority", job.priority)
    token_ids = found.get("prompt_token_ids")
    if token_ids is not None:
        if {"prompt_tokens", "group", "prefix_tokens", "chat"} & found.keys():
            raise ValueError("prompt_token_ids must stand alone, without lengths and groups")
        if not isinstance(token_ids, list) or not token_ids:
            raise wrong("prompt_token_ids", "be a list of token ids", token_ids)
        for token_id in token_ids:
            check_int("prompt_token_ids", token_id, 0)
        return replace(job, prompt_tokens=len(token_ids), token_ids=tuple(token_ids))
    check_int("prompt_tokens", found.get("prompt_tokens"), 1)
    for name in ("group", "chat"):
        if found.get(name) is not None:
            check_str(name, found[name])
    prefix = found.get("prefix_tokens", 0)
    check_int("prefix_tokens", prefix, 0)
    if prefix > found["prompt_tokens"]:
        raise wrong("prefix_tokens", f"be at most prompt_tokens ({found['prompt_tokens']})", prefix)
    if bool(prefix) != bool(found.get("group")):
        raise wrong("prefix_tokens", "come with a group, and a group with prefix_tokens", prefix)
    return replace(
        job,
        prompt_tokens=found["prompt_tokens"],
        group=found.get("group"),
        prefix_tokens=prefix,
        chat=found.get("chat"),
    )
