"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences form one flat dimension, those of prompts beside
single ones, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

execute_model() hands a step to the device and does not wait for its tokens. Before they are asked for, another step may
be launched, which reads this one's tokens where they are, on the device. Steps of one token per sequence and small
steps with prompts are replayed from CUDA graphs, where there are any.

vLLM: v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.sample.gumbel import GumbelParams
from folovllm.utils.engine_lock import interrupts_allowed
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.cuda_graph import CudaGraphs, padded_size
from folovllm.worker.follower import Command, pack_moves
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.lora import LoRASlots
from folovllm.worker.pinned_mover import PinnedBlockMover
from folovllm.worker.pooler import Pooler
from folovllm.worker.prompt_logprobs import PromptLogprobs
from folovllm.worker.prompt_shape import PromptShape
from folovllm.worker.proposer import Proposer
from folovllm.worker.speculation import Speculation


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self, model: DecoderForCausalLM, kv_cache: KVCache, sampling: BatchSampler, graphs: CudaGraphs | None, *,
        num_swap_blocks: int, max_num_seqs: int, max_model_len: int, device: torch.device,
        proposer: Proposer | None = None, rejects: bool = False, group: GroupCoordinator | None = None,
        pooler: Pooler | None = None, lora: LoRASlots | None = None,
    ) -> None:  # fmt: skip
        """group: of the ranks that repeat what this one does; None: there is one. pooler: what makes the answers; None:
        tokens are drawn. lora: None: there are no adapters."""
        self.model, self.kv_cache, self.sampling, self.graphs = model, kv_cache, sampling, graphs
        self.pooler, self.lora = pooler, lora
        self.group, self.device, self.vocab_size = group, device, model.decoder_spec.vocab_size
        self._on_device = partial(torch.cuda.device, device) if device.type == "cuda" else nullcontext
        self.mover = make_mover(kv_cache, num_swap_blocks, device)
        num_groups = len(kv_cache.groups.windows)
        self.batch = InputBatch(max_num_seqs, max_model_len, kv_cache.block_size, device, num_groups)
        self.prompt_logprobs = PromptLogprobs(model, device)
        self.speculation = None if proposer is None else Speculation(proposer, self.batch, sampling, rejects=rejects)

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        """Hand one step to the device. Its sequences stay as they are: appending tokens is the scheduler's business.

        After a failure the batch is forgotten, since how far the step came is not known.
        """
        try:
            # An interrupt between what is sent and what is computed would leave the ranks at different steps.
            with interrupts_allowed() if self.group is None else nullcontext(), self._on_device():
                return self._execute_model(scheduled)
        except BaseException:  # an interrupt, too, may come between two of the batch's arrays
            self.batch.clear()
            for seq_id in scheduled.finished_seq_ids:  # named once only, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        self._update_batch(scheduled)
        self.move_blocks(scheduled)
        step = AsyncModelRunnerOutput(self.batch, scheduled.rows)
        if not step.rows:  # blocks were moved, nothing is computed
            return step
        seqs, nums, forks = scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks
        drafts: dict[str, list[int]] | None = None
        if self.speculation is not None and scheduled.num_lookahead_tokens:
            drafts = self.speculation.propose(scheduled)
            nums = [num + len(drafts.get(seq.seq_id, ())) for seq, num in zip(seqs, nums, strict=True)]
        lora_slots = None if self.lora is None else self.lora.of(seqs)
        size, shape = self._choose_graph(scheduled, nums)
        inputs = self.batch.prepare(seqs, nums, forks, size, shape, lora_slots)
        step.draws = inputs.draws.tolist() if self.pooler is None else []
        drawing = list(map(step.rows.__getitem__, step.draws))
        hidden = logits = drawn = None
        reads_hidden = self.speculation is not None and self.speculation.proposer.reads_hidden
        if self.graphs is not None and shape is not None:
            hidden = self.graphs.prompts.replay(inputs, shape)  # the device has work while its draws are prepared
        gumbel_params = self._prepare_draws(drawing, None if drafts is None else inputs.num_drawn)
        if self.graphs is None or size is None:
            if sum(nums) > len(seqs):  # else every row is a last one
                wants_all = drafts is not None or any(seq.sampling_params.prompt_logprobs is not None for seq in seqs)
                wants_all = wants_all or (self.pooler is not None and self.pooler.needs_every_row)
                inputs.metadata.last_rows_only = not (wants_all or reads_hidden)
            if hidden is None:
                hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
            if self.speculation is not None and scheduled.num_prompt_tokens:
                self.speculation.proposer.computed(seqs, inputs)
        else:
            # Else not every row draws, or one draws that has none: the graph cannot know.
            graph_draws = gumbel_params is not None and inputs.logits_at is None
            hidden, logits, tokens = self.graphs.replay(inputs, size, gumbel_params if graph_draws else None)
            drawn = tokens if graph_draws else None
        if self.speculation is not None and reads_hidden:
            self.speculation.proposer.read(seqs, nums, hidden)
        if drawing:
            num_logits = int(inputs.num_drawn.sum())
            drawn = None if drawn is None else drawn[:num_logits]
            if logits is None:
                logits = self.model.compute_logits(_at(hidden, inputs.logits_at, num_logits))
            else:
                logits = _at(logits, inputs.logits_at, num_logits)
            logits = logits.to(self.sampling.device)  # the model's, but for a Mac's GPU
            if self.speculation is None or drafts is None:
                self._draw(step, drawing, inputs, logits, drawn)
            else:
                if drawn is None and gumbel_params is not None:
                    drawn = gumbel_params.draw(logits, _at(inputs.positions, inputs.logits_at, num_logits))
                self.speculation.verify(step, drawing, drafts, inputs, logits, drawn)
        else:
            self.batch.advance(inputs, [])
        if len(step.draws) < len(step.rows):
            step.set_computed(hidden[inputs.metadata.query_start_loc[1 : len(seqs) + 1] - 1])
        if self.pooler is not None:
            step.pooled = self.pooler.pool(seqs, nums, hidden)
        elif scheduled.num_prompt_tokens:
            step.prompt_logprobs = self.prompt_logprobs.gather(seqs, nums, hidden)
        return step

    def _choose_graph(self, scheduled: SchedulerOutput, nums: list[int]) -> tuple[int | None, PromptShape | None]:
        """The size of a graph of decodes, or the shape of one of prompts and drafts; (None, None): no graph fits.

        nums: of each sequence, the tokens that it computes, draft tokens among them.
        """
        if self.graphs is None:
            return None, None
        num_tokens, prompts = sum(nums), self.graphs.prompts
        num_drafted = num_tokens - scheduled.total_num_scheduled_tokens
        # A graph's rows are tokens. Log-probabilities of a prompt are by sequences, and a draft model computes it, too.
        fits = num_tokens == len(nums) + num_drafted and not (self.speculation and scheduled.num_prompt_tokens)
        size = padded_size(num_tokens, self.graphs.sizes) if fits else None
        if size is not None and not num_drafted:
            return size, None
        shape = prompts.shape_for_drafts(nums) if fits and num_drafted else prompts.shape_for(nums)
        return (size, None) if shape is None else (None, shape)

    def _prepare_draws(self, seqs: list[Sequence], counts: np.ndarray | None) -> GumbelParams | None:
        """counts: of a step with draft tokens."""
        if not seqs or (counts is not None and self.speculation is not None and self.speculation.rejects):
            return None
        return self.sampling.prepare(seqs, counts)

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
        self.batch.last_tokens.index_copy_(0, inputs.drawn_rows, sampled.token_ids.clamp(min=0).to(self.device))
        step.set_drawn(sampled, self.sampling.reported(seqs) if sampled.logprobs is not None else [])

    def move_blocks(self, scheduled: SchedulerOutput) -> None:
        if not (scheduled.blocks_to_swap_out or scheduled.blocks_to_swap_in or scheduled.blocks_to_copy):
            return
        with torch.inference_mode(), self._on_device():
            if self.group is None:
                self.mover.move(scheduled)
            else:
                self.group.lead([Command.MOVE, *pack_moves(scheduled)], None, lambda: self.mover.move(scheduled))
            if self.speculation is not None:
                self.speculation.proposer.move(scheduled)

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


def make_mover(kv_cache: KVCache, num_swap_blocks: int, device: torch.device) -> BlockMover | PinnedBlockMover:
    return (PinnedBlockMover if device.type == "cuda" else BlockMover)(kv_cache, num_swap_blocks)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Within this block `device` is this thread's current CUDA device; on a CPU nothing happens.

    Each thread has its own, and begins with the first. torch launches where its tensors are. A Triton kernel, an event
    and a recording go to the current device, wherever their tensors may be.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _at(rows: torch.Tensor, indices: torch.Tensor | None, count: int) -> torch.Tensor:
    """The rows with these indices; None: the first `count`, behind which there may be padding."""
    return rows[:count] if indices is None else rows[indices]
