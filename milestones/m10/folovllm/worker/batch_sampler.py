"""Sampling for the sequences of a step: their sampling state, and their groups, which are made anew only when other
sequences take part than before.

A logits processor is its request's own code and may fail. Then the others must not suffer: the culprits are found by
running each suspect alone, and the rest is sampled without them. If none fails alone, all suspects count as culprits.
Nothing has been drawn by then (the sampler runs all processors of this kind before its first draw), so a seeded
neighbour's tokens stay what they would have been.

vLLM: v1/worker/gpu_input_batch.py (refresh_metadata)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np
import torch

from folovllm.request import Sequence
from folovllm.sample.draw import mark_failed_draws
from folovllm.sample.groups import RowGroup, group_rows, sample_groups, spread_logprobs
from folovllm.sample.gumbel import NUM_SETTINGS, GumbelParams, GumbelRows, draw_seed, host_params, takes_raw_logits
from folovllm.sample.metadata import SamplingGroup, SamplingMetadata, num_reported
from folovllm.sample.rejection import DraftedRows
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import DrawingRows, Sampler, SamplerOutput, greedy
from folovllm.utils.upload import upload
from folovllm.worker.model_runner_output import Failures


@dataclass(slots=True)
class KernelBatch:
    """A step's sequences, and what the sampling kernel needs of them, on the device."""

    seqs: list[Sequence]
    params: GumbelParams
    """Of all of them; those that draw from edited logits, or nothing, are greedy here, which costs least."""
    others: list[int]
    """The indices of those that are more than drawn: their logits are edited, or they report log-probabilities."""
    device_others: torch.Tensor
    """`others`, on the device."""
    other_params: GumbelParams
    all_params: GumbelParams
    """Of all of them, whatever they draw from."""


