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
from folovllm.worker.proposer import Proposer
from folovllm.worker.speculation import Speculation


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self, model: DecoderForCausalLM, kv_cache: KVCache, sampling: BatchSampler, graphs: CudaGraphs | None, *,
        num_swap_blocks: int, max_num_seqs: int, max_model_len: int, device: torch.device,
        proposer: Proposer | None = None, rejects: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.kv_cache, self.sampling, self.graphs = model, kv_cache, sampling, graphs
        self.device, self.vocab_size = device, model.decoder_spec.vocab_size
        self._on_device = partial(torch.cuda.device, device) if device.type == "cuda" else nullcontext
        mover = PinnedBlockMover if device.type == "cuda" else BlockMover
        self.mover = mover(kv_cache, num_swap_blocks)
        self.batch = InputBatch(max_num_seqs, max_model_len, kv_cache.block_size, device)
        self.prompt_logprobs = PromptLogprobs(model, device)
        self.speculation = None if proposer is None else Speculation(proposer, self.batch, sampling, rejects=rejects)

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
            for seq_id in scheduled.finished_seq_ids:  # it is not said again, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        self._update_batch(scheduled)
        if scheduled.blocks_to_swap_out or scheduled.blocks_to_swap_in or scheduled.blocks_to_copy:
            self.mover.move(scheduled)
            if self.speculation is not None:
                self.speculation.proposer.move(scheduled)
        step = AsyncModelRunnerOutput(self.batch, scheduled.rows)
        if not step.rows:  # blocks were moved, nothing is computed
            return step
        seqs, nums, forks = scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks
        drafts: dict[str, list[int]] | None = None
        size, num_tokens, num_drafted = None, scheduled.total_num_scheduled_tokens, 0
        if self.speculation is not None and scheduled.num_lookahead_tokens:
            drafts = self.speculation.propose(scheduled)
            nums = [num + len(drafts.get(seq.seq_id, ())) for seq, num in zip(seqs, nums, strict=True)]
            num_drafted = sum(map(len, drafts.values()))
            num_tokens += num_drafted
        # A graph's rows are tokens. Log-probabilities of a prompt are by sequences, and a draft model computes it, too.
        fits = num_tokens == len(seqs) + num_drafted and not (self.speculation and scheduled.num_prompt_tokens)
        if self.graphs is not None and fits:
            size = padded_size(num_tokens, self.graphs.sizes)
        inputs = self.batch.prepare(seqs, nums, forks, pad_to=size)
        step.draws = inputs.draws.tolist()
        drawing = list(map(step.rows.__getitem__, step.draws))
        gumbel_params = self.sampling.prepare(drawing) if drawing and drafts is None else None
        logits = drawn = None
        reads_hidden = self.speculation is not None and self.speculation.proposer.reads_hidden
        if self.graphs is None or size is None:
            if num_tokens > len(seqs):  # else every row is a last one
                wants_all = drafts is not None or any(seq.sampling_params.prompt_logprobs is not None for seq in seqs)
                inputs.metadata.last_rows_only = not (wants_all or reads_hidden)
            hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
            if self.speculation is not None and scheduled.num_prompt_tokens:
                self.speculation.proposer.computed(seqs, inputs)
        else:
            if inputs.logits_at is not None:
                gumbel_params = None  # not every row draws, or one draws that has none: the graph cannot know
            hidden, logits, tokens = self.graphs.replay(inputs, size, gumbel_params)
            drawn = None if gumbel_params is None else tokens[: len(drawing)]
        if self.speculation is not None and reads_hidden:
            self.speculation.proposer.read(seqs, nums, hidden)
        if drawing:
            num_logits = int(inputs.num_drawn.sum())
            if logits is None:
                logits = self.model.compute_logits(_at(hidden, inputs.logits_at, num_logits))
            else:
                logits = _at(logits, inputs.logits_at, num_logits)
            if self.speculation is None or drafts is None:
                self._draw(step, drawing, inputs, logits, drawn)
            else:
                self.speculation.verify(step, drawing, drafts, inputs, logits)
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
        if self.speculation is not None:
            for seq_id in (*scheduled.finished_seq_ids, *scheduled.stale_seq_ids):
                self.speculation.proposer.forget(seq_id)
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
    """The rows with these indices; None: the first `count`, behind which there may be padding."""
    return rows[:count] if indices is None else rows[indices]
