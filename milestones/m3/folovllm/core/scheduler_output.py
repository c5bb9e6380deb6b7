"""What one step is to compute: all that the worker learns from the scheduler.

The worker keeps a batch that lives across steps, so only changes are listed here. A sequence that the worker does not
know yet has joined. The order of a step is: forget sequences, move blocks (out, in, copies), compute.

vLLM: v1/core/sched/output.py (and V0's core/scheduler.py for the block moves)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.request import Sequence

BlockPairs = list[tuple[int, int]]
"""(from, to) of each block to be copied."""


@dataclass(slots=True)
class SchedulerOutput:
    """Sequence i computes `num_scheduled_tokens[i]` tokens, from its num_computed_tokens on. It draws a token if its
    last token is among them. If not (a beam that catches up), it draws none."""

    scheduled_seqs: list[Sequence] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    total_num_scheduled_tokens: int = 0
    forks: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    """(parent, child): the child computes nothing, and draws its first token from the parent's last logits."""
    finished_seq_ids: list[str] = field(default_factory=list)
    """Ended since the step before: the worker forgets them."""
    stale_seq_ids: list[str] = field(default_factory=list)
    """Preempted, or rewritten by beam search: their rows are void, their sampling state stays."""
    grown_seqs: list[Sequence] = field(default_factory=list)
    """Those of scheduled_seqs whose block table has changed."""
    blocks_to_swap_out: BlockPairs = field(default_factory=list)
    blocks_to_swap_in: BlockPairs = field(default_factory=list)
    blocks_to_copy: BlockPairs = field(default_factory=list)
    """All are read before any is written."""
    num_prompt_tokens: int = 0
    """How many of the scheduled tokens belong to prompts."""

    def add(self, seq: Sequence, num_tokens: int) -> None:
        self.scheduled_seqs.append(seq)
        self.num_scheduled_tokens.append(num_tokens)
        self.total_num_scheduled_tokens += num_tokens
        if seq.num_computed_tokens < seq.data.num_prompt_tokens:
            self.num_prompt_tokens += num_tokens

    def add_copies(self, pairs: BlockPairs) -> None:
        """Add copies (from, to). All sources of a step are read before any target is written. So a source that is
        itself a target of this step is still empty: the block that it will be a copy of is copied in its place."""
        origin = {target: source for source, target in self.blocks_to_copy} if pairs else {}
        self.blocks_to_copy += [(origin.get(source, source), target) for source, target in pairs]

    @property
    def is_empty(self) -> bool:
        return not self.scheduled_seqs

    @property
    def rows(self) -> list[Sequence]:
        """The sequences that take part; a step's results come in this order."""
        return [*self.scheduled_seqs, *(child for _, child in self.forks)] if self.forks else self.scheduled_seqs
