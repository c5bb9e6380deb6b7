"""Draws by the sampling kernel: greedy rows and random ones, with filters or without, all with the same kind of noise.

A row draws with noise made of its seed and its token's position, not from a generator with a state. So a second draw
for the same position gives the same token, in any batch, in a CUDA graph, and in a step that was launched ahead. Logits
that were edited (masks, penalties) have a launch of their own, with the same seed and position.

vLLM: v1/worker/gpu/sample/sampler.py (gumbel_sample)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.draw import NO_TOKEN, NOT_FINITE
from folovllm.sample.filters import Candidates, Filters, Pool, full_weights
from folovllm.sample.logits_processors import processors_for
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow

NUM_SETTINGS = 5


def takes_raw_logits(row: SamplingRow) -> bool:
    """Whether it draws from the logits as they came. It follows from the row's own parameters alone: else the other
    rows of the batch would decide how it is drawn."""
    return not row.params.use_beam_search and not processors_for(row)


def draw_seed() -> int:
    """For a row without a seed of its own: from torch's default generator, which the engine's seed sets."""
    return int(torch.randint(2**63 - 1, ()))


def host_params(rows: Sequence[SamplingRow], seeds: Sequence[int], vocab_size: int) -> np.ndarray:
    """The kernel's settings of these rows, [NUM_SETTINGS, b] for GumbelParams(): float64 temperature, int64 top_k,
    float64 top_p and min_p, int64 seed, all as the int64 that has these bits. A column of zeros is a greedy row."""
    params = [row.params for row in rows]
    packed = np.zeros((NUM_SETTINGS, len(rows)), np.int64)
    temperature, top_p, min_p = (packed[line].view(np.float64) for line in (0, 2, 3))
    temperature[:] = [0.0 if p.is_greedy or p.use_beam_search else p.temperature for p in params]
    packed[1] = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    top_p[:] = [np.inf if p.top_p >= 1.0 else p.top_p for p in params]
    min_p[:] = [p.min_p for p in params]
    packed[4] = [(seed + 2**63) % 2**64 - 2**63 for seed in seeds]  # as int64 says the same 64 bits
    return packed


@dataclass(slots=True)
class GumbelParams:
    """What host_params() made, on the device."""

    packed: Tensor
    """[NUM_SETTINGS, b] int64, contiguous in a row."""

    def draw(self, logits: Tensor, offsets: Tensor, *, out: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
        """Token ids [b] for logits [b, vocab]; NOT_FINITE where there is none. offsets: integers [b], another for each
        token of a row. out [b] int64: where to write. kept [b, vocab] int8: 1 where a token may be drawn, 0 elsewhere;
        what it held does not matter."""
        from folovllm.sample.kernels.sampler import sample  # Triton takes half a second to import

        temperature, top_k, top_p, min_p, seeds = self.packed.unbind(0)
        floats = [part.view(torch.float64) for part in (temperature, top_p, min_p)]
        filters = Filters(floats[0], top_k, floats[1], floats[2])
        return sample(logits, filters, seeds, offsets, out=out, kept=kept)


@dataclass(slots=True)
class GumbelRows:
    """Rows that need more than a draw: their logits are edited, or they report log-probabilities. The sampler does so,
    and calls draw() here."""

    params: GumbelParams
    offsets: Tensor
    """[b], as GumbelParams.draw() takes them."""
    drawn: Tensor | None
    """[b] what the launch over all rows drew, from logits as they came; None: none did, and draw() always reports."""

    def take(self, rows: Tensor | slice) -> GumbelRows:
        drawn = None if self.drawn is None else self.drawn[rows]
        return GumbelRows(GumbelParams(self.params.packed[:, rows].contiguous()), self.offsets[rows], drawn)

    def draw(self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata) -> tuple[Tensor, list[Pool]]:
        reports = metadata.group.num_logprobs is not None and metadata.group.logprobs_mode == "processed"
        if self.drawn is not None and edited is raw and not reports:
            return self.drawn, []
        logits = edited.float()
        kept = torch.empty(logits.shape, dtype=torch.int8, device=logits.device)
        tokens = self.params.draw(logits, self.offsets, kept=kept)
        if edited is not raw:
            largest = raw.amax(dim=-1)
            tokens = tokens.masked_fill(tokens < 0, NO_TOKEN).masked_fill(largest.sub(largest).ne(0), NOT_FINITE)
        if not (reports or self.drawn is None) or metadata.group.path == "greedy":
            return tokens, []
        weights = full_weights(logits, metadata.filters.temperature).masked_fill_(kept == 0, 0.0)
        return tokens, [(list(range(len(tokens))), Candidates(weights))]
