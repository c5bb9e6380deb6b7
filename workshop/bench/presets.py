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
from typing import Any, ClassVar

from folovllm.bench import serve_load
from folovllm.bench.arrivals import Arrivals, arrivals_of
from folovllm.bench.load_requests import LoadRequest, Work
from folovllm.bench.report import Report
from folovllm.bench.serve_load import check_args

__all__ = ["add_arguments", "check_args", "run"]


@dataclass(frozen=True)
class Preset:
    """A workload by its numbers. Lengths are uniform from `shortest`, or from the longest where that is shorter."""

    num_requests: int
    shortest: int
    longest_prompt: int
    """Of what a request has for itself; what it shares comes before it."""
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

    shares_prefixes: ClassVar[bool] = False
    """Whether a cache of prefixes has something to find."""

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of SamplingParams."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    def draw(self) -> tuple[list[list[int]], list[int]]:
        """Prompts, and how many tokens each is to be answered with."""
        rng = random.Random(self.seed)
        prompts = [self._ids(rng, self.longest_prompt) for _ in range(self.num_requests)]
        return prompts, [self._length(rng, self.longest_output) for _ in range(self.num_requests)]

    def _length(self, rng: random.Random, longest: int) -> int:
        return rng.randint(min(self.shortest, longest), longest)

    def _ids(self, rng: random.Random, longest: int, *, exactly: bool = False) -> list[int]:
        length = longest if exactly else self._length(rng, longest)
        return [rng.randint(0, self.top_id) for _ in range(length)]


@dataclass(frozen=True)
class SharedPrefix(Preset):
    """Requests take turns with the prefixes, so that each is there early and is asked for until the end."""

    prefix_len: int = 512
    num_prefixes: int = 4
    shares_prefixes: ClassVar[bool] = True

    def draw(self) -> tuple[list[list[int]], list[int]]:
        rng = random.Random(self.seed)
        prefixes = [self._ids(rng, self.prefix_len, exactly=True) for _ in range(self.num_prefixes)]
        count = self.num_requests
        prompts = [prefixes[i % self.num_prefixes] + self._ids(rng, self.longest_prompt) for i in range(count)]
        return prompts, [self._length(rng, self.longest_output) for _ in range(count)]


@dataclass(frozen=True)
class Chat(Preset):
    """All first turns, then all second ones, and so on. A turn's prompt is the instruction, then the messages and the
    answers so far; answers are drawn beforehand, since it is not known yet what the model will say."""

    prefix_len: int = 64
    num_turns: int = 4
    shares_prefixes: ClassVar[bool] = True

    def draw(self) -> tuple[list[list[int]], list[int]]:
        rng = random.Random(self.seed)
        instruction = self._ids(rng, self.prefix_len, exactly=True)
        said = [instruction] * -(-self.num_requests // self.num_turns)
        prompts: list[list[int]] = []
        outputs: list[int] = []
        while len(prompts) < self.num_requests:
            place = len(prompts) % len(said)
            prompts.append(said[place] + self._ids(rng, self.longest_prompt))
            answer = self._ids(rng, self.longest_output)
            outputs.append(len(answer))
            said[place] = prompts[-1] + answer
        return prompts, outputs


@dataclass(frozen=True)
class LongPromptBurst(Preset):
    """Short requests, and after half of them `num_long` long ones, each of long_prompt tokens."""

    num_long: int = 8
    long_prompt: int = 1024

    def draw(self) -> tuple[list[list[int]], list[int]]:
        rng = random.Random(self.seed)
        long = min(self.num_long, self.num_requests // 2)
        first = (self.num_requests - long) // 2
        prompts = [
            self._ids(rng, self.long_prompt, exactly=True)
            if first <= place < first + long
            else self._ids(rng, self.longest_prompt)
            for place in range(self.num_requests)
        ]
        return prompts, [self._length(rng, self.longest_output) for _ in prompts]


def preset_of(name: str, args: argparse.Namespace) -> Preset:
    """The preset as it was asked for."""
    given = {field: getattr(args, option) for field, option in FIELDS.items() if getattr(args, option) is not None}
    return replace(PRESETS[name], seed=args.seed, **given)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Those of `bench serve-load`, and --preset: a workload by its name, at the preset's own rate."""
    serve_load.add_arguments(command)
    text = "a workload by its name; --num-requests, --input-len and --output-len (of the longest) override its numbers"
    command.add_argument("--preset", choices=list(PRESETS), help=text)


def run(args: argparse.Namespace) -> Report:
    if args.preset is None:
        return serve_load.run(args)
    preset = preset_of(args.preset, args)
    prompts, outputs = preset.draw()
    requests = [LoadRequest(prompt, length, preset.sampling) for prompt, length in zip(prompts, outputs, strict=True)]
    what = f"{len(requests)} requests, {sum(map(len, prompts)):,} tokens in, {sum(outputs):,} out"
    usual = [Arrivals(preset.request_rate, preset.burstiness)]
    return serve_load.measured(args, Work(requests, what, preset.seed), arrivals_of(args) or usual)


# A preset's field -> the option that overrides it.
FIELDS = {"num_requests": "num_requests", "longest_prompt": "input_len", "longest_output": "output_len"}
PRESETS: dict[str, Preset] = {
    "nano-vllm": Preset(
        num_requests=256, shortest=100, longest_prompt=1024, longest_output=1024, temperature=0.6
    ),
    "shared-prefix": SharedPrefix(
        num_requests=64, shortest=32, longest_prompt=128, longest_output=64, request_rate=8.0
    ),
    "chat": Chat(
        num_requests=64, shortest=16, longest_prompt=64, longest_output=96, temperature=0.7, request_rate=4.0
    ),
    "long-prompt-burst": LongPromptBurst(
        num_requests=40, shortest=16, longest_prompt=64, longest_output=64, request_rate=8.0, burstiness=0.25
    ),
    "gpt2-sampling": Preset(
        num_requests=64, shortest=128, longest_prompt=32, longest_output=128, temperature=1.0, max_model_len=1024,
        top_id=50256, top_k=40, top_p=0.9,
    ),
}  # fmt: skip
