"""Runs one step of the batch: one forward for all its tokens, then one draw for each of its sequences.

Prefill and decode are the same code. The tokens of all sequences lie flat in one dimension, whole prompts beside single
tokens, and only the last position of each sequence reaches the LM head:

    input_ids   a0 a1 a2 a3 | b7 | c5        ─▶ hidden [6, hidden] ─▶ rows 3, 4, 5 ─▶ logits [3, vocab] ─▶ a4 b8 c6

vLLM: v1/worker/gpu_model_runner.py
"""

from __future__ import annotations

import numpy as np
import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.sample.logprobs import gather_logprobs
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput

# Prompt positions whose logits are held at once when prompt_logprobs asks for all of them: 64 rows of 151,936 float32
# logits are 39 MB, a 4,000-token prompt in one piece would be 2.4 GB.
PROMPT_LOGPROBS_ROWS = 64


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

    @torch.inference_mode()
    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """One step. Leaves the sequences as they are: appending their tokens is the scheduler's business."""
        try:
            return self._execute(scheduled)
        except BaseException:  # an interrupt, too, may come between two of the batch's arrays
            self.batch.clear()
            for seq_id in scheduled.finished_seq_ids:  # nobody says it again, and a new request may take the name
                self.sampling.remove(seq_id)
            raise

    def _execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self._update_batch(scheduled)
        self.mover.move(scheduled)
        step_rows = scheduled.rows
        output = ModelRunnerOutput([None] * len(step_rows), [None] * len(step_rows))
        if scheduled.is_empty:  # blocks were moved, nothing is computed
            return output
        inputs = self.batch.prepare(scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, scheduled.forks)
        hidden = self.model(inputs.input_ids, inputs.positions, inputs.metadata)
        if len(inputs.draws):
            self._draw(inputs, [step_rows[place] for place in inputs.draws], hidden, output)
        else:
            self.batch.advance(inputs, [], np.zeros(0, np.int64))
        output.prompt_logprobs = self._prompt_logprobs(scheduled, inputs, hidden)
        return output

    def _draw(
        self, inputs: StepInputs, seqs: list[Sequence], hidden: torch.Tensor, output: ModelRunnerOutput
    ) -> None:
        last = hidden if inputs.logits_at is None else hidden[inputs.logits_at]
        token_ids, logprobs, output.failures = self.sampling.sample(seqs, self.model.compute_logits(last))
        self.batch.advance(inputs, seqs, np.array([0 if token_id is None else token_id for token_id in token_ids]))
        for place, token_id, row in zip(inputs.draws, token_ids, logprobs, strict=True):
            output.token_ids[place], output.logprobs[place] = token_id, row

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

    def _prompt_logprobs(
        self, scheduled: SchedulerOutput, inputs: StepInputs, hidden: torch.Tensor
    ) -> dict[str, list[LogprobsRow]]:
        """For sequences that have just read their prompt and want to know how likely it was.

        All sequences of a request have the same prompt, so the first one answers for all.
        """
        answers: dict[str, list[LogprobsRow]] = {}
        for place, seq in enumerate(scheduled.scheduled_seqs):
            wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
            if wanted and seq.num_computed_tokens == 0 and seq.get_output_len() == 0:
                start = int(inputs.num_new[:place].sum())
                answers[seq.seq_id] = self._logprobs_of_prompt(seq, hidden[start : start + seq.get_prompt_len()])
        return answers

    def _logprobs_of_prompt(self, seq: Sequence, hidden: torch.Tensor) -> list[LogprobsRow]:
        """Row i is about prompt token i + 1: the logits after token i say how likely that token was."""
        num_top = seq.sampling_params.prompt_logprobs
        assert num_top is not None
        targets = torch.tensor(seq.data.prompt_token_ids[1:], device=self.device)
        rows: list[LogprobsRow] = []
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            logprobs = logits.float().log_softmax(dim=-1)
            rows += LogprobsRow.from_tensors(gather_logprobs(logprobs, num_top, wanted))
        return rows
