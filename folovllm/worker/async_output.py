"""A step between its launch and its result: the device computes, the host has other things to do.

    execute_model(N)   queues the forward, the draw and the copy of the token ids to the host, and returns
    get_output()       waits until that copy has arrived

One copy from the device a step brings all token ids. It is queued behind the kernels that draw them, into pinned
memory, and an event behind it is recorded when it is over. Nothing else on the device is waited for, so a step that was
launched meanwhile goes on.

vLLM: v1/worker/gpu_model_runner.py (AsyncGPUModelRunnerOutput), v1/worker/gpu/async_utils.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch

from folovllm.core.scheduler_output import VerifiedDraft
from folovllm.request import Sequence
from folovllm.sample.logprobs import LogprobsTensors
from folovllm.sample.sampler import SamplerOutput
from folovllm.utils.engine_lock import interrupts_allowed
from folovllm.worker.input_batch import Expected, InputBatch
from folovllm.worker.model_runner_output import (
    Failures,
    LogprobsRow,
    ModelRunnerOutput,
    find_nan_prompts,
    find_not_finite,
    find_sampling_errors,
    to_rows,
)


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


class LogprobsCopy:
    """Log-probabilities on their way to the host."""

    def __init__(self, tensors: LogprobsTensors) -> None:
        self._type = type(tensors)
        self._parts = [HostCopy(getattr(tensors, part.name)) for part in fields(tensors)]

    def rows(self) -> list[LogprobsRow]:
        """Waits for the copy."""
        return to_rows(self._type(*(part.get() for part in self._parts)))


@dataclass(slots=True)
class LaterLogprobs:
    """Of the tokens at one position of the runs that some sequences have gained, behind their first one."""

    seqs: list[Sequence]
    logprobs: LogprobsCopy
    reported: list[int | None]
    """As set_drawn() has it; None, too, where a sequence gained no token."""

    def add_to(self, found: dict[str, list[LogprobsRow]]) -> None:
        for seq, row, count in zip(self.seqs, self.logprobs.rows(), self.reported, strict=True):
            if count is not None:
                found.setdefault(seq.seq_id, []).append(row.cut(count))


@dataclass(slots=True)
class AsyncModelRunnerOutput:
    """What execute_model returns. Steps are asked for their outputs in the order in which they were launched."""

    batch: InputBatch
    rows: list[Sequence]
    """All that take part: SchedulerOutput.rows."""
    prompt_logprobs: dict[str, LogprobsCopy] = field(default_factory=dict)
    """By sequence id, of prompts that end in this step."""
    pooled: Callable[[], dict[str, list[float]]] | None = None
    """Waits for the vectors of sequences that end with their prompt, in this step."""
    failures: Failures = field(default_factory=dict)
    draws: list[int] = field(default_factory=list)
    """Which of `rows` draw a token."""
    expected: Expected | None = None
    """Where the tokens belong in the batch; None: this step draws none, or they are there already."""
    drafts: dict[str, VerifiedDraft] = field(default_factory=dict)
    later_logprobs: list[LaterLogprobs] = field(default_factory=list)
    """Of a step with draft tokens: of the second tokens of the sequences that gained two, and so on."""
    _token_ids: HostCopy | None = None
    _is_bad: HostCopy | None = None
    """Which of `rows` came out of the model as NaN or infinity, where some of them draw no token that would show it."""
    _logprobs: LogprobsCopy | None = None
    """Of all draws, where a row reports any."""
    _reported: list[int | None] = field(default_factory=list)

    def set_computed(self, hidden: torch.Tensor) -> None:
        """hidden: what the model made of the last token of each row that was computed, [num_seqs, hidden].

        That token attends to all before it. So if it is finite, the keys and values that the row has written are.
        """
        self._is_bad = HostCopy(hidden.sub(hidden).ne(0).any(dim=-1))  # infinity minus itself is NaN

    def set_drawn(self, sampled: SamplerOutput, reported: list[int | None]) -> None:
        """Begin the copies to the host. reported: how many of the likeliest tokens each draw reports; None: nothing."""
        self._token_ids = HostCopy(sampled.token_ids)
        if sampled.logprobs is not None:
            self._logprobs = LogprobsCopy(sampled.logprobs)
            self._reported = reported

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the step's results. After a failure the batch is forgotten."""
        num_rows = len(self.rows)
        output = ModelRunnerOutput([None] * num_rows, [None] * num_rows, failures=self.failures, drafts=self.drafts)
        if self._is_bad is not None:
            is_bad = self._is_bad.get().tolist()
            self.failures |= find_not_finite(self.rows[: len(is_bad)], is_bad)
        if self.pooled is not None:
            output.pooled = self.pooled()
        if self.prompt_logprobs:
            output.prompt_logprobs = {seq_id: copy.rows() for seq_id, copy in self.prompt_logprobs.items()}
            self.failures |= find_nan_prompts(self.rows, output.prompt_logprobs)
        if self._token_ids is None:
            return output
        try:
            with interrupts_allowed():
                arrived = self._token_ids.get()
            if self.expected is not None:
                self.batch.fill(self.expected, arrived.numpy())
        except BaseException:
            self.batch.clear()
            raise
        drawn = arrived.tolist()
        if min(drawn, default=0) < 0:
            self.failures |= find_sampling_errors([self.rows[index] for index in self.draws], drawn)
        if self._logprobs is None and not self.failures and len(drawn) == num_rows:
            output.token_ids = [*drawn]  # of all rows; none is a beam, which would report log-probabilities
        else:
            for index, token_id in zip(self.draws, drawn, strict=True):
                seq = self.rows[index]
                # Beams choose their tokens together, from the logprobs.
                if not seq.sampling_params.use_beam_search and seq.seq_id not in self.failures:
                    output.token_ids[index] = token_id
        if self._logprobs is not None:
            for index, row, count in zip(self.draws, self._logprobs.rows(), self._reported, strict=True):
                if count is not None and self.rows[index].seq_id not in self.failures:
                    output.logprobs[index] = row.cut(count)
        for later in self.later_logprobs:
            later.add_to(output.later_logprobs)
        return output
