"""Sampling for the sequences of a step: their sampling state, and the metadata that is rebuilt only when who takes part
changes.

A logits processor is its request's own code and may fail. Then the others must not suffer: the culprits are found by
running each suspect alone, and the rest is sampled without them. Nothing has been drawn by then (the sampler runs all
processors of this kind before its first draw), so a seeded neighbour's tokens stay what they would have been.

vLLM: v1/worker/gpu_input_batch.py (refresh_metadata)
"""

from __future__ import annotations

import torch

from folovllm.request import Sequence
from folovllm.sample.metadata import SamplingMetadata, num_reported, reports
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler, SamplerOutput, apply_edits
from folovllm.worker.model_runner_output import LogprobsRow


class BatchSampler:
    """Holds one SamplingRow per sequence, from its first step to its end."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int], device: torch.device) -> None:
        self.sampler = Sampler()
        self.vocab_size, self.eos_token_ids, self.device = vocab_size, eos_token_ids, device
        self._rows: dict[str, SamplingRow] = {}
        self._seqs: list[Sequence] = []  # whom the metadata is for, in this order
        self._metadata: SamplingMetadata | None = None

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

    def remove(self, seq_id: str) -> None:
        self._rows.pop(seq_id, None)

    def sample(
        self, seqs: list[Sequence], logits: torch.Tensor
    ) -> tuple[list[int | None], list[LogprobsRow | None], dict[str, Exception]]:
        """One token for each of `seqs`, whose logits are the rows of `logits` [num_seqs, vocab].

        Returns token ids (None for a beam, and where sampling failed), logprobs (None where nobody asked), failures by
        sequence id.
        """
        try:
            sampled = self.sampler(logits, self._metadata_for(seqs))
        except Exception:
            failures = self._find_failures(seqs, logits)
            if not failures:
                raise  # nobody's own fault: the engine's
            return self._sample_without(failures, seqs, logits)
        token_ids = [
            None if seq.sampling_params.use_beam_search else token_id
            for seq, token_id in zip(seqs, sampled.token_ids.tolist(), strict=True)
        ]
        return token_ids, self._logprobs_rows(seqs, sampled), {}

    def _logprobs_rows(self, seqs: list[Sequence], sampled: SamplerOutput) -> list[LogprobsRow | None]:
        if sampled.logprobs is None:
            return [None] * len(seqs)
        rows = LogprobsRow.from_tensors(sampled.logprobs)
        return [
            row.cut(num_reported(self._rows[seq.seq_id])) if reports(seq.sampling_params) else None
            for seq, row in zip(seqs, rows, strict=True)
        ]

    def _metadata_for(self, seqs: list[Sequence]) -> SamplingMetadata:
        if self._metadata is None or self._seqs != seqs:
            self._metadata = None  # in case a processor's update raises
            rows = [self._rows[seq.seq_id] for seq in seqs]
            self._metadata = SamplingMetadata.build(rows, self.vocab_size, self.device)
            self._seqs = list(seqs)
        return self._metadata

    def _find_failures(self, seqs: list[Sequence], logits: torch.Tensor) -> dict[str, Exception]:
        """Run the processors of each suspect alone; nothing is drawn."""
        self._metadata = None
        failures: dict[str, Exception] = {}
        for place, seq in enumerate(seqs):
            if not seq.sampling_params.extra_args:
                continue
            try:
                for group in SamplingMetadata.build([self._rows[seq.seq_id]], self.vocab_size, self.device).groups:
                    apply_edits(logits[place : place + 1], group)
            except Exception as error:
                failures[seq.seq_id] = error
        return failures

    def _sample_without(
        self, failures: dict[str, Exception], seqs: list[Sequence], logits: torch.Tensor
    ) -> tuple[list[int | None], list[LogprobsRow | None], dict[str, Exception]]:
        good = [place for place, seq in enumerate(seqs) if seq.seq_id not in failures]
        token_ids: list[int | None] = [None] * len(seqs)
        logprobs: list[LogprobsRow | None] = [None] * len(seqs)
        if good:
            rest = logits[torch.tensor(good, device=logits.device)]
            some_ids, some_logprobs, more = self.sample([seqs[place] for place in good], rest)
            failures |= more
            for place, token_id, row in zip(good, some_ids, some_logprobs, strict=True):
                token_ids[place], logprobs[place] = token_id, row
        return token_ids, logprobs, failures

