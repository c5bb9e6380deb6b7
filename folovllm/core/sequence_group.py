"""A request's sequences as a group: what each of them can take alone, and what only all together can.

    sampled sequences    go on one by one: a row of the batch each, and a step without its siblings is as good as any
    beams                branch from one another, so they draw together: the group claims the rows of its full width
                         from its first step on, and no beam draws before all are where the others are

vLLM: V0's core/scheduler.py (SequenceGroup.get_max_num_running_seqs)
"""

from __future__ import annotations

from folovllm.request import Request, Sequence, SequenceStatus

Wants = list[tuple[Sequence, int]]
"""(sequence, how many tokens it is to compute)."""


def rows_claimed(request: Request) -> int:
    """Rows of the batch that a running request has, or may claim: beams branch without asking."""
    if request.sampling_params.use_beam_search:
        return request.sampling_params.best_of or 1
    return request.get_num_seqs(SequenceStatus.RUNNING)


def rows_needed(request: Request, num_seqs: int, *, runs: bool) -> int:
    """Rows that must be left for `num_seqs` more sequences of a request to run."""
    if not request.sampling_params.use_beam_search:
        return num_seqs
    return 0 if runs else rows_claimed(request)


def lacking(request: Request, seqs: list[Sequence]) -> list[Wants]:
    """What these running sequences of a request still have to compute: one token each, as a rule; more for one that is
    being prefilled, or comes back from a preemption. In groups that are granted together: single sequences, or beams.

    Until each of the beams lacks its last token only they catch up, and nobody computes that one.
    """
    wants = [(seq, seq.get_len() - seq.num_computed_tokens) for seq in seqs]
    if not request.sampling_params.use_beam_search:
        return [[want] for want in wants if want[1] > 0]
    if seqs[0].get_output_len() == 0:
        return [wants]  # a single beam yet, from which the others will branch
    all_here = not request.get_seqs(SequenceStatus.WAITING)
    if all_here and all(num_tokens == 1 for _, num_tokens in wants):
        return [wants]
    behind = [(seq, num_tokens - 1) for seq, num_tokens in wants if num_tokens > 1]
    return [behind] if behind else []


def in_prefill(seq: Sequence) -> bool:
    """Whether its prompt has not been computed to its end."""
    return seq.num_computed_tokens < seq.get_prompt_len()


def is_decode(group: Wants) -> bool:
    """One token each."""
    return all(num_tokens == 1 for _, num_tokens in group)
