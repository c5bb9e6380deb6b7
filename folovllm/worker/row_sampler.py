"""A batch's sampling with each row in a group of its own: what one row computes, no other row takes part in.

M1's sampler puts rows of one kind into a group, which is computed as one tensor. exp() of that tensor is shared among
threads without regard to rows, and a sum may be taken in another order when there are more of them. A row in a group
of its own is always computed in the same way. An argmax is exact, so rows that want no more stay together.

vLLM: none (its kernels take a row per block as they are)
"""

from __future__ import annotations

import torch

from folovllm.sample.metadata import RowGroup, SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.worker.batch_sampler import BatchSampler

HOST = torch.device("cpu")


class RowSampler(BatchSampler):
    def _build(self, rows: list[SamplingRow]) -> SamplingMetadata:
        """Made on the host, and sent to the device as a whole."""
        metadata = SamplingMetadata.build(rows, self.vocab_size, HOST)
        metadata.groups = [part for group in metadata.groups for part in self._split(group, rows)]
        if self.device != HOST and not metadata.is_plain_greedy:
            metadata.send(self.device)
        return metadata

    def _split(self, group: RowGroup, rows: list[SamplingRow]) -> list[RowGroup]:
        if group.path == "greedy" and not group.edits and group.raw_rows is None and group.processed_rows is None:
            return [group]
        parts = []
        for place in group.rows.tolist():
            (part,) = SamplingMetadata.build([rows[place]], self.vocab_size, HOST).groups
            part.rows, part.start = torch.tensor([place]), place
            parts.append(part)
        return parts
