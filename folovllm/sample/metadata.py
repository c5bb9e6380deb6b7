"""SamplingMetadata: what the sampler needs besides the logits, of rows that are all sampled in one way.

    greedy    argmax                                          temperature below 1e-5
    beam      reports the likeliest tokens, draws nothing     use_beam_search
    others    as path_of() in filters.py says                 top_k, top_p, min_p, temperature alone

Built once for the same rows, used for each of their steps.

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
        params, mode = row.params, row.params.logprobs_mode
        if params.use_beam_search:
            path, width = "beam", vocab_size
            mode = mode if params.needs_logprobs else "processed"  # what beams are ranked by
        else:
            path, width = ("greedy", 1) if params.is_greedy else path_of(params, vocab_size)
        return cls(path, width, processors_for(row), num_reported(row), mode)


def num_reported(row: SamplingRow) -> int | None:
    """How many of the likeliest tokens it reports beside its own; None: log-probabilities are not asked for."""
    params = row.params
    if params.use_beam_search:
        # A beam needs best_of tokens that do not end it, and every token that ends it may be likelier than these.
        endings = len(row.eos_token_ids | set(params.stop_token_ids or ()))
        return max(params.logprobs or 0, params.best_of + endings)
    return (params.logprobs or 0) if params.needs_logprobs else None


@dataclass(slots=True)
class SamplingMetadata:
    """Row i goes with row i of the logits."""

    group: SamplingGroup
    filters: Filters  # of no row where nothing is drawn
    generators: list[torch.Generator | None]
    processors: list[LogitsProcessor]

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> SamplingMetadata:
        group = SamplingGroup.of(rows[0], vocab_size)
        processors = [processor() for processor in group.processors]
        for processor in processors:
            processor.update(rows)
        drawing = [] if group.path in ("greedy", "beam") else [row.params for row in rows]
        return cls(group, Filters.of(drawing, vocab_size, device), [row.generator for row in rows], processors)

    def edit(self, logits: Tensor) -> Tensor:
        """Masks, biases, processors and penalties, on a float32 copy; no copy when all are idle."""
        active = [processor for processor in self.processors if not processor.is_idle()]
        if not active:
            return logits
        logits = logits.to(torch.float32, copy=True)
        for processor in active:
            logits = apply_checked(processor, logits)
        return logits
