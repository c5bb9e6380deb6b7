"""The requests of a load, random ones or those of a file, so that two clients can send the same; and what they go to.

A file has a JSON object in each line, as `vllm bench serve --dataset-name custom` reads them, too:

    {"prompt": "Once upon a time", "output_tokens": 32}

vLLM: benchmarks/datasets/datasets.py (CustomDataset)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from folovllm.bench.metrics import RequestTimes
from folovllm.bench.report import Row
from folovllm.bench.workload import random_prompts
from folovllm.utils.checks import check_int
from folovllm.utils.named_files import parse_json, read_file

TOP_ID = 10_000  # random prompts are drawn below this; a server takes them as it has tokens


@dataclass(frozen=True)
class LoadRequest:
    """`prompt` is token ids, or a text that the server splits. `sampling`: fields of SamplingParams."""

    prompt: list[int] | str
    max_tokens: int
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})


@dataclass(frozen=True)
class CacheCounters:
    """Totals of a server's KV cache since it started."""

    prefix_queries: float
    prefix_hits: float
    preemptions: float

    @staticmethod
    def row(before: CacheCounters | None, after: CacheCounters | None) -> Row:
        """None of everything where the server has no counters, and of hits where nothing was looked up."""
        if before is None or after is None:
            return {"prefix_hit_rate": None, "preemptions": None}
        queries, hits = after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits
        preemptions = int(after.preemptions - before.preemptions)
        return {"prefix_hit_rate": hits / queries if queries else None, "preemptions": preemptions}


class Server(Protocol):
    """Between start() and stop() it belongs to one event loop."""

    @property
    def label(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def usable(self, ids: list[int]) -> list[int]:
        """The prompt in tokens that the server's model has."""

    async def ask(self, request: LoadRequest) -> RequestTimes:
        """Never raises for a request that fails: its times say what was wrong."""

    async def counters(self) -> CacheCounters | None: ...


def random_requests(count: int, input_len: int, output_len: int, seed: int) -> list[LoadRequest]:
    """Of equal lengths, greedy; the same for the same numbers and seed, to the token."""
    return [LoadRequest(prompt, output_len) for prompt in random_prompts([input_len] * count, TOP_ID, seed)]


def read_requests(path: Path, output_len: int | None, count: int | None) -> list[LoadRequest]:
    """The first `count` of the file, greedy. `output_len` takes the place of each line's `output_tokens`.

    Raises:
        ValueError: no such file, fewer lines than `count` in it, or a line that is no request; by its number.
    """
    found = []
    for number, line in enumerate(read_file("dataset_path", path).splitlines(), start=1):
        if line.strip():
            try:
                found.append(_request(parse_json(line), output_len))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"dataset_path must have a request in it, got {str(path)!r}, which has none")
    if count is not None and not 1 <= count <= len(found):
        raise ValueError(f"num_requests must be in [1, {len(found)}], what {path} has, got {count}")
    return found[:count]


def _request(row: Any, output_len: int | None) -> LoadRequest:
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
        raise ValueError('it must be like {"prompt": "a text", "output_tokens": 32}')
    length = row.get("output_tokens") if output_len is None else output_len
    if length is None:
        raise ValueError("output_tokens must be given: add it to the line, or say --output-len")
    check_int("output_tokens", length, 1)
    return LoadRequest(row["prompt"], length)
