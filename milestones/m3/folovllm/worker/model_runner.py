"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences form one flat dimension, those of prompts beside
single ones, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

vLLM: v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
"""

from __future__ import annotations

import numpy as np
import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.utils.engine_lock import interrupts_allowed
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner_output import ModelRunnerOutput, find_nan_prompts, find_sampling_errors, to_rows
from folovllm.worker.prompt_logprobs import PromptLogprobs


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self, model: DecoderForCausalLM, backend: type[AttentionBackend], *, num_blocks: int, num_swap_blocks: int,
        block_size: int, max_num_seqs: int, max_model_len: int, dtype: torch.dtype, device: torch.device,
        eos_token_ids: frozenset[int],
    ) -> None:  # fmt: skip
        self.model, self.device = model, device
        self.vocab_size = model.decoder_spec.vocab_size
        self.kv_cache = KVCache(  # and the null block
            model, backend, num_blocks=num_blocks + 1, block_size=block_size, dtype=dtype, device=device
        )
        self.mover = BlockMover(self.kv_cache, num_swap_blocks)
        self.batch = InputBatch(max_num_seqs, max_model_len, block_size, device)
        self.sampling = BatchSampler(self.vocab_size, eos_token_ids, device)
        self.prompt_logprobs = PromptLogprobs(model, device)

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """One step. Leaves the sequences as they are: appending their tokens is the scheduler's business.

        After a failure the batch is forgotten, since how far the step came is not known.
        """
        try:
            with interrupts_allowed():
                return self._execute_model(scheduled)
        except BaseException:  # an interrupt, too, may come between two of the batch's arrays
            self.batch.clear()
            for seq_id in scheduled.finished_seq_ids:  # named once only, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self._update_batch(scheduled)
        if scheduled.blocks_to_swap_out or scheduled.blocks_to_swap_in or scheduled.blocks_to_copy:
            self.mover.move(scheduled)
        rows = scheduled.rows
        output = ModelRunnerOutput([None] * len(rows), [None] * len(rows))
        if not rows:  # blocks were moved, nothing is computed
            return output
        inputs = self.batch.prepare(scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks)
        hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
        if len(inputs.draws):
            last = hidden if inputs.logits_at is None else hidden[inputs.logits_at]
            self._draw(rows, inputs, self.model.compute_logits(last), output)
        else:
            self.batch.advance(inputs, [], np.zeros(0, np.int64))
        if scheduled.num_prompt_tokens:
            output.prompt_logprobs = self.prompt_logprobs.gather(scheduled, hidden)
            output.failures |= find_nan_prompts(scheduled.scheduled_seqs, output.prompt_logprobs)
        return output

    def _draw(self, rows: list[Sequence], inputs: StepInputs, logits: torch.Tensor, output: ModelRunnerOutput) -> None:
        seqs = list(map(rows.__getitem__, inputs.draws))
        sampled, output.failures = self.sampling.sample(seqs, logits)
        token_ids = sampled.token_ids.cpu()
        self.batch.advance(inputs, seqs, token_ids.numpy())
        if min(token_ids.tolist(), default=0) < 0:
            output.failures |= find_sampling_errors(seqs, token_ids.tolist())
        for index, seq, token_id in zip(inputs.draws, seqs, token_ids.tolist(), strict=True):
            # Beams choose their tokens together, from the logprobs.
            if not seq.sampling_params.use_beam_search and seq.seq_id not in output.failures:
                output.token_ids[index] = token_id
        if sampled.logprobs is not None:
            logprobs = to_rows(sampled.logprobs)
            for index, seq, row, count in zip(inputs.draws, seqs, logprobs, self.sampling.reported(seqs), strict=True):
                if count is not None and seq.seq_id not in output.failures:
                    output.logprobs[index] = row.cut(count)

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
