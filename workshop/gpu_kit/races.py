"""The two attention kernels, small enough for compute-sanitizer: does a thread read shared memory that another writes?

    compute-sanitizer --tool racecheck python -m workshop.gpu_kit.races --device cuda --json races.json

Triton puts the barriers between the threads of a program, and a pipeline that loads tiles ahead is where one may be
missing. The result is held against float64 as well: a tool that saw no kernel run would find no race either. Without
the sanitizer it is that comparison alone, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata

TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-5}
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype


MODEL = Shape(16, 8, 128, 16, torch.bfloat16)  # Qwen3-0.6B's
TINY = Shape(4, 2, 16, 16, torch.float32)
# New tokens and all tokens of each sequence. Few and long: their decodes are split. Several tiles in each.
CASES = {
    "decode": [(1, 700), (1, 65), (1, 16)],
    "prefill": [(130, 130), (40, 300)],
    "decodes, then a chunk": [(1, 33), (1, 200), (70, 150)],
}
TINY_CASES = {"decode": [(1, 40), (1, 3)], "prefill": [(9, 20)], "decodes, then a chunk": [(1, 17), (5, 9)]}


@torch.inference_mode()
def largest_error(spans: list[tuple[int, int]], shape: Shape, device: torch.device) -> float:
    """Of the backend's output, against float64."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device).to(shape.dtype)

    blocks = [-(-length // shape.block_size) for _, length in spans]
    order = torch.randperm(sum(blocks), generator=generator, device=device).int() + 1  # 0 is the null block
    tables = torch.zeros(len(spans), max(blocks), dtype=torch.int32, device=device)
    for table, owned in zip(tables, order.split(blocks), strict=True):
        table[: len(owned)] = owned
    cache = normal(2, sum(blocks) + 1, shape.block_size, shape.kv_heads, shape.head_size)
    new, lengths = [new for new, _ in spans], [length for _, length in spans]
    starts = torch.tensor([0, *new], device=device).cumsum(0).int()
    metadata = AttentionMetadata(
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(sum(new), dtype=torch.int64, device=device),  # K and V are there already
        block_tables=tables,
        max_query_len=max(new),
        max_seq_len=max(lengths),
        num_decodes=[*(count == 1 for count in new), False].index(False),
    )
    q = normal(sum(new), shape.heads, shape.head_size)
    scale = shape.head_size**-0.5
    out = TritonBackend(shape.heads, shape.kv_heads, shape.head_size, scale).forward(q, cache, metadata)
    error = 0.0
    for at, (count, length) in enumerate(spans):
        keys, values = cache[:, tables[at].long()].flatten(1, 2)[:, :length].double()
        mine = slice(int(starts[at]), int(starts[at]) + count)
        want = reference(q[mine].double(), keys, values, scale)
        error = max(error, float((out[mine].double() - want).abs().max()))
    return error


def reference(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """[queries, heads, size] at the last positions of [tokens, KV heads, size]."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = scale * torch.einsum("qhd,khd->hqk", q, keys)
    position = torch.arange(len(keys), device=q.device)
    hidden = position[None] > position[len(keys) - len(q) :, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def read(found: dict[str, Any] | None, log: str) -> dict[str, Any] | None:
    """What the program wrote, and what the sanitizer said under it."""
    if found is None:
        return None
    said = SUMMARY.findall(log)
    hazards = [sum(int(counts[place]) for counts in said) for place in range(3)] if said else None
    return found | {
        "hazards": dict(zip(("displayed", "errors", "warnings"), hazards, strict=True)) if hazards else None
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    device = torch.device(args.device)
    shape, cases = (MODEL, CASES) if device.type == "cuda" else (TINY, TINY_CASES)
    errors = {name: largest_error(spans, shape, device) for name, spans in cases.items()}
    found = {"errors": errors, "tolerance": TOLERANCE[shape.dtype], "interpreted": "TRITON_INTERPRET" in os.environ}
    args.json.write_text(json.dumps(found), encoding="utf-8")
    print(json.dumps(found))
    if not max(errors.values()) < TOLERANCE[shape.dtype]:
        raise SystemExit("the kernels' results are wrong")


if __name__ == "__main__":
    main()
