"""Prompts of a load from a file, so that two clients can send the same: a JSON object in each line.

    {"prompt": "Once upon a time", "output_tokens": 32}

They are `vllm bench serve --dataset-name custom`'s lines, too.

vLLM: benchmarks/datasets/datasets.py (CustomDataset)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from folovllm.bench.load_request import LoadRequest
from folovllm.utils.checks import check_int
from folovllm.utils.named_files import parse_json, read_file


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
