"""SamplingMetadata: what the sampler needs besides the logits, of rows that are all sampled in one way.

    greedy     argmax                                    temperature below 1e-5
    prefix     the likeliest tokens, in falling order    top_k, top_p, min_p
    full       the whole vocabulary, in no order         temperature alone

Built once for a sequence, used for each of its steps. How a row is sampled follows from its own parameters alone: so a
seeded row draws the same tokens in any batch.

vLLM: v1/sample/metadata.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from folovllm.sample.filters import Filters, path_of
from folovllm.sample.logits_processors import LogitsProcessor, apply_checked, processors_for
from folovllm.sample.row import SamplingRow


class SamplingGroup(NamedTuple):
    """How a row is sampled. Rows with equal groups can be computed together."""

    path: str
    width: int
    """Among how many of the likeliest tokens the path draws."""
    processors: tuple[type[LogitsProcessor], ...]
    """In the order in which they act."""
    num_logprobs: int | None
    """How many of the likeliest tokens are reported beside the drawn one; None: no log-probabilities at all."""
    logprobs_mode: str

    @classmethod
    def of(cls, row: SamplingRow, vocab_size: int) -> SamplingGroup:
        params = row.params
        path, width = ("greedy", 1) if params.is_greedy else path_of(params, vocab_size)
        return cls(path, width, processors_for(row), num_reported(row), params.logprobs_mode)


def num_reported(row: SamplingRow) -> int | None:
    """How many of the likeliest tokens it reports beside its own; None: log-probabilities are not asked for."""
    return (row.params.logprobs or 0) if row.params.needs_logprobs else None


@dataclass(slots=True)
class SamplingMetadata:
    """Row i goes with row i of the logits."""

    group: SamplingGroup
    filters: Filters
    generators: list[torch.Generator | None]
    processors: list[LogitsProcessor]

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> SamplingMetadata:
        group = SamplingGroup.of(rows[0], vocab_size)
        processors = [processor() for processor in group.processors]
        for processor in processors:
            processor.update(rows)
        filters = Filters.of([row.params for row in rows], vocab_size, device)
        return cls(group, filters, [row.generator for row in rows], processors)

    def edit(self, logits: Tensor) -> Tensor:
        """Masks, biases, processors and penalties, on a float32 copy; no copy when all are idle."""
        active = [processor for processor in self.processors if not processor.is_idle()]
        if not active:
            return logits
        logits = logits.to(torch.float32, copy=True)
        for processor in active:
            logits = apply_checked(processor, logits)
        return logits
