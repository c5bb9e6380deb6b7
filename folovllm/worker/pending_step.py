"""A step between its launch and its result: the device computes, the host has other things to do.

    launch(N)   queues the forward, the draw and the copy of the token ids to the host, and returns
    collect(N)  waits until that copy has arrived

One copy from the device a step brings all token ids. It is queued behind the kernels that draw them, into pinned
memory, and an event behind it tells when it is over: nothing else on the device is waited for, so a step that was
launched meanwhile goes on.

vLLM: v1/worker/gpu_model_runner.py (AsyncGPUModelRunnerOutput)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Sequence
from folovllm.sample.logprobs import LogprobsTensors
from folovllm.worker.input_batch import Expected
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput


class HostCopy:
    """A tensor that is being copied to the host; on a CPU it is there already."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._arrived = tensor, None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def get(self) -> torch.Tensor:
        """Waits for the copy."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor


@dataclass(slots=True)
class PendingDraw:
    """What a step has drawn, of which the host knows nothing yet."""

    seqs: list[Sequence]
    places: list[int]
    """Where in the step's rows they stand."""
    expected: Expected
    token_ids: HostCopy
    logprobs: list[HostCopy] | None
    """The fields of LogprobsTensors, where somebody asked."""
    reported: list[int | None]
    """How many of the likeliest tokens each of them reports; None: nothing."""

    def logprobs_rows(self) -> list[LogprobsRow | None]:
        if self.logprobs is None:
            return [None] * len(self.seqs)
        rows = LogprobsRow.from_tensors(LogprobsTensors(*(copy.get() for copy in self.logprobs)))
        return [None if count is None else row.cut(count) for row, count in zip(rows, self.reported, strict=True)]


@dataclass(slots=True)
class PendingStep:
    """Handed from launch() to collect()."""

    scheduled: SchedulerOutput
    draw: PendingDraw | None = None
    """None: nobody draws in this step."""
    prompt_logprobs: dict[str, list[LogprobsRow]] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)

    def result(self, token_ids: list[int]) -> ModelRunnerOutput:
        """With the token ids of `draw` [len(draw.seqs)], which have arrived."""
        num_rows = len(self.scheduled.rows)
        output = ModelRunnerOutput([None] * num_rows, [None] * num_rows, self.prompt_logprobs, self.failures)
        if self.draw is None:
            return output
        rows = self.draw.logprobs_rows()
        for seq, place, token_id, row in zip(self.draw.seqs, self.draw.places, token_ids, rows, strict=True):
            if self.failures and seq.seq_id in self.failures:
                continue
            output.logprobs[place] = row
            if not seq.sampling_params.use_beam_search:  # beams choose their tokens together, from the logprobs
                output.token_ids[place] = token_id
        return output
