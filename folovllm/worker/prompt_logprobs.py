"""Log-probabilities of a prompt's own tokens, gathered while it comes in chunk by chunk.

    chunk 1   p0 p1 p2 p3     logits after p0 p1 p2 p3 say how likely p1 p2 p3 p4 were
    chunk 2   p4 p5           ... after p4                              p5            (after p5: the first draw)

So the last row of a chunk is about the first token of the next one: nothing is lost at the border, and nothing counted
twice. The rows are handed out when the last of them is there.

vLLM: v1/worker/gpu_model_runner.py (_get_prompt_logprobs_dict)
"""

from __future__ import annotations

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.sample.logprobs import gather_logprobs
from folovllm.worker.model_runner_output import LogprobsRow

# Prompt positions whose logits are held at once when prompt_logprobs asks for all of them: 64 rows of 151,936 float32
# logits are 39 MB, a 4,000-token prompt in one piece would be 2.4 GB.
PROMPT_LOGPROBS_ROWS = 64


class PromptLogprobs:
    """Holds the rows of prompts that have not come to their end."""

    def __init__(self, model: DecoderForCausalLM, device: torch.device) -> None:
        self.model, self.device = model, device
        self._rows: dict[Sequence, list[LogprobsRow]] = {}

    def gather(self, scheduled: SchedulerOutput, hidden: torch.Tensor) -> dict[str, list[LogprobsRow]]:
        """After a forward, whose `hidden` [num_tokens, hidden] are the step's tokens in order: rows of the sequences
        whose prompts end in this step, one for each prompt token but the first.

        All sequences of a request have the same prompt, so the first one answers for all.
        """
        for seq in [seq for seq in self._rows if seq.is_finished()]:
            del self._rows[seq]  # it was aborted on the way
        answers: dict[str, list[LogprobsRow]] = {}
        start = 0
        for seq, num_tokens in zip(scheduled.scheduled_seqs, scheduled.num_scheduled_tokens, strict=True):
            if _asks(seq):
                rows = self._gather_chunk(seq, hidden[start : start + num_tokens])
                if seq.num_computed_tokens + num_tokens >= seq.get_prompt_len():
                    answers[seq.seq_id] = rows
                    del self._rows[seq]
            start += num_tokens
        return answers

    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> list[LogprobsRow]:
        """All rows so far, with those of a chunk that begins at num_computed_tokens."""
        computed, num_top = seq.num_computed_tokens, seq.sampling_params.prompt_logprobs
        assert num_top is not None
        # A sequence that was preempted on the way begins anew: what it has from the first time is cut off.
        rows = self._rows[seq] = self._rows.get(seq, [])[:computed]
        targets = torch.tensor(seq.data.prompt_token_ids[computed + 1 : computed + 1 + len(hidden)], device=self.device)
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            logprobs = logits.float().log_softmax(dim=-1)
            rows += LogprobsRow.from_tensors(gather_logprobs(logprobs, num_top, wanted))
        return rows


def _asks(seq: Sequence) -> bool:
    """Once it has an output token it has had its answer: what is computed then is computed again."""
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0 and seq.num_computed_tokens < seq.get_prompt_len()
