"""Log-probabilities of a prompt's own tokens, gathered while it comes in chunk by chunk.

    chunk 1   p0 p1 p2 p3     logits after p0 p1 p2 p3 say how likely p1 p2 p3 p4 were
    chunk 2   p4 p5           ... after p4                              p5            (after p5: the first draw)

So the last row of a chunk is about the first token of the next one: nothing is lost at the border, and nothing counted
twice. The rows stay on the device until the last of them is there; then a copy to the host is queued. The step waits
for it when it is collected, not when it is launched.

vLLM: v1/worker/gpu_model_runner.py (_get_prompt_logprobs_dict), v1/worker/gpu/sample/prompt_logprob.py
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.sample.logprobs import LogprobsTensors, gather_logprobs
from folovllm.utils.upload import upload
from folovllm.worker.async_output import LogprobsCopy

# Prompt positions whose logits are held at once when prompt_logprobs asks for all of them: 64 rows of 151,936 float32
# logits are 39 MB, a 4,000-token prompt in one piece would be 2.4 GB.
PROMPT_LOGPROBS_ROWS = 64


class PromptLogprobs:
    """Holds the rows of prompts that have not come to their end."""

    def __init__(self, model: DecoderForCausalLM, device: torch.device) -> None:
        self.model, self.device = model, device
        self._rows: dict[Sequence, LogprobsTensors] = {}

    def gather(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> dict[str, LogprobsCopy]:
        """After a forward, whose `hidden` [num_tokens, hidden] are the step's tokens in order: rows of the sequences
        whose prompts end in this step, one for each prompt token but the first.

        All sequences of a request have the same prompt, so the first one answers for all.
        """
        for seq in [seq for seq in self._rows if seq.is_finished()]:
            del self._rows[seq]  # it was aborted on the way
        answers: dict[str, LogprobsCopy] = {}
        start = 0
        for seq, num_tokens in zip(seqs, nums, strict=True):
            if _asks(seq):
                rows = self._gather_chunk(seq, hidden[start : start + num_tokens])
                if seq.num_computed_tokens + num_tokens >= seq.get_prompt_len():
                    answers[seq.seq_id] = LogprobsCopy(rows)
                    del self._rows[seq]
            start += num_tokens
        return answers

    def _gather_chunk(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        """All rows so far, with those of a chunk that begins at num_computed_tokens."""
        computed, num_top = seq.num_computed_tokens, seq.sampling_params.prompt_logprobs
        assert num_top is not None
        # A sequence that was preempted on the way begins anew: what it has from the first time is cut off.
        pieces = [cut(self._rows[seq], computed)] if seq in self._rows and computed else []
        prompt = seq.data.prompt_token_ids
        (targets,) = upload(self.device, np.array(prompt[computed + 1 : computed + 1 + len(hidden)], np.int64))
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            pieces.append(gather_logprobs(logits.float().log_softmax(dim=-1), num_top, wanted))
        if not pieces:  # a prompt of one token: no row
            pieces.append(LogprobsTensors(targets[:, None], targets[:, None].float(), targets))
        rows = self._rows[seq] = joined(pieces)
        return rows


def cut(rows: LogprobsTensors, count: int) -> LogprobsTensors:
    """The first `count` rows."""
    return LogprobsTensors(rows.token_ids[:count], rows.logprobs[:count], rows.ranks[:count])


def joined(pieces: list[LogprobsTensors]) -> LogprobsTensors:
    """Rows of one width, one after the other."""
    names = [part.name for part in fields(LogprobsTensors)]
    return LogprobsTensors(*(torch.cat([getattr(piece, name) for piece in pieces]) for name in names))


def _asks(seq: Sequence) -> bool:
    """Once it has an output token it has had its answer: what is computed then is computed again."""
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0 and seq.num_computed_tokens < seq.get_prompt_len()
