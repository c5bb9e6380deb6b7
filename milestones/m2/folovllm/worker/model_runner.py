"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences form one flat dimension, those of prompts beside
single ones, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

vLLM: v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.engine_lock import interrupts_allowed
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.input_batch import InputBatch
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput, find_nan_prompts, find_sampling_errors
from folovllm.worker.prompt_logprobs import PromptLogprobs


class ModelRunner:
    """Holds the model, the KV cache, the batch and the sequences' sampling state."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: type[AttentionBackend],
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.model, self.device = model, device
        self.vocab_size = model.decoder_spec.vocab_size
        self.kv_cache = KVCache(
            model, backend, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device
        )
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
        seqs = scheduled.scheduled_seqs
        inputs = self.batch.prepare(seqs, scheduled.num_scheduled_tokens)
        hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
        last = hidden if inputs.last is None else hidden[inputs.last]
        sampled, failures = self.sampling.sample(seqs, self.model.compute_logits(last))
        token_ids = sampled.token_ids.cpu()
        self.batch.advance(inputs, token_ids.numpy())
        output = ModelRunnerOutput(list(token_ids.tolist()), [None] * len(seqs), failures=failures)
        if min(output.token_ids, default=0) < 0:
            failures |= find_sampling_errors(seqs, output.token_ids)
        if sampled.logprobs is not None:
            reported = zip(self.sampling.reported(seqs), LogprobsRow.from_tensors(sampled.logprobs), strict=True)
            output.logprobs = [None if count is None else row.cut(count) for count, row in reported]
        for index, seq in enumerate(seqs if failures else ()):
            if seq.seq_id in failures:
                output.token_ids[index] = output.logprobs[index] = None
        if scheduled.num_prompt_tokens:
            output.prompt_logprobs = self.prompt_logprobs.gather(scheduled, hidden)
            output.failures |= find_nan_prompts(seqs, output.prompt_logprobs)
        return output

    def _update_batch(self, scheduled: SchedulerOutput) -> None:
        for seq_id in scheduled.finished_seq_ids:
            self.batch.remove(seq_id)
            self.sampling.remove(seq_id)
        for seq in scheduled.rows:
            if seq.seq_id not in self.batch:
                self.batch.add(seq)
                self.sampling.add(seq)
