"""SamplingRow: what the sampler knows of one running sequence, and keeps from step to step.

Its parameters, live tokens, generator and counts of tokens are together: a sequence can change its place in the batch,
leave it and come back, and still draws what it would have drawn.

vLLM: v1/worker/gpu_input_batch.py (what it holds for each request)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from folovllm.sampling_params import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """Made at a sequence's first step, and kept until it ends."""

    params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]  # the live list: the engine appends to it
    eos_token_ids: frozenset[int]
    generator: torch.Generator | None
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    token_counts: dict[int, int] = field(init=False, repr=False)
    """How often each of its tokens is in the OUTPUT; 0: in the prompt alone."""
    _num_counted: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.token_counts = dict.fromkeys(self.prompt_token_ids, 0)

    def count_tokens(self) -> None:
        """Count what the output gained since the last call: each token is read once."""
        for token_id in self.output_token_ids[self._num_counted :]:
            self.token_counts[token_id] = self.token_counts.get(token_id, 0) + 1
        self._num_counted = len(self.output_token_ids)


def make_generator(params: SamplingParams, index: int, device: torch.device) -> torch.Generator | None:
    """The generator of the request's sequence `index`: seed + index, or None for an unseeded request.

    Made once per sequence. Its state advances once per output token, and goes along through preemption.
    """
    if params.seed is None:
        return None
    return torch.Generator(device=device).manual_seed(params.seed + index)
