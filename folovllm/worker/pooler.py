"""From the rows of a prompt to the vector that is its answer, while it comes in chunk by chunk.

    chunk 1   p0 p1 p2 p3     MEAN: their sum is kept            LAST: nothing
    chunk 2   p4 p5           that, and theirs, divided by 6     p5's row

LAST needs no more than the row that every other request draws from: it is computed in any case, chunks, cached prefixes
and preemptions or not. MEAN needs all rows, so that no prefix is taken from the cache, and all of the last layer.

vLLM: v1/pool/metadata.py, model_executor/layers/pooler/ (seqwise/methods.py, seqwise/heads.py, activations.py)
"""

from __future__ import annotations

import numpy as np
import torch

from folovllm.pooling_params import PoolerConfig, PoolingParams
from folovllm.request import Sequence
from folovllm.worker.async_output import HostCopy, PooledRows


class Pooler:
    """Holds the sums of prompts that have not come to their end.

    Args:
        head: [labels, hidden] float32, of a classifier; None: the pooled row is the answer.
    """

    def __init__(self, config: PoolerConfig, head: torch.Tensor | None) -> None:
        self.config, self.head = config, head
        self.needs_every_row = config.pooling_type == "MEAN"
        self._sums: dict[Sequence, torch.Tensor] = {}

    def pool(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> PooledRows:
        """After a forward, whose `hidden` [num_tokens, hidden] are the step's tokens in order: what became of the
        sequences whose prompts end in this step, in float32."""
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
        return PooledRows([seqs[at] for at in done], HostCopy(rows), self.finish)

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

    def finish(self, params: PoolingParams, row: np.ndarray) -> list[float]:
        """A pooled row, or a classifier's logits, as one request wants it."""
        row = row[: params.dimensions]
        if params.use_activation and self.config.task == "embed":
            row = row / max(float(np.linalg.norm(row)), 1e-12)
        elif params.use_activation and (self.config.size == 1 or self.config.is_multi_label):
            row = 1 / (1 + np.exp(-row))
        elif params.use_activation:
            row = np.exp(row - row.max())
            row /= row.sum()
        return row.tolist()  # type: ignore[no-any-return]
