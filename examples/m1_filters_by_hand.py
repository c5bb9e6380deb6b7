"""Top-k and top-p on eight words, and two ways to write top-p that look right and are not.

What stays is what the engine's own sampler draws from: its processed logprobs are printed, not a copy of its rules.

Run it: python examples/m1_filters_by_hand.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
import torch

from folovllm import SamplingParams
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import Sampler

WORDS = ["sunny", "cloudy", "pleasant", "warm", "terrible", "purple", "seven", "of"]
WEATHER = [0.45, 0.25, 0.15, 0.08, 0.04, 0.01, 0.01, 0.01]  # "The weather today is ..."
FIVE = [0.40, 0.30, 0.15, 0.10, 0.05]


def drawn_from(probabilities: list[float], **params: float) -> list[float]:
    """The distribution that the engine's sampler draws from, after the filters in `params`."""
    asked = SamplingParams(logprobs=len(probabilities), logprobs_mode="processed", **params)  # type: ignore[arg-type]
    row = SamplingRow(asked, [], [], frozenset(), None)
    metadata = SamplingMetadata.build([row], len(probabilities), torch.device("cpu"))
    logprobs = Sampler()(torch.tensor([probabilities]).log(), metadata).logprobs
    assert logprobs is not None
    entries = dict(zip(logprobs.token_ids[0].tolist(), logprobs.logprobs[0].exp().tolist(), strict=True))
    return [entries[i] for i in range(len(probabilities))]


def drops_the_boundary(probabilities: torch.Tensor, p: float) -> torch.Tensor:
    """A mistake: keeps a token if the sum WITH it is at most p, so the token that crosses the line is lost."""
    kept = probabilities.cumsum(0) <= p
    return torch.where(kept, probabilities, 0.0)


def leaks(probabilities: torch.Tensor, p: float) -> torch.Tensor:
    """A mistake: what was excluded gets a little mass back from a clamp that was to prevent a division by zero."""
    excluded = probabilities.cumsum(0) > p
    return probabilities.masked_fill(excluded, 0.0).clamp_min(1e-10)


def show(name: str, values: list[float]) -> None:
    print(f"{name:<24}", " ".join(f"{value:8.4f}" if value else "       -" for value in values))


def main() -> None:
    print(" " * 24, " ".join(f"{word:>8}" for word in WORDS))
    show("the model", WEATHER)
    show("top_k=5", drawn_from(WEATHER, top_k=5))
    show("top_p=0.95", drawn_from(WEATHER, top_p=0.95))
    show("top_k=5, top_p=0.95", drawn_from(WEATHER, top_k=5, top_p=0.95))

    five = torch.tensor(FIVE)
    print(f"\n{FIVE}, top_p=0.9")
    for name, left in (
        ("the sampler", drawn_from(FIVE, top_p=0.9)),
        ("cumsum <= p", drops_the_boundary(five, 0.9).tolist()),
    ):
        kept = [p for p, weight in zip(FIVE, left, strict=True) if weight > 0]
        print(f"  {name:<12} keeps {len(kept)}, mass {sum(kept):.2f}")
    empty = drops_the_boundary(five, 0.3)
    print(f"  cumsum <= p with top_p=0.3 keeps {int((empty > 0).sum())}: 0 / 0 is {(empty / empty.sum())[0].item()}")

    vocab_size = 151_936
    weights = torch.zeros(vocab_size)
    weights[:5] = five
    leaked = leaks(weights, 0.9)
    back = leaked[leaked < 1e-9]
    print(f"\nclamp_min(1e-10) over {vocab_size:,} tokens: {len(back):,} excluded ones share {back.sum():.1e}")


if __name__ == "__main__":
    main()
