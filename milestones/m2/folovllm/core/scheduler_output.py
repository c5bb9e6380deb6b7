"""What one step is to compute: all that the worker learns from the scheduler.

The worker keeps a batch that lives across steps. A sequence that it does not know yet has joined; those that have left
are listed.

vLLM: v1/core/sched/output.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.request import Sequence


@dataclass(slots=True)
class SchedulerOutput:
    """Sequence i computes `num_scheduled_tokens[i]` tokens, from its num_computed_tokens on."""

    scheduled_seqs: list[Sequence] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    total_num_scheduled_tokens: int = 0
    finished_seq_ids: list[str] = field(default_factory=list)
    """Ended since the step before: the worker forgets them."""
    num_prompt_tokens: int = 0
    """How many of the scheduled tokens belong to prompts."""

    def add(self, seq: Sequence, num_tokens: int) -> None:
        self.scheduled_seqs.append(seq)
        self.num_scheduled_tokens.append(num_tokens)
        self.total_num_scheduled_tokens += num_tokens
        if seq.num_computed_tokens < seq.data.num_prompt_tokens:
            self.num_prompt_tokens += num_tokens

    @property
    def is_empty(self) -> bool:
        return not self.scheduled_seqs

    @property
    def rows(self) -> list[Sequence]:
        """The sequences that take part; a step's results come in this order."""
        return self.scheduled_seqs
