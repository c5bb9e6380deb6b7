"""The sampler: logits [B, vocab] in, one token per row out, and logprobs where they were asked for.

    masks ─▶ bias ─▶ custom ─▶ penalties ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw
    └─ edits of a few logits, float32 ──┘   └─ among the likeliest tokens, float64 ──────┘

vLLM: v1/sample/sampler.py, v1/worker/gpu/sample/sampler.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from folovllm.sample.draw import (
    Generators,
    draw_exponential_race,
    draw_inverse_cdf,
    exponentials,
    mark_failed_draws,
    uniforms,
)
from folovllm.sample.filters import Candidates, find_candidates
from folovllm.sample.logprobs import LogprobsTensors, candidate_logprobs, gather_logprobs
from folovllm.sample.metadata import SamplingMetadata


@dataclass(slots=True)
class SamplerOutput:
    """One step's tokens; `logprobs` is None when no row needs any."""

    token_ids: Tensor  # [B] int64; a row that could not be drawn from has a code of sample/draw.py
    logprobs: LogprobsTensors | None = None


class Sampler:
    """Draws one token per row. Holds no state: that is in the rows and their generators.

    `draw`: "inverse_cdf" is faster on a CPU, "exponential_race" on a GPU; "auto" goes by the logits' device.
    """

    def __init__(self, draw: Literal["auto", "inverse_cdf", "exponential_race"] = "auto") -> None:
        self.draw = draw

    def __call__(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """`logits` [B, vocab] of any float type, which are not written to; row i is row i of the metadata."""
        return self.sample(logits, metadata.edit(logits) if metadata.processors else logits, metadata)

    def sample(self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """raw, edited: the logits before and after the edits, the same tensor where nothing was edited."""
        group, candidates = metadata.group, None
        if group.path == "greedy":
            drawn = edited.argmax(dim=-1)
        else:
            candidates = find_candidates(edited, metadata.filters, group.path, group.width)
            drawn = self._draw(candidates, metadata.generators)
        token_ids = mark_failed_draws(drawn, raw, edited)
        if group.num_logprobs is None:
            return SamplerOutput(token_ids)
        if group.logprobs_mode == "processed" and candidates is not None:
            logprobs = candidate_logprobs(candidates, raw.shape[-1])
        else:  # a greedy row draws from nothing: processed ones are those that the argmax was taken of
            logprobs = (edited if group.logprobs_mode == "processed" else raw).float().log_softmax(dim=-1)
        return SamplerOutput(token_ids, gather_logprobs(logprobs, group.num_logprobs, drawn))

    def _draw(self, candidates: Candidates, generators: Generators) -> Tensor:
        weights = candidates.weights
        if self.draw == "exponential_race" or (self.draw == "auto" and weights.device.type != "cpu"):
            return draw_exponential_race(candidates, exponentials(weights.shape, generators, weights.device))
        return draw_inverse_cdf(candidates, uniforms(generators, weights.device))
