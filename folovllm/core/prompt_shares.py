"""How prompts share what the decodes leave of a step: a short one behind a long one does not wait for all of it.

    256 left     A is under way, or begins, and lacks 1,000 tokens     gets 128 at first
                 B, C, D, E join, with 32 each                         get 32 each, and draw in this step
    256 left     A lacks 800, and F joins, with 20                     128 and 20
                 108 are left, and no other can join                   go to A

So A gets half of each step at least, and all that the others cannot use: no step is smaller than it was without them.

vLLM: v1/core/sched/scheduler.py
"""

from __future__ import annotations

from collections.abc import Iterator

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.sequence_group import SeqTokens, in_prefill
from folovllm.request import Request, SequenceStatus


def half(num_tokens: int) -> int:
    return -(-num_tokens // 2)


def share_out(
    prefills: list[tuple[Request, SeqTokens]], left: int, prompt_cap: int | None
) -> Iterator[tuple[Request, SeqTokens, int]]:
    """The prompts under way, the oldest first, and the most that each may take before others join: up to the cap, or
    half of what is left where there is none."""
    for request, group in prefills:
        most = half(left) if prompt_cap is None else prompt_cap
        share = min(sum(num_tokens for _, num_tokens in group), most, left)
        left -= share
        yield request, group, share


def top_up(group: SeqTokens, output: SchedulerOutput, kv: KVCacheManager, left: int) -> SeqTokens:
    """Give a prefill that is in the step up to `left` more of its tokens, if there are blocks for them.

    Returns the sequences whose prompt had not come to its end before, with all that they compute in this step.
    """
    more: SeqTokens = []
    for seq, num_tokens in group:
        if left == 0 or seq.status is not SequenceStatus.RUNNING or seq not in output.scheduled_seqs:
            continue
        index = output.scheduled_seqs.index(seq)
        given = output.num_scheduled_tokens[index]
        extra = min(num_tokens - given, left)
        if extra == 0 or kv.allocate_slots([(seq, given + extra)]) is None:
            continue
        output.num_scheduled_tokens[index] += extra
        output.total_num_scheduled_tokens += extra
        output.num_prompt_tokens += extra if in_prefill(seq) else 0
        output.grown_seqs.append(seq)
        left -= extra
        if seq.num_computed_tokens + given < seq.get_prompt_len():
            more.append((seq, given + extra))
    return more
