"""Attention by hand: three tokens, two numbers each, every number small enough for a sheet of paper.

The first part is plain Python and prints each step. The second does the same with a cache, one row at a time. The third
hands the same numbers to the engine's own backend, so the sheet of paper and the engine are known to agree.

Run it: python examples/m1_attention_by_hand.py
"""

from __future__ import annotations

import math

import _tree  # noqa: F401 - folovllm is this tree's
import torch

from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata

Vector = list[float]

TOKENS = ["the", "cache", "grows"]
X = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]  # what comes into the layer: one row per token
W_Q = [[1.0, 1.0], [0.0, 1.0]]
W_K = [[1.0, 0.0], [1.0, 1.0]]
W_V = [[2.0, 0.0], [0.0, 4.0]]
SCALE = 1 / math.sqrt(2)  # 1 / sqrt(d)


def project(x: Vector, weight: list[Vector]) -> Vector:
    """x times the matrix: entry j is the sum over i of x[i] * weight[i][j]."""
    return [sum(x[i] * weight[i][j] for i in range(len(x))) for j in range(len(weight[0]))]


def softmax(scores: Vector) -> Vector:
    largest = max(scores)
    powers = [math.exp(score - largest) for score in scores]
    return [power / sum(powers) for power in powers]


def attend(q: Vector, keys: list[Vector], values: list[Vector]) -> tuple[Vector, Vector, Vector]:
    """One query against the keys and values that it may see: scores, weights, the weighted sum of the values."""
    scores = [SCALE * sum(a * b for a, b in zip(q, k, strict=True)) for k in keys]
    weights = softmax(scores)
    return scores, weights, [sum(w * v[j] for w, v in zip(weights, values, strict=True)) for j in range(2)]


def show(numbers: Vector) -> str:
    return "[" + ", ".join(f"{number:.3f}" for number in numbers) + "]"


def without_cache() -> list[Vector]:
    """All three rows at once: row t sees keys 0 to t, which is the mask."""
    q, k, v = ([project(x, weight) for x in X] for weight in (W_Q, W_K, W_V))
    print("token   q       k       v")
    for token, *row in zip(TOKENS, q, k, v, strict=True):
        print(f"{token:<7}", "  ".join(f"[{a:.0f}, {b:.0f}]" for a, b in row))
    print("\ntoken   scores                 weights                output")
    out = []
    for t, token in enumerate(TOKENS):
        scores, weights, summed = attend(q[t], k[: t + 1], v[: t + 1])
        print(f"{token:<7} {show(scores):<22} {show(weights):<22} {show(summed)}")
        out.append(summed)
    print(f"without the mask, 'cache' would become {show(attend(q[1], k, v)[2])} once 'grows' is there")
    return out


def with_cache() -> list[Vector]:
    """Two rows as a prompt, then one more: that one computes its own q, k and v and reads what is kept."""
    keys: list[Vector] = []
    values: list[Vector] = []
    out = []
    print("\nstep     rows computed   rows read from the cache   output of its last row")
    for name, rows in (("prefill", X[:2]), ("decode", X[2:])):
        kept = len(keys)
        for x in rows:
            keys.append(project(x, W_K))
            values.append(project(x, W_V))
            out.append(attend(project(x, W_Q), keys, values)[2])
        print(f"{name:<8} {len(rows):<15} {kept:<26} {show(out[-1])}")
    return out


def in_the_engine() -> torch.Tensor:
    """The same prompt and the same decode step through the backend that M1 runs, [3, 2]."""
    backend = DenseBackend(num_heads=1, num_kv_heads=1, head_size=2, scale=SCALE)
    cache = torch.zeros(2, 1, len(X), 1, 2)  # [K or V, block, place, head, d]
    x = torch.tensor(X)
    q, k, v = ((x @ torch.tensor(weight)).unsqueeze(1) for weight in (W_Q, W_K, W_V))  # [tokens, head, d]
    rows = []
    for start, end in ((0, 2), (2, 3)):
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, end - start]),
            seq_lens=torch.tensor([end]),
            slot_mapping=torch.arange(start, end),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            max_query_len=end - start,
            max_seq_len=end,
        )
        backend.write(k[start:end], v[start:end], cache, metadata.slot_mapping)
        rows.append(backend.forward(q[start:end], cache, metadata)[:, 0])
    return torch.cat(rows)


def main() -> None:
    whole = without_cache()
    cached = with_cache()
    print("\nwith and without the cache:", "equal" if whole == cached else "different")
    agree = torch.allclose(torch.tensor(whole), in_the_engine(), atol=1e-6)
    print("by hand and in the engine:", "equal to six digits" if agree else "different")


if __name__ == "__main__":
    main()
