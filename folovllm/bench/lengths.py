"""How long the requests of a benchmark are: drawn once, the same in every round and for every contestant.

It imports nothing but Python's own, for `python -m milestones` answers where no package is installed.

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request's prompt and output."""

    prompts: list[int]
    outputs: list[int]

    @classmethod
    def equal(cls, count: int, prompt: int, output: int) -> Lengths:
        return cls([prompt] * count, [output] * count)

    @classmethod
    def uniform(cls, count: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0) -> Lengths:
        """Drawn between the two ends, both included. Raises ValueError: no request, or no 1 <= MIN <= MAX."""
        if count < 1:
            raise ValueError(f"requests must be at least 1, got {count}")
        for name, (low, high) in (("prompt-len", prompt), ("output-len", output)):
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two numbers, 1 <= MIN <= MAX, got {low} and {high}")
        rng = random.Random(seed)
        pairs = [(rng.randint(*prompt), rng.randint(*output)) for _ in range(count)]
        return cls([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    @property
    def longest(self) -> int:
        """The longest request: what max_model_len must at least be."""
        return max(prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True))

    def describe(self) -> str:
        prompts, outputs = (
            f"{min(values)} to {max(values)} tokens (mean {statistics.mean(values):.1f})"
            for values in (self.prompts, self.outputs)
        )
        return f"{len(self.prompts)} requests at once: prompts of {prompts}, outputs of {outputs}"

    def make_prompts(self, vocab_size: int, seed: int | str) -> list[list[int]]:
        """Random token ids."""
        rng = random.Random(f"prompts {seed}")
        return [[rng.randrange(vocab_size) for _ in range(length)] for length in self.prompts]
