"""The requests of a load: random ones, a preset's, or those of a file, so that two clients can send the same.

A file has a JSON object in each line, as `vllm bench serve --dataset-name custom` reads them, too:

    {"prompt": "Once upon a time", "output_tokens": 32}

vLLM: benchmarks/datasets/datasets.py (CustomDataset)
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from folovllm.bench.load_request import LoadRequest
from folovllm.bench.preset_draws import Preset
from folovllm.bench.workload import require_at_least
from folovllm.utils.checks import check_int
from folovllm.utils.named_files import parse_json, read_file

TOP_ID = 10_000  # random prompts are drawn up to here; a server takes them as it has tokens


@dataclass(frozen=True)
class Work:
    """Requests of a load: those of a file, of a preset, or random ones of equal lengths."""

    num_requests: int = 64
    input_len: int = 64
    output_len: int = 64
    seed: int = 0
    preset: Preset | None = None
    """Carries its own numbers and seed; the four before it then say nothing."""
    given: tuple[LoadRequest, ...] = ()
    """As they are, whatever the rest says."""

    def __post_init__(self) -> None:
        require_at_least(1, num_requests=self.num_requests, input_len=self.input_len, output_len=self.output_len)

    def draw(self) -> list[LoadRequest]:
        """The same for the same numbers and seed, to the token."""
        if self.given:
            return list(self.given)
        if self.preset is not None:
            drawn = zip(*self.preset.draw(), strict=True)
            return [LoadRequest(prompt, length, self.preset.sampling) for prompt, length in drawn]
        rng = random.Random(self.seed)
        return [
            LoadRequest([rng.randint(0, TOP_ID) for _ in range(self.input_len)], self.output_len, {"temperature": 0.0})
            for _ in range(self.num_requests)
        ]

    def describe(self) -> str:
        if self.given:
            return f"{len(self.given)} requests of a file, {sum(each.max_tokens for each in self.given):,} tokens out"
        if self.preset is None:
            return f"{self.num_requests} requests, {self.input_len} tokens in, {self.output_len} out"
        requests = self.draw()
        tokens = sum(len(request.prompt) for request in requests), sum(request.max_tokens for request in requests)
        return f"{len(requests)} requests, {tokens[0]:,} tokens in, {tokens[1]:,} out"


def read_prompts(path: Path, output_len: int | None = None) -> tuple[LoadRequest, ...]:
    """One greedy request for each line, in their order. `output_len` takes the place of each line's `output_tokens`.

    Raises:
        ValueError: no such file, no line in it, or a line that is no request; by its number.
    """
    found = []
    for number, line in enumerate(read_file("dataset", path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(_request(parse_json(line), output_len))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"dataset must have a request in it, got {str(path)!r}, which has none")
    return tuple(found)


def _request(row: Any, output_len: int | None) -> LoadRequest:
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
        raise ValueError('it must be like {"prompt": "a text", "output_tokens": 32}')
    length = row.get("output_tokens") if output_len is None else output_len
    if length is None:
        raise ValueError("output_tokens must be given: add it to the line, or say --output-len")
    check_int("output_tokens", length, 1)
    return LoadRequest(row["prompt"], length, {"temperature": 0.0})
