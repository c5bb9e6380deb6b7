"""Log-probabilities of a prompt's own tokens, from the forward that computes it.

    input_ids   p0 p1 p2 p3     logits after p0 p1 p2 say how likely p1 p2 p3 were     (after p3: the first draw)

They are made on the device, and a copy to the host is queued behind them: the step waits for it when it is collected,
not when it is launched.

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
    """For sequences that have just read their prompt and want to know how likely it was."""

    def __init__(self, model: DecoderForCausalLM, device: torch.device) -> None:
        self.model, self.device = model, device

    def gather(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> dict[str, LogprobsCopy]:
        """After a forward, whose `hidden` [num_tokens, hidden] are the step's tokens in order.

        All sequences of a request have the same prompt, so the first one answers for all.
        """
        answers: dict[str, LogprobsCopy] = {}
        start = 0
        for seq, num_tokens in zip(seqs, nums, strict=True):
            wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
            if wanted and seq.num_computed_tokens == 0 and seq.get_output_len() == 0:
                prompt = hidden[start : start + seq.get_prompt_len()]
                answers[seq.seq_id] = LogprobsCopy(self._of_prompt(seq, prompt))
            start += num_tokens
        return answers

    def _of_prompt(self, seq: Sequence, hidden: torch.Tensor) -> LogprobsTensors:
        """Row i is about prompt token i + 1: the logits after token i say how likely that token was."""
        num_top = seq.sampling_params.prompt_logprobs
        assert num_top is not None
        (targets,) = upload(self.device, np.array(seq.data.prompt_token_ids[1:], np.int64))
        pieces: list[LogprobsTensors] = []
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            pieces.append(gather_logprobs(logits.float().log_softmax(dim=-1), num_top, wanted))
        return joined(pieces) if pieces else LogprobsTensors(targets[:, None], targets[:, None].float(), targets)


def joined(pieces: list[LogprobsTensors]) -> LogprobsTensors:
    """Rows of one width, one after the other."""
    names = [part.name for part in fields(LogprobsTensors)]
    return LogprobsTensors(*(torch.cat([getattr(piece, name) for piece in pieces]) for name in names))
