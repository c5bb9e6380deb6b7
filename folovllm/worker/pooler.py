"""From the rows of a prompt to the vector that is its answer, while it comes in chunk by chunk.

    chunk 1   p0 p1 p2 p3     MEAN: their sum is kept            LAST: nothing
    chunk 2   p4 p5           that, and theirs, divided by 6     p5's row

vLLM: v1/pool/metadata.py, model_executor/layers/pooler/activations.py, model_executor/layers/pooler/seqwise/methods.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from folovllm.pooling_params import PoolerConfig
from folovllm.request import Sequence
from folovllm.worker.async_output import HostCopy

Vectors = dict[str, list[float]]
"""By sequence id."""


class Pooler:
    """head: [labels, hidden] float32, of a classifier; None: the pooled row is the answer."""

    def __init__(self, config: PoolerConfig, head: torch.Tensor | None) -> None:
        self.config, self.head = config, head
        self.needs_every_row = config.pooling_type == "MEAN"
        self._sums: dict[Sequence, torch.Tensor] = {}  # of prompts that have not come to their end

    def pool(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> Callable[[], Vectors]:
        """After a forward, whose `hidden` [num_tokens, hidden] are the step's tokens in order: what waits for the
        vectors of those sequences whose prompts end in this step."""
        for seq in [seq for seq in self._sums if seq.is_finished()]:
            del self._sums[seq]  # it was aborted on the way
        ends = np.cumsum(nums)
        done = [at for at, seq in enumerate(seqs) if seq.num_computed_tokens + nums[at] >= seq.get_prompt_len()]
        if self.needs_every_row:
            sums = [self.add(seq, hidden[end - num : end]) for seq, num, end in zip(seqs, nums, ends, strict=True)]
            rows = torch.stack([self._mean(seqs[at], sums[at]) for at in done]) if done else hidden[:0].float()
        else:
            rows = hidden[torch.from_numpy(ends[done] - 1).to(hidden.device)].float()
        if self.head is not None:
            rows = rows @ self.head.T
        ended, copy = [seqs[at] for at in done], HostCopy(rows)
        return lambda: {seq.seq_id: self.finish(seq, row) for seq, row in zip(ended, copy.get().numpy(), strict=True)}

    def add(self, seq: Sequence, rows: torch.Tensor) -> torch.Tensor:
        """The sum [hidden] of all rows so far, with those of a chunk that begins at num_computed_tokens."""
        before = self._sums.pop(seq, None)
        total = rows.sum(dim=0, dtype=torch.float32)
        if before is not None and seq.num_computed_tokens:  # one that was preempted begins anew
            total += before
        self._sums[seq] = total
        return total

    def _mean(self, seq: Sequence, total: torch.Tensor) -> torch.Tensor:
        del self._sums[seq]
        return total / seq.get_prompt_len()

    def finish(self, seq: Sequence, row: np.ndarray) -> list[float]:
        """A pooled row in float32, or a classifier's logits, as one request wants it."""
        params = seq.pooling_params
        assert params is not None
        row = row[: params.dimensions]
        if params.use_activation and self.config.task == "embed":
            row = row / max(float(np.linalg.norm(row)), 1e-12)
        elif params.use_activation:
            as_pair = self.config.size == 1 or self.config.is_multi_label
            row = np.exp(row - np.logaddexp.reduce(row)) if not as_pair else 1 / (1 + np.exp(-row))
        return row.tolist()  # type: ignore[no-any-return]
