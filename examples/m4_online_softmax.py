"""Softmax over four numbers, two seen at a time: what attention keeps in mind while it reads the cache.

Run it: python examples/m4_online_softmax.py
"""

from __future__ import annotations

from math import exp

import torch

SCORES = [1.0, 3.0, 2.0, 5.0]  # of one query with four keys
VALUES = [10.0, 20.0, 30.0, 40.0]
TILE = 2

largest, total, acc = float("-inf"), 0.0, 0.0
for start in range(0, len(SCORES), TILE):
    scores, values = SCORES[start : start + TILE], VALUES[start : start + TILE]
    before, largest = largest, max(largest, *scores)
    # What was added up relative to the old maximum is too large by this factor.
    shrink = exp(before - largest)
    weights = [exp(score - largest) for score in scores]
    total = total * shrink + sum(weights)
    acc = acc * shrink + sum(weight * value for weight, value in zip(weights, values, strict=True))
    print(f"after {start + TILE} scores: maximum {largest:.0f}, shrink {shrink:.4f}, sum {total:.4f}, values {acc:.4f}")

print(f"\nonline  {acc / total:.6f}")
expected = float(torch.tensor(SCORES, dtype=torch.float64).softmax(0) @ torch.tensor(VALUES, dtype=torch.float64))
print(f"torch   {expected:.6f}")


def part(start: int, end: int) -> tuple[float, float, float]:
    """(maximum, sum, weighted mean) of a part of the keys, as a split of the kernel leaves them behind."""
    highest = max(SCORES[start:end])
    weights = [exp(score - highest) for score in SCORES[start:end]]
    mean = sum(weight * value for weight, value in zip(weights, VALUES[start:end], strict=True)) / sum(weights)
    return highest, sum(weights), mean


print("\nthe same in two parts, which need not know of each other:")
parts = [part(0, 2), part(2, 4)]
highest = max(maximum for maximum, _, _ in parts)
shares = [share * exp(maximum - highest) for maximum, share, _ in parts]
for (maximum, share, mean), scaled in zip(parts, shares, strict=True):
    print(f"  maximum {maximum:.0f}, sum {share:.4f}, mean {mean:.4f}: weighs {scaled / sum(shares):.4f}")
merged = sum(scaled * mean for scaled, (_, _, mean) in zip(shares, parts, strict=True)) / sum(shares)
print(f"merged  {merged:.6f}")