class BatchSampler:
    """Holds one SamplingRow per sequence, from its first step to its end."""

    def __init__(
        self, vocab_size: int, eos_token_ids: frozenset[int], device: torch.device, *, uses_kernel: bool,
        rows_apart: bool = False,
    ) -> None:  # fmt: skip
        """uses_kernel: whether the sampling kernel draws.  rows_apart: as group_rows() has it."""
        self.sampler, self.rows_apart = Sampler(), rows_apart
        self.vocab_size, self.eos_token_ids, self.device = vocab_size, eos_token_ids, device
        self._rows: dict[str, SamplingRow] = {}
        self._states: dict[str, dict[int, torch.Tensor]] = {}
        """Of a sequence's generator, before the draws of its last two tokens: {position of the token: state}."""
        self._seqs: list[Sequence] = []  # the groups', in this order
        self._groups: list[RowGroup] | None = None
        self.uses_kernel = uses_kernel
        self._seeds: dict[str, int] = {}  # for the kernel's noise
        self._kernel_batch: KernelBatch | None = None

    def add(self, seq: Sequence) -> None:
        """A sequence that comes back keeps its state: its generator goes on where it was."""
        if seq.seq_id in self._rows:
            return
        self._rows[seq.seq_id] = SamplingRow(
            params=seq.sampling_params,
            prompt_token_ids=seq.data.prompt_token_ids,
            known_token_ids=seq.data.output_token_ids,  # the live list: penalties and bad_words see it grow
            eos_token_ids=self.eos_token_ids,
            generator=None if self.uses_kernel else make_generator(seq.sampling_params, seq.index, self.device),
            bad_words_token_ids=seq.sampling_params.bad_words_token_ids,
        )
        seed = seq.sampling_params.seed
        if self.uses_kernel:
            self._seeds[seq.seq_id] = draw_seed() if seed is None else seed + seq.index
        elif seed is not None:
            self._states[seq.seq_id] = {}

    def warm_up(self, dtype: torch.dtype) -> None:
        """Let the kernel be compiled before a request waits for it: for logits of this dtype as they come, and for
        edited ones."""
        if self.uses_kernel:
            params = GumbelParams(torch.zeros(NUM_SETTINGS, 1, dtype=torch.int64, device=self.device))
            logits = torch.zeros(1, self.vocab_size, dtype=dtype, device=self.device)
            offsets = torch.zeros(1, dtype=torch.int64, device=self.device)
            params.draw(logits, offsets)
            params.draw(logits.float(), offsets, kept=logits.to(torch.int8))

    def remove(self, seq_id: str) -> None:
        self._rows.pop(seq_id, None)
        self._seeds.pop(seq_id, None)
        self._states.pop(seq_id, None)

    def rows_of(self, seqs: list[Sequence]) -> list[SamplingRow]:
        return [self._rows[seq.seq_id] for seq in seqs]

    def reported(self, seqs: list[Sequence]) -> list[int | None]:
        """How many of the likeliest tokens each of them reports beside the drawn one; None: nothing."""
        return [num_reported(row) for row in self.rows_of(seqs)]

    def prepare(self, seqs: list[Sequence]) -> GumbelParams | None:
        """Before the forward is queued: what draw() needs of `seqs` besides their logits, so that it is on its way to
        the device while the device computes. A processor's error waits until draw() meets it, too.

        Returns the settings with which a CUDA graph draws them; None: the kernel is not used.
        """
        batch = self._kernel_batch_for(seqs) if self.uses_kernel else None
        others = seqs if batch is None else [seqs[index] for index in batch.others]
        if others:
            with contextlib.suppress(Exception):
                self._groups_of(others)
        return None if batch is None else batch.params

    def greedy_tokens(self, seqs: list[Sequence], logits: torch.Tensor) -> torch.Tensor | None:
        """What all of `seqs` draw from any logits of theirs, whatever came before: None where one of them may not draw
        the likeliest token as it is, or reports log-probabilities.

        logits: any number of rows. Returns one token for each, or a code of sample/draw.py.
        """
        plain = SamplingGroup("greedy", 1, (), None, "raw")
        if any(SamplingGroup.of(row, self.vocab_size) != plain for row in self.rows_of(seqs)):
            return None
        return mark_failed_draws(greedy(logits), logits, logits, is_greedy=True)

    def draw(
        self, seqs: list[Sequence], logits: torch.Tensor, positions: torch.Tensor, drawn: torch.Tensor | None = None,
        drafted: DraftedRows | None = None,
    ) -> tuple[SamplerOutput, Failures]:  # fmt: skip
        """As sample(), with the kernel where it can be used. The sampler then has only those rows that are edited or
        report log-probabilities, and lets the kernel draw them, too.

        positions: [num_seqs] of the tokens whose logits these are: another for each token that a sequence draws.
        drawn: [num_seqs] what a CUDA graph has drawn with prepare()'s settings. May be written to.
        drafted: draft tokens that some of them may keep. The sampler then has all rows.
        """
        if not self.uses_kernel or not seqs:
            return self.sample(seqs, logits, drafted)
        batch = self._kernel_batch_for(seqs)
        if drafted is not None:
            gumbel = GumbelRows(batch.all_params, positions, None)
            return self.sample(seqs, logits, replace(drafted, gumbel=gumbel))
        if drawn is None:
            drawn = batch.params.draw(logits, positions)
        if not batch.others:
            return SamplerOutput(drawn), {}
        indices = batch.device_others
        gumbel = GumbelRows(batch.other_params, positions.index_select(0, indices), drawn.index_select(0, indices))
        of_others = logits if len(batch.others) == len(seqs) else logits.index_select(0, indices)
        rest, failures = self.sample([seqs[index] for index in batch.others], of_others, gumbel)
        drawn[indices] = rest.token_ids
        output = SamplerOutput(drawn)
        if rest.logprobs is not None:
            output.logprobs = spread_logprobs(drawn, [(indices, rest.logprobs)])
        return output, failures

    def _kernel_batch_for(self, seqs: list[Sequence]) -> KernelBatch:
        if self._kernel_batch is None or self._kernel_batch.seqs != seqs:
            rows = self.rows_of(seqs)
            settings = host_params(rows, [self._seeds[seq.seq_id] for seq in seqs], self.vocab_size)
            others = [
                index for index, row in enumerate(rows) if num_reported(row) is not None or not takes_raw_logits(row)
            ]
            of_others, plain = np.ascontiguousarray(settings[:, others]), settings.copy()
            plain[:, [index for index in others if not takes_raw_logits(rows[index])]] = 0
            *packed, indices = upload(self.device, plain, of_others, settings, np.array(others, np.int64))
            params, other_params, all_params = map(GumbelParams, packed)
            self._kernel_batch = KernelBatch(list(seqs), params, others, indices, other_params, all_params)
        return self._kernel_batch

    def sample(
        self, seqs: list[Sequence], logits: torch.Tensor, drawing: DrawingRows | None = None
    ) -> tuple[SamplerOutput, Failures]:
        """One token for each of `seqs`, whose logits are the rows of `logits` [num_seqs, vocab]. Nothing is waited for,
        except by a request's own processor.

        drawing: their rows, where these draw for themselves.

        Returns what was drawn, still on the device: 0 where sampling failed, and without meaning for a beam.
        """
        try:
            groups = self._groups_of(seqs)
            if self._states:
                self._begin_draws(seqs)
            if len(groups) == 1 and groups[0].metadata.group.path != "beam":  # which is then the whole batch, in order
                return self.sampler(logits, groups[0].metadata, drawing), {}
            return sample_groups(self.sampler, logits, groups, drawing), {}
        except Exception as error:
            failures = self._find_failures(seqs, logits)
            if not failures:  # it fails among others only, if a processor fails at all
                failures = {seq.seq_id: error for seq in seqs if seq.sampling_params.extra_args}
            if not failures:
                raise  # no request's own fault: the engine's
            return self._sample_without(failures, seqs, logits, drawing)

    def _groups_of(self, seqs: list[Sequence]) -> list[RowGroup]:
        if self._groups is None or self._seqs != seqs:
            self._groups = None  # in case a processor's update raises
            self._groups = group_rows(self.rows_of(seqs), self.vocab_size, self.device, rows_apart=self.rows_apart)
            self._seqs = list(seqs)
        return self._groups

    def _begin_draws(self, seqs: list[Sequence]) -> None:
        """A position that was drawn before is drawn again with the same random numbers: the step that was to bring its
        token, or that and the one launched behind it, was cut short."""
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
        self, failures: Failures, seqs: list[Sequence], logits: torch.Tensor, drawing: DrawingRows | None
    ) -> tuple[SamplerOutput, Failures]:
        good = [index for index, seq in enumerate(seqs) if seq.seq_id not in failures]
        drawn = SamplerOutput(torch.zeros(len(seqs), dtype=torch.int64, device=logits.device))
        if good:
            (indices,) = upload(logits.device, np.array(good, np.int64))
            rest, more = self.sample(
                [seqs[index] for index in good], logits[indices], drawing and drawing.take(indices)
            )
            failures |= more
            drawn.token_ids[indices] = rest.token_ids
            if rest.logprobs is not None:
                drawn.logprobs = spread_logprobs(drawn.token_ids, [(indices, rest.logprobs)])
        return drawn, failures
