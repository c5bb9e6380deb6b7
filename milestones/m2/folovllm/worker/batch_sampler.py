"""Sampling for the sequences of a step: their sampling state, and their groups, which are made anew only when other
sequences take part than before.

A logits processor is its request's own code and may fail. Then the others must not suffer: the culprits are found by
running each suspect alone, and the rest is sampled without them. If none fails alone, all suspects count as culprits.
Nothing has been drawn by then (the sampler runs all processors of this kind before its first draw), so a seeded
neighbour's tokens stay what they would have been.

vLLM: v1/worker/gpu_input_batch.py (refresh_metadata)
"""

from __future__ import annotations

import torch

from folovllm.request import Sequence
from folovllm.sample.groups import RowGroup, group_rows, sample_groups, spread_logprobs
from folovllm.sample.metadata import SamplingMetadata, num_reported
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler, SamplerOutput
from folovllm.worker.model_runner_output import Failures


class BatchSampler:
    """Holds one SamplingRow per sequence, from its first step to its end."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int], device: torch.device) -> None:
        self.sampler = Sampler()
        self.vocab_size, self.eos_token_ids, self.device = vocab_size, eos_token_ids, device
        self._rows: dict[str, SamplingRow] = {}
        self._states: dict[str, dict[int, torch.Tensor]] = {}
        """Of a sequence's generator, before the draws of its last two tokens: {position of the token: state}."""
        self._seqs: list[Sequence] = []  # the groups', in this order
        self._groups: list[RowGroup] | None = None

    def add(self, seq: Sequence) -> None:
        """A sequence that comes back keeps its state: its generator goes on where it was."""
        if seq.seq_id in self._rows:
            return
        self._rows[seq.seq_id] = SamplingRow(
            params=seq.sampling_params,
            prompt_token_ids=seq.data.prompt_token_ids,
            output_token_ids=seq.data.output_token_ids,  # the live list: penalties and bad_words see it grow
            eos_token_ids=self.eos_token_ids,
            generator=make_generator(seq.sampling_params, seq.index, self.device),
            bad_words_token_ids=seq.sampling_params.bad_words_token_ids,
        )
        if seq.sampling_params.seed is not None:
            self._states[seq.seq_id] = {}

    def remove(self, seq_id: str) -> None:
        self._rows.pop(seq_id, None)
        self._states.pop(seq_id, None)

    def reported(self, seqs: list[Sequence]) -> list[int | None]:
        """How many of the likeliest tokens each of them reports beside the drawn one; None: nothing."""
        return [num_reported(self._rows[seq.seq_id]) for seq in seqs]

    def sample(self, seqs: list[Sequence], logits: torch.Tensor) -> tuple[SamplerOutput, Failures]:
        """One token for each of `seqs`, whose logits are the rows of `logits` [num_seqs, vocab].

        Returns what was drawn, still on the device: 0 where sampling failed, and without meaning for a beam.
        """
        try:
            groups = self._groups_of(seqs)
            if self._states:
                self._begin_draws(seqs)
            return sample_groups(self.sampler, logits, groups), {}
        except Exception as error:
            failures = self._find_failures(seqs, logits)
            if not failures:  # it fails among others only, if a processor fails at all
                failures = {seq.seq_id: error for seq in seqs if seq.sampling_params.extra_args}
            if not failures:
                raise  # no request's own fault: the engine's
            return self._sample_without(failures, seqs, logits)

    def _groups_of(self, seqs: list[Sequence]) -> list[RowGroup]:
        if self._groups is None or self._seqs != seqs:
            self._groups = None  # in case a processor's update raises
            rows = [self._rows[seq.seq_id] for seq in seqs]
            self._groups, self._seqs = group_rows(rows, self.vocab_size, self.device), list(seqs)
        return self._groups

    def _begin_draws(self, seqs: list[Sequence]) -> None:
        """A position that was drawn before is drawn again with the same random numbers: the step that was to bring its
        token was cut short."""
        for seq in seqs:
            row, states = self._rows[seq.seq_id], self._states.get(seq.seq_id)
            if row.generator is None or states is None:
                continue
            index = len(row.output_token_ids)
            if index in states:
                row.generator.set_state(states[index])
            else:
                states[index] = row.generator.get_state()
                states.pop(index - 2, None)

    def _find_failures(self, seqs: list[Sequence], logits: torch.Tensor) -> Failures:
        """Run the processors of each suspect alone; nothing is drawn."""
        self._groups = None
        failures: Failures = {}
        for index, seq in enumerate(seqs):
            if not seq.sampling_params.extra_args:
                continue
            try:
                row = self._rows[seq.seq_id]
                SamplingMetadata.build([row], self.vocab_size, self.device).edit(logits[index : index + 1])
            except Exception as error:
                failures[seq.seq_id] = error
        return failures

    def _sample_without(
        self, failures: Failures, seqs: list[Sequence], logits: torch.Tensor
    ) -> tuple[SamplerOutput, Failures]:
        good = [index for index, seq in enumerate(seqs) if seq.seq_id not in failures]
        drawn = SamplerOutput(torch.zeros(len(seqs), dtype=torch.int64, device=logits.device))
        if good:
            indices = torch.tensor(good, device=logits.device)
            rest, more = self.sample([seqs[index] for index in good], logits[indices])
            failures |= more
            drawn.token_ids[indices] = rest.token_ids
            if rest.logprobs is not None:
                drawn.logprobs = spread_logprobs(drawn.token_ids, [(indices, rest.logprobs)])
        return drawn, failures
