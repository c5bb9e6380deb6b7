"""Workloads by name, drawn number by number from a seed: the same seed gives the same requests, to the token.

    nano-vllm           256 sequences all at once; prompts and outputs of 100 to 1,024 tokens, uniform, from Python's
                        seed 0: first every prompt (its length, then its token ids), then every output's length.
                        Temperature 0.6, no end of text, at most 4,096 tokens: 142,827 tokens in, 133,966 out.
                        mini-sglang measures the same.
    shared-prefix       64 questions below 4 long instructions of 512 tokens
    chat                16 conversations of 4 turns below one instruction; each turn's prompt has all before it
    long-prompt-burst   short requests, and in the middle of them 8 long prompts in a row
    gpt2-sampling       64 requests of 128 tokens, drawn under top_k 40 and top_p 0.9; made for GPT-2's vocabulary

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A workload by its numbers. Lengths are uniform from `shortest`, or from the longest where that is shorter."""

    num_requests: int
    shortest: int
    longest_prompt: int
    """Without what comes before it: a prefix, or a conversation."""
    longest_output: int
    temperature: float = 0.0
    max_model_len: int = 4096
    top_id: int = 10000
    """Token ids are drawn from 0 to this, both included."""
    seed: int = 0
    top_k: int = -1
    top_p: float = 1.0
    request_rate: float = math.inf
    """Requests a second for a server that serves them; offline they come all at once."""
    burstiness: float = 1.0
    prefix_len: int = 0
    num_prefixes: int = 1
    """Requests take turns with them, so that each is there early and is asked for until the end."""
    num_turns: int = 1
    """All first turns come first, then all second ones. Answers are drawn: what the model will say is not known yet."""
    num_long: int = 0
    long_prompt: int = 0
    """After half of the short requests come so many of this length."""

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of SamplingParams."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    @property
    def shares_prefixes(self) -> bool:
        """Whether a cache of prefixes has something to find."""
        return self.prefix_len > 0

    def draw(self) -> tuple[list[list[int]], list[int]]:
        """Prompts, and how many tokens each is to be answered with."""
        rng, count = random.Random(self.seed), self.num_requests
        prefixes = [self._ids(rng, self.prefix_len) for _ in range(self.num_prefixes)]
        long = min(self.num_long, count // 2)
        first = (count - long) // 2
        messages = [
            self._ids(rng, self.long_prompt if 0 <= place - first < long else self._length(rng, self.longest_prompt))
            for place in range(count)
        ]
        outputs = [self._length(rng, self.longest_output) for _ in range(count)]
        conversations = -(-count // self.num_turns) if self.num_turns > 1 else self.num_prefixes
        said = [prefixes[place % self.num_prefixes] for place in range(conversations)]
        prompts = []
        for number, message in enumerate(messages):
            place = number % conversations
            prompts.append(said[place] + message)
            if self.num_turns > 1:
                said[place] = prompts[-1] + self._ids(rng, outputs[number])
        return prompts, outputs

    def _length(self, rng: random.Random, longest: int) -> int:
        return rng.randint(min(self.shortest, longest), longest)

    def _ids(self, rng: random.Random, length: int) -> list[int]:
        return [rng.randint(0, self.top_id) for _ in range(length)]


# A preset's field -> the option that overrides it.
FIELDS = {"num_requests": "num_requests", "longest_prompt": "input_len", "longest_output": "output_len"}
PRESETS: dict[str, Preset] = {
    "nano-vllm": Preset(256, 100, 1024, 1024, temperature=0.6),
    "shared-prefix": Preset(64, 32, 128, 64, request_rate=8.0, prefix_len=512, num_prefixes=4),
    "chat": Preset(64, 16, 64, 96, temperature=0.7, request_rate=4.0, prefix_len=64, num_turns=4),
    "long-prompt-burst": Preset(40, 16, 64, 64, request_rate=8.0, burstiness=0.25, num_long=8, long_prompt=1024),
    "gpt2-sampling": Preset(
        64, 128, 32, 128, temperature=1.0, max_model_len=1024, top_id=50256, top_k=40, top_p=0.9
    ),
}  # fmt: skip


def preset_of(name: str, args: argparse.Namespace) -> Preset:
    """The preset as it was asked for."""
    given = {field: getattr(args, option) for field, option in FIELDS.items() if getattr(args, option) is not None}
    return replace(PRESETS[name], seed=args.seed, **given)
