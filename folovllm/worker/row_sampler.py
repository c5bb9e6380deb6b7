"""A batch's sampling with each row in a group of its own: what one row computes, no other row takes part in.

M1's sampler puts rows of one kind into a group, which is computed as one tensor. exp() of that tensor is shared among
threads without regard to rows, and a sum may be taken in another order when there are more of them. A row in a group
of its own is always computed in the same way. An argmax is exact, so rows that want no more stay together.

vLLM: none (its kernels take a row per block as they are)
"""

from __future__ import annotations

import torch

from folovllm.request import Sequence
from folovllm.sample.metadata import RowGroup, SamplingMetadata
from folovllm.worker.batch_sampler import BatchSampler


class RowSampler(BatchSampler):
    def _metadata_for(self, seqs: list[Sequence]) -> SamplingMetadata:
        if self._metadata is None or self._seqs != seqs:
            metadata = super()._metadata_for(seqs)
            metadata.groups = [part for group in metadata.groups for part in self._split(group, seqs)]
        return super()._metadata_for(seqs)  # which is kept by now

    def _split(self, group: RowGroup, seqs: list[Sequence]) -> list[RowGroup]:
        if group.path == "greedy" and not group.edits and group.raw_rows is None and group.processed_rows is None:
            return [group]
        parts = []
        for place in group.rows.tolist():
            row = self._rows[seqs[place].seq_id]
            (part,) = SamplingMetadata.build([row], self.vocab_size, self.device).groups
            part.rows, part.start = torch.tensor([place], device=self.device), place
            parts.append(part)
        return parts
