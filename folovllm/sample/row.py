"""SamplingRow: what the sampler knows of one running sequence, and keeps from step to step.

Its parameters, live tokens, generator and counts of tokens are together: a sequence can change its place in the batch,
leave it and come back, and still draws what it would have drawn.

vLLM: v1/worker/gpu_input_batch.py (what it holds for each request)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from folovllm.sampling_params import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """Made at a sequence's first step, and kept until it ends."""

    params: SamplingParams
    prompt_token_ids: list[int]
    known_token_ids: list[int]  # of the output; the live list: the engine appends to it
    eos_token_ids: frozenset[int]
    generator: torch.Generator | None
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    token_counts: TokenCounts | None = field(default=None, init=False, repr=False)
    """Of a row with penalties."""
    ahead: list[int] = field(default_factory=list, init=False, repr=False)
    """Drawn in this step, behind `known_token_ids`: draft tokens that were right."""

    @property
    def output_token_ids(self) -> list[int]:
        """To be read only. All tokens before the one that is drawn next."""
        return self.known_token_ids + self.ahead if self.ahead else self.known_token_ids


def make_generator(params: SamplingParams, index: int, device: torch.device) -> torch.Generator | None:
    """The generator of the request's sequence `index`: seed + index, or None for an unseeded request.

    Made once per sequence. Its state advances once per output token, and goes along through preemption.
    """
    if params.seed is None:
        return None
    return torch.Generator(device=device).manual_seed(params.seed + index)


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs in its OUTPUT (0: in the prompt alone).

    Kept on the SamplingRow: it outlives changes of the batch, and reads each token once.
    """

    __slots__ = ("_counts", "_num_counted", "_slot_of", "_token_ids", "size")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._slot_of: dict[int, int] = {token_id: slot for slot, token_id in enumerate(distinct)}
        self.size = len(distinct)
        self._token_ids = np.fromiter(distinct, np.int64, self.size)
        self._counts = np.zeros(self.size, np.float32)
        self._num_counted = 0

    def catch_up(self, output_token_ids: list[int]) -> None:
        """Counts what the live list gained since the last call."""
        for token_id in output_token_ids[self._num_counted :]:
            slot = self._slot_of.setdefault(token_id, self.size)
            if slot == self.size:
                self._append(token_id)
            self._counts[slot] += 1
        self._num_counted = len(output_token_ids)

    @property
    def token_ids(self) -> np.ndarray:
        return self._token_ids[: self.size]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: self.size]

    def _append(self, token_id: int) -> None:
        if self.size == len(self._token_ids):
            capacity = max(64, self.size)
            self._token_ids = np.concatenate([self._token_ids, np.zeros(capacity, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(capacity, np.float32)])
        self._token_ids[self.size] = token_id
        self.size += 1
