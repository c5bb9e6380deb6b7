"""Asynchronous scheduling: while the device computes step N, the host schedules and launches step N + 1.

    one after the other   host    schedule N │ ·········· wait ·········· │ update N  schedule N+1 │ ···
                          device             │ forward N  draw N ─ copy ──┘                        │ forward N+1

    ahead                 host    schedule N │ schedule N+1 │ ··· wait ··· │ update N  schedule N+2 │ ···
                          device             │ forward N  draw N │ forward N+1  draw N+1            │ forward N+2
                                                           └ copy ──┘

At that moment the host does not know which tokens step N draws, and the next schedule hardly depends on them. It is
known that every sequence gets one more token. Which token it is matters to the device only, and the device has it. So
each sequence is advanced with an UNKNOWN token at its end, which update_from_output() replaces. A sequence may turn out
to have ended with its token (EOS, a stop string). It has then been computed one step too far: its row is dropped.

Some steps need the tokens. Then the next step waits for this one, as without running ahead: penalties and the like read
the token, beams are chosen by it, and a sequence must not be preempted while its token is on its way.

vLLM: v1/core/sched/async_scheduler.py
"""

from __future__ import annotations

from collections.abc import Iterator

from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.request import Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams

RUNNING = SequenceStatus.RUNNING


def reads_tokens(params: SamplingParams) -> bool:
    """Whether the host must know the last token of a sequence before it can draw the next one."""
    return bool(
        params.use_beam_search
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.bad_words_token_ids
        or params.extra_args
    )


def can_run_ahead(scheduler: Scheduler, launched: SchedulerOutput) -> bool:
    """Whether the step after `launched` can be scheduled before its tokens are known."""
    if launched.is_empty or scheduler.swapped:
        return False
    for request in scheduler.running:  # half the calls of any() over a generator
        if reads_tokens(request.sampling_params):
            return False
    # If every sequence ends with its token, the next step may have nothing to compute. The scheduler would then preempt
    # to let a request in, and so take the blocks of sequences whose last token is on its way.
    if not any(_goes_on(seq, still_lacks, scheduler.max_model_len) for seq, still_lacks in _after(scheduler, launched)):
        return False
    num_free = scheduler.kv.pool.num_free
    # As a rule there are more than any step could take, and none has to be counted.
    most = scheduler.max_num_seqs + scheduler.kv.blocks_for(scheduler.max_num_batched_tokens)
    if num_free >= most * scheduler.kv.num_groups:
        return True
    return num_free >= most_blocks_of_next_step(scheduler, launched)


def most_blocks_of_next_step(scheduler: Scheduler, launched: SchedulerOutput) -> int:
    """The most blocks that the running sequences can take in the step after `launched`. If so many are free, none of
    them is preempted.

    Each sequence can take one: its token opens a new block, or writes into a shared one. Sequences that still lack more
    tokens take blocks for these too, but all of them together at most the step's budget of tokens.
    """
    missing = [still_lacks for _, still_lacks in _after(scheduler, launched)]
    most = len(missing) + scheduler.kv.blocks_for(min(sum(missing), scheduler.max_num_batched_tokens))
    return most * scheduler.kv.num_groups


def assume(scheduler: Scheduler, launched: SchedulerOutput) -> None:
    """Advance the sequences of a launched step as if it had been computed; update_from_output() fills in the tokens.

    A sequence that ends with this token, by its length, gets no UNKNOWN one. It then has nothing left to compute, and
    the next step leaves it out.
    """
    scheduler.advance(launched)
    launched.is_assumed = True
    for seq in launched.rows:
        draws = seq.status is RUNNING and seq.num_computed_tokens == seq.get_len()
        if draws and not _ends_with_next_token(seq, scheduler.max_model_len):
            seq.data.output_token_ids.append(UNKNOWN)


def _after(scheduler: Scheduler, launched: SchedulerOutput) -> Iterator[tuple[Sequence, int]]:
    """The running sequences, each with the number of its known tokens that are not computed yet after `launched`."""
    for seq, num_tokens in zip(launched.scheduled_seqs, launched.num_scheduled_tokens, strict=True):
        if seq.status is RUNNING:
            yield seq, seq.get_len() - seq.num_computed_tokens - num_tokens
    scheduled = set(launched.scheduled_seqs)  # a caller that has seen enough does not come here
    for request in scheduler.running:
        for seq in request.get_seqs(RUNNING):
            if seq not in scheduled:
                yield seq, seq.get_len() - seq.num_computed_tokens


def _goes_on(seq: Sequence, still_lacks: int, max_model_len: int) -> bool:
    """Whether the step after the launched one computes something of the sequence, unless its token ends it."""
    return still_lacks > 0 or not _ends_with_next_token(seq, max_model_len)


def _ends_with_next_token(seq: Sequence, max_model_len: int) -> bool:
    """Whether the next token ends the sequence by its length, whichever token it is."""
    data, max_tokens = seq.data, seq.sampling_params.max_tokens
    num_output = len(data.output_token_ids)
    by_params = max_tokens is not None and num_output + 1 >= max_tokens
    return by_params or data.num_prompt_tokens + num_output + 1 >= max_model_len
