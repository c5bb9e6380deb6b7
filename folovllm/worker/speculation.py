"""A step with draft tokens, as the worker does it: propose them, compute them, keep those that are drawn as well.

    propose()    the proposer names tokens      they are put into the batch, behind the sequence's tokens
    forward      last token and draft tokens    one row of logits for each
    verify()     draws, position by position    what is gained comes back as ModelRunnerOutput.drafts

The sampler reads a sequence's output so far: penalties count it, grammars follow it, bad words end in it. So while a
run is drawn, the tokens that are gained wait in SamplingRow.ahead; the scheduler appends them to the sequence.

vLLM: v1/worker/gpu_model_runner.py (propose_draft_token_ids, _calc_spec_decode_metadata)
"""

from __future__ import annotations

import numpy as np
import torch

from folovllm.core.scheduler_output import SchedulerOutput, VerifiedDraft
from folovllm.request import Sequence
from folovllm.sample.rejection import DraftedRows
from folovllm.sample.sampler import SamplerOutput
from folovllm.utils.upload import upload
from folovllm.worker.async_output import AsyncModelRunnerOutput, LaterLogprobs, LogprobsCopy
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.proposer import Proposer
from folovllm.worker.verify import verify

UNKNOWN = -1
"""In the place of a draft token."""


class Speculation:
    """Shares the runner's batch and sampler."""

    def __init__(self, proposer: Proposer, batch: InputBatch, sampling: BatchSampler, *, rejects: bool = False) -> None:
        """rejects: the proposer draws its tokens, and rejection sampling keeps them or not. Greedy sequences and those
        with a seed are verified as ever."""
        self.proposer, self.batch, self.sampling, self.rejects = proposer, batch, sampling, rejects
        self._probs: dict[str, torch.Tensor] = {}
        """By sequence id: what this step's draft tokens were drawn from, [draft tokens, vocab]."""
        self._on_device: torch.Tensor | None = None
        """This step's draft tokens, where the host does not know them before verify()."""

    def propose(self, scheduled: SchedulerOutput) -> dict[str, list[int]]:
        """The draft tokens by sequence id, which the batch then has: no more than there is room for. Those that the
        device alone knows are UNKNOWN until verify()."""
        seqs = [seq for seq in scheduled.scheduled_seqs if seq.seq_id in scheduled.num_lookahead_tokens]
        counts = [scheduled.num_lookahead_tokens[seq.seq_id] for seq in seqs]
        drafts: dict[str, list[int]] = {}
        self._on_device, found = None, None
        if not self.rejects and self.sampling.draws_at_once(scheduled.rows):
            found = self.proposer.propose_on_device(seqs, counts)
        if found is not None:
            self._on_device = self.batch.device_drafts = found[0]
            return {seq.seq_id: [UNKNOWN] * length for seq, length in zip(seqs, found[1], strict=True)}
        if self.rejects:
            named, probs = self.proposer.propose_with_probabilities(seqs, counts)
            self._probs = {seq.seq_id: of_seq for seq, of_seq in zip(seqs, probs, strict=True)}
        else:
            named = self.proposer.propose(seqs, counts)
        for seq, draft in zip(seqs, named, strict=True):
            drafts[seq.seq_id] = draft
            self.batch.set_drafts(seq, draft)
        return drafts

    def verify(
        self, step: AsyncModelRunnerOutput, seqs: list[Sequence], drafts: dict[str, list[int]], inputs: StepInputs,
        logits: torch.Tensor, drawn: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Draw for `seqs`, each from the rows of `logits` that are its own, and put all that comes of it into `step`.

        logits: [sum of inputs.num_drawn, vocab].  drawn: a token of each row, where none depends on those before it.
        """
        if drawn is None:
            drawn = self.sampling.greedy_tokens(seqs, logits)
        if drawn is None:
            gained = self._draw_in_turn(step, seqs, drafts, inputs, logits)
        else:
            gained = self._take_drawn(step, seqs, drafts, inputs, drawn)
        self.batch.settle(inputs, seqs, gained)
        for seq, token_ids in zip(seqs, gained, strict=True):
            if seq.seq_id in drafts:
                step.drafts[seq.seq_id] = VerifiedDraft(drafts[seq.seq_id], token_ids[1:])

    def _take_drawn(
        self, step: AsyncModelRunnerOutput, seqs: list[Sequence], drafts: dict[str, list[int]], inputs: StepInputs,
        drawn: torch.Tensor,
    ) -> list[list[int]]:  # fmt: skip
        """The only wait for the device in such a step."""
        device_drafts, num_drawn = self._on_device, len(drawn)
        tokens = (drawn if device_drafts is None else torch.cat([drawn, device_drafts])).tolist()
        if device_drafts is not None:
            named = iter(tokens[num_drawn:])
            for draft in drafts.values():
                draft[:] = [next(named) for _ in draft]
            self.proposer.drafted(seqs, [drafts.get(seq.seq_id, []) for seq in seqs])
        firsts = (inputs.num_drawn.cumsum() - inputs.num_drawn).tolist()
        step.set_drawn(SamplerOutput(torch.tensor([tokens[first] for first in firsts])), [])

        def draw(indices: list[int], position: int) -> list[int | None]:
            found = [tokens[firsts[index] + position] for index in indices]
            return [token_id if token_id >= 0 else None for token_id in found]

        return verify([drafts.get(seq.seq_id, []) for seq in seqs], draw)

    def _draw_in_turn(
        self, step: AsyncModelRunnerOutput, seqs: list[Sequence], drafts: dict[str, list[int]], inputs: StepInputs,
        logits: torch.Tensor,
    ) -> list[list[int]]:  # fmt: skip
        """One position after the other: what is drawn may depend on what was."""
        firsts = inputs.num_drawn.cumsum() - inputs.num_drawn
        positions = inputs.positions[: len(logits)] if inputs.logits_at is None else inputs.positions[inputs.logits_at]
        sampling_rows = self.sampling.rows_of(seqs)

        def draw(indices: list[int], position: int) -> list[int | None]:
            some, at = [seqs[index] for index in indices], firsts[indices] + position
            if len(at) == len(logits):
                part, part_positions = logits, positions
            else:
                (device_at,) = upload(logits.device, at)
                part, part_positions = logits[device_at], positions[device_at]
            drafted = self._drafted(some, drafts, position, logits) if self.rejects else None
            sampled, failures = self.sampling.draw(some, part, part_positions, drafted=drafted)
            token_ids = sampled.token_ids.tolist()
            reported = self.sampling.reported(some) if sampled.logprobs is not None else []
            if position == 0:
                step.failures = failures
                step.set_drawn(sampled, reported)
            fine = [token_id >= 0 and seq.seq_id not in failures for seq, token_id in zip(some, token_ids, strict=True)]
            if position > 0 and sampled.logprobs is not None:
                reported = [count if is_fine else None for count, is_fine in zip(reported, fine, strict=True)]
                step.later_logprobs.append(LaterLogprobs(some, LogprobsCopy(sampled.logprobs), reported))
            tokens = [token_id if is_fine else None for token_id, is_fine in zip(token_ids, fine, strict=True)]
            for index, token_id in zip(indices, tokens, strict=True):
                if token_id is not None:
                    sampling_rows[index].ahead.append(token_id)
            return tokens

        try:
            return verify([drafts.get(seq.seq_id, []) for seq in seqs], draw)
        finally:
            for sampling_row in sampling_rows:
                sampling_row.ahead.clear()

    def _drafted(
        self, seqs: list[Sequence], drafts: dict[str, list[int]], position: int, logits: torch.Tensor
    ) -> DraftedRows | None:
        """The draft tokens at this position, of sequences that have one there and no seed; None: no sequence has."""
        drafted, nothing = np.zeros(len(seqs), np.int64), torch.zeros(logits.shape[-1], device=logits.device)
        probs = [nothing] * len(seqs)
        for row, seq in enumerate(seqs):
            draft = drafts.get(seq.seq_id, [])
            if position < len(draft) and seq.sampling_params.seed is None:
                drafted[row], probs[row] = draft[position], self._probs[seq.seq_id][position]
        if all(row is nothing for row in probs):
            return None
        (device_drafted,) = upload(logits.device, drafted)
        return DraftedRows(device_drafted, torch.stack(probs))
