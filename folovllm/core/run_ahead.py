"""Asynchronous scheduling: while the device computes step N, the host schedules and launches step N + 1.

    one after the other   host    schedule N │ ·········· wait ·········· │ update N  schedule N+1 │ ···
                          device             │ forward N  draw N ─ copy ──┘                        │ forward N+1

    ahead                 host    schedule N │ schedule N+1 │ ··· wait ··· │ update N  schedule N+2 │ ···
                          device             │ forward N  draw N │ forward N+1  draw N+1            │ forward N+2
                                                           └ copy ──┘

What the host does not know at that moment is which tokens step N draws. Nearly all of the next step does not depend on
it: that every sequence gets one more token is known, which one matters to the device only, and that has it. So the
sequences are advanced by what is certain, with an UNKNOWN token at the end, which update() replaces. A sequence that
turns out to have ended by its token (EOS, a stop string) has then been computed one step too far: its row is dropped.

Where more must be known the next step waits for this one, as without running ahead: penalties and the like read the
token, beams are chosen by it, and whoever is preempted must not have a token on its way.

vLLM: v1/core/sched/async_scheduler.py
"""

from __future__ import annotations

from collections.abc import Iterator

from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.scheduler_state import UNKNOWN
from folovllm.request import Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams

RUNNING = SequenceStatus.RUNNING


def reads_tokens(params: SamplingParams) -> bool:
    """Whether the next draw of a sequence depends, on the host, on which token the one before brought."""
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
    if any(reads_tokens(request.sampling_params) for request in scheduler.running):
        return False
    # When nobody goes on, a step may compute nothing, and the scheduler would take back blocks to let somebody in: from
    # sequences whose last token is on its way.
    if not any(_goes_on(seq, still_lacks, scheduler.max_model_len) for seq, still_lacks in _after(scheduler, launched)):
        return False
    return scheduler.kv.pool.num_free >= most_blocks_of_next_step(scheduler, launched)


def most_blocks_of_next_step(scheduler: Scheduler, launched: SchedulerOutput) -> int:
    """What the running sequences can take at most after `launched`: with so many free blocks nobody is preempted.

    A token that opens a block, or writes into a shared one, takes one. Longer stretches, of those that are not at their
    end yet, share the budget.
    """
    missing = [still_lacks for _, still_lacks in _after(scheduler, launched)]
    return len(missing) + scheduler.kv.blocks_for(min(sum(missing), scheduler.max_num_batched_tokens))


def assume(scheduler: Scheduler, launched: SchedulerOutput) -> None:
    """Advance the sequences of a launched step as if it had been computed; update() fills in the tokens.

    Who gets its last token in it gets no UNKNOWN one: then it lacks nothing, and the next step leaves it out.
    """
    scheduler.advance(launched)
    launched.is_assumed = True
    for seq in launched.rows:
        draws = seq.status is RUNNING and seq.num_computed_tokens == seq.get_len()
        if draws and not _ends_with_next_token(seq, scheduler.max_model_len):
            seq.data.output_token_ids.append(UNKNOWN)


def _after(scheduler: Scheduler, launched: SchedulerOutput) -> Iterator[tuple[Sequence, int]]:
    """The running sequences, each with how many of the tokens that are there it lacks when `launched` is over."""
    computed = dict(zip(launched.scheduled_seqs, launched.num_scheduled_tokens, strict=True))
    for request in scheduler.running:
        for seq in request.get_seqs(RUNNING):
            yield seq, seq.get_len() - seq.num_computed_tokens - computed.get(seq, 0)


def _goes_on(seq: Sequence, still_lacks: int, max_model_len: int) -> bool:
    """Unless by its token it ends sooner."""
    return still_lacks > 0 or not _ends_with_next_token(seq, max_model_len)


def _ends_with_next_token(seq: Sequence, max_model_len: int) -> bool:
    """By its length, whichever token it is."""
    max_tokens = seq.sampling_params.max_tokens
    by_params = max_tokens is not None and seq.get_output_len() + 1 >= max_tokens
    return by_params or seq.get_len() + 1 >= max_model_len
