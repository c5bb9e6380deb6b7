"""What is asked of the simulated engines: drawn from a preset or from lengths of one's own.

The first `prefix_tokens` of a prompt are those of its group, the same for all that name it; the rest is like no other.

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from folovllm.bench.arrivals import Arrivals
from folovllm.utils.checks import check_int, wrong

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Job:
    """A request without its text. `time`: seconds at which it arrives."""

    time: float
    prompt_tokens: int
    output_tokens: int
    group: str | None = None
    prefix_tokens: int = 0
    priority: int = 0


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
