"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences lie flat in one dimension, those of prompts beside
single ones, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

execute_model() hands a step to the device and does not wait for its tokens. Before they are asked for, another step may
be launched, which reads this one's tokens where they are, on the device. Steps of one token per sequence are replayed
from CUDA graphs, where there are any.

vLLM: v1/worker/gpu_model_runner.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.interrupts import interrupts_allowed
from folovllm.worker.async_output import AsyncModelRunnerOutput
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.cuda_graph import CudaGraphs
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.prompt_logprobs import PromptLogprobs
from folovllm.worker.row_failures import find_nan_prompts


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: type[AttentionBackend],
        *,
        num_blocks: int,
        num_swap_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.model, self.device = model, device
        self.vocab_size = model.decoder_spec.vocab_size
        self.kv_cache = KVCache(  # and the null block
            model, backend, num_blocks=num_blocks + 1, block_size=block_size, dtype=dtype, device=device
        )
        self.mover = BlockMover(self.kv_cache, num_swap_blocks)
        self.batch = InputBatch(max_num_seqs, max_model_len, block_size, device)
        self.sampling = BatchSampler(self.vocab_size, eos_token_ids, device)
        self.prompt_logprobs = PromptLogprobs(model, device)
        self.graphs: CudaGraphs | None = None

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        """Hand one step to the device. Its sequences stay as they are: appending tokens is the scheduler's business.

        After a failure the batch is forgotten, since how far the step came is not known.
        """
        try:
            with interrupts_allowed():
                return self._execute_model(scheduled)
        except BaseException:  # an interrupt, too, may come between two of the batch's arrays
            self.batch.clear()
            for seq_id in scheduled.finished_seq_ids:  # it is not said again, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute_model(self, scheduled: SchedulerOutput) -> AsyncModelRunnerOutput:
        self._update_batch(scheduled)
        if scheduled.moves_blocks:
            self.mover.move(scheduled)
        step = AsyncModelRunnerOutput(self.batch, scheduled.rows)
        if scheduled.is_empty:  # blocks were moved, nothing is computed
            return step
        seqs, nums, forks = scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks
        size = None
        if self.graphs is not None and scheduled.total_num_scheduled_tokens == len(seqs):
            size = self.graphs.size_for(len(seqs))
        inputs = self.batch.prepare(seqs, nums, forks, pad_to=size)
        if self.graphs is None or size is None:
            hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
            logits = likeliest = None
        else:
            hidden, logits, likeliest = self.graphs.replay(inputs, size)
        step.draws = inputs.draws.tolist()
        if step.draws:
            if logits is None:
                logits = self.model.compute_logits(_at(hidden, inputs.logits_at, len(step.draws)))
            else:
                logits = _at(logits, inputs.logits_at, len(step.draws))
            if likeliest is not None:
                likeliest = _at(likeliest, inputs.logits_at, len(step.draws))
            self._draw(step, inputs, logits, likeliest)
        else:
            self.batch.advance(inputs, [])
        if len(step.draws) < len(step.rows):
            step.set_computed(hidden[inputs.metadata.query_start_loc[1 : len(seqs) + 1] - 1])
        if scheduled.num_prompt_tokens:
            step.prompt_logprobs = self.prompt_logprobs.gather(scheduled, hidden)
            step.failures |= find_nan_prompts(seqs, step.prompt_logprobs)
        return step

    def _draw(
        self, step: AsyncModelRunnerOutput, inputs: StepInputs, logits: torch.Tensor, likeliest: torch.Tensor | None
    ) -> None:
        seqs = [step.rows[place] for place in step.draws]
        sampled, step.failures = self.sampling.sample(seqs, logits, likeliest)
        step.expected = self.batch.advance(inputs, seqs)
        self.batch.last_tokens.index_copy_(0, step.expected.rows_on_device, sampled.token_ids.clamp(min=0))
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


def _at(rows: torch.Tensor, places: torch.Tensor | None, count: int) -> torch.Tensor:
    """The rows at these places; None: the first `count`, behind which there may be padding."""
    return rows[:count] if places is None else rows[places]
