"""Speculative sampling on a vocabulary of four: whatever a draft proposes, the target's distribution comes out.

Run it: python examples/m5_speculation.py
"""

from __future__ import annotations

from collections import Counter
from random import Random

Probs = list[float]


def accept_or_replace(draft: Probs, target: Probs, token: int, random: Random) -> tuple[int, bool]:
    """The draft's `token`, kept with probability min(1, target / draft); else one from what the target has more of."""
    if random.random() * draft[token] < target[token]:
        return token, True
    more = [max(t - d, 0.0) for d, t in zip(draft, target, strict=True)]
    return random.choices(range(len(target)), more)[0], False


def accepted_share(draft: Probs, target: Probs) -> float:
    """How likely a drafted token is kept: the area that both distributions have in common."""
    return sum(map(min, draft, target))


def tokens_per_step(share: float, drafted: int) -> float:
    """Tokens that one step of the target brings, on average: 1 + share + share^2 + ... + share^drafted."""
    return sum(share**kept for kept in range(drafted + 1))


if __name__ == "__main__":
    draft, target = [0.5, 0.3, 0.1, 0.1], [0.4, 0.1, 0.3, 0.2]
    random, draws = Random(0), 100_000
    counts: Counter[int] = Counter()
    kept = 0
    for _ in range(draws):
        drafted = random.choices(range(4), draft)[0]
        token, was_kept = accept_or_replace(draft, target, drafted, random)
        counts[token] += 1
        kept += was_kept
    print("draft ", draft)
    print("target", target)
    print("drawn ", [round(counts[token] / draws, 2) for token in range(4)])
    print(f"kept   {kept / draws:.2f}, expected {accepted_share(draft, target):.2f}")
    for share in (0.5, 0.7, 0.9):
        row = "  ".join(f"{tokens_per_step(share, drafted):.2f}" for drafted in (1, 2, 4, 8))
        print(f"tokens a step at {share}, with 1, 2, 4, 8 drafted: {row}")
