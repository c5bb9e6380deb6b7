"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences form one flat dimension, those of prompts beside
single ones, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

execute_model() hands a step to the device and does not wait for its tokens. Before they are asked for, another step may
be launched, which reads this one's tokens where they are, on the device. Steps of one token per sequence are replayed
from CUDA graphs, where there are any.

vLLM: v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.utils.engine_lock import interrupts_allowed
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.cuda_graph import CudaGraphs, padded_size
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.pinned_mover import PinnedBlockMover
from folovllm.worker.prompt_logprobs import PromptLogprobs


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self, model: DecoderForCausalLM, kv_cache: KVCache, sampling: BatchSampler, graphs: CudaGraphs | None, *,
        num_swap_blocks: int, max_num_seqs: int, max_model_len: int, device: torch.device,
    ) -> None:  # fmt: skip
        self.model, self.kv_cache, self.sampling, self.graphs = model, kv_cache, sampling, graphs
        self.device, self.vocab_size = device, model.decoder_spec.vocab_size
        self._on_device = partial(torch.cuda.device, device) if device.type == "cuda" else nullcontext
        mover = PinnedBlockMover if device.type == "cuda" else BlockMover
        self.mover = mover(kv_cache, num_swap_blocks)
        self.batch = InputBatch(max_num_seqs, max_model_len, kv_cache.block_size, device)
        self.prompt_logprobs = PromptLogprobs(model, device)

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        """Hand one step to the device. Its sequences stay as they are: appending tokens is the scheduler's business.

        After a failure the batch is forgotten, since how far the step came is not known.
        """
        try:
            with interrupts_allowed(), self._on_device():
                return self._execute_model(scheduled)
        except BaseException:  # an interrupt, too, may come between two of the batch's arrays
            self.batch.clear()
            for seq_id in scheduled.finished_seq_ids:  # named once only, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        self._update_batch(scheduled)
        if scheduled.blocks_to_swap_out or scheduled.blocks_to_swap_in or scheduled.blocks_to_copy:
            self.mover.move(scheduled)
        step = AsyncModelRunnerOutput(self.batch, scheduled.rows)
        if not step.rows:  # blocks were moved, nothing is computed
            return step
        seqs, nums, forks = scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks
        size = None
        if self.graphs is not None and scheduled.total_num_scheduled_tokens == len(seqs):
            size = padded_size(len(seqs), self.graphs.sizes)
        inputs = self.batch.prepare(seqs, nums, forks, pad_to=size)
        step.draws = inputs.draws.tolist()
        drawing = list(map(step.rows.__getitem__, step.draws))
        gumbel_params = self.sampling.prepare(drawing) if drawing else None
        logits = drawn = None
        if self.graphs is None or size is None:
            if scheduled.total_num_scheduled_tokens > len(seqs):  # else every row is a last one
                inputs.metadata.last_rows_only = all(seq.sampling_params.prompt_logprobs is None for seq in seqs)
            hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
        else:
            if inputs.logits_at is not None:
                gumbel_params = None  # not every row draws, or one draws that has none: the graph cannot know
            hidden, logits, tokens = self.graphs.replay(inputs, size, gumbel_params)
            drawn = None if gumbel_params is None else tokens[: len(drawing)]
        if drawing:
            if logits is None:
                logits = self.model.compute_logits(_at(hidden, inputs.logits_at, len(drawing)))
            else:
                logits = _at(logits, inputs.logits_at, len(drawing))
            self._draw(step, drawing, inputs, logits, drawn)
        else:
            self.batch.advance(inputs, [])
        if len(step.draws) < len(step.rows):
            step.set_computed(hidden[inputs.metadata.query_start_loc[1 : len(seqs) + 1] - 1])
        if scheduled.num_prompt_tokens:
            step.prompt_logprobs = self.prompt_logprobs.gather(seqs, nums, hidden)
        return step

    def _draw(
        self,
        step: AsyncModelRunnerOutput,
        seqs: list[Sequence],
        inputs: StepInputs,
        logits: torch.Tensor,
        drawn: torch.Tensor | None,
    ) -> None:
        positions = _at(inputs.positions, inputs.logits_at, len(seqs))
        sampled, step.failures = self.sampling.draw(seqs, logits, positions, drawn)
        step.expected = self.batch.advance(inputs, seqs)
        self.batch.last_tokens.index_copy_(0, inputs.drawn_rows, sampled.token_ids.clamp(min=0))
        step.set_drawn(sampled, self.sampling.reported(seqs) if sampled.logprobs is not None else [])

    def _update_batch(self, scheduled: SchedulerOutput) -> None:
        for seq_id in scheduled.finished_seq_ids:
            self.batch.remove(seq_id)
            self.sampling.remove(seq_id)
        for seq_id in scheduled.stale_seq_ids:
            self.batch.remove(seq_id)
        for seq in scheduled.rows:
            if seq.seq_id not in self.batch:
                self.batch.add(seq)
                self.sampling.add(seq)
        for seq in scheduled.grown_seqs:
            self.batch.set_blocks(seq)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Within this block `device` is this thread's current CUDA device; on a CPU nothing happens.

    Each thread has its own, and begins with the first. torch launches where its tensors are. A Triton kernel, an event
    and a recording go to the current device, wherever their tensors may be.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _at(rows: torch.Tensor, indices: torch.Tensor | None, count: int) -> torch.Tensor:
    """The rows at these places; None: the first `count`, behind which there may be padding."""
    return rows[:count] if indices is None else rows[indices]
