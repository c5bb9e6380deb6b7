"""The interface of a proposer, which names draft tokens: those that may come next.

A draft token costs time when it is wrong and changes nothing else, since each is verified. So a proposer may be as
rough as it likes: it may name fewer tokens than it is asked for, or none.

vLLM: v1/spec_decode/ (ngram_proposer.py, draft_model.py)
"""

from __future__ import annotations

from typing import Protocol

import torch

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Sequence
from folovllm.worker.input_batch import StepInputs


class Proposer(Protocol):
    """Only the first method has to be written: the others suit a proposer that keeps nothing."""

    reads_hidden: bool = False
    """Whether read() wants to be called."""

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        """At most counts[i] token ids that may follow the last token of seqs[i], for each of them.

        Each sequence lacks its last token's keys and values only, and its block_ids have slots for that token and for
        the draft tokens.
        """

    def propose_with_probabilities(
        self, seqs: list[Sequence], counts: list[int]
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """As propose(), with tokens that are drawn; and what they were drawn from, [len(tokens[i]), vocab] each. Asked
        for by rejection_sample_method="probabilistic", which needs a draft model."""
        raise TypeError(f"{type(self).__name__} has no probabilities")

    def computed(self, seqs: list[Sequence], inputs: StepInputs) -> None:
        """The model has computed these tokens of `seqs`, in a step with parts of prompts. A proposer that keeps keys
        and values computes them, too."""
        return

    def read(self, seqs: list[Sequence], nums: list[int], hidden: torch.Tensor) -> None:
        """The model has computed nums[i] tokens of seqs[i], draft tokens among them: their hidden states, one after the
        other, [at least as many, hidden]. After each step, before it is known what was drawn."""
        return

    def move(self, scheduled: SchedulerOutput) -> None:
        """Before the step: blocks of the KV cache are swapped and copied. Keys and values that it keeps move along."""
        return

    def forget(self, seq_id: str) -> None:
        """This sequence has ended, or was preempted. It may never have been seen."""
        return
