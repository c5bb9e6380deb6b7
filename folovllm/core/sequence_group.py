"""A request's sequences as a group: which rows of the batch it claims, and which sequences are scheduled together.

    sampled sequences    are independent: each has a row of the batch, and can take a step without the others
    beams                branch from one another, so they draw together: the group claims the rows of its full width
                         from its first step on, and no beam draws before the others have caught up

vLLM: V0's core/scheduler.py (SequenceGroup.get_max_num_running_seqs)
"""

from __future__ import annotations

from folovllm.request import Request, Sequence, SequenceStatus

SeqTokens = list[tuple[Sequence, int]]
"""(sequence, how many tokens it is to compute)."""


def rows_claimed(request: Request) -> int:
    """Rows of the batch that a running request has, or may claim: beams branch without asking."""
    if request.sampling_params.use_beam_search:
        return request.sampling_params.best_of
    return request.get_num_seqs(SequenceStatus.RUNNING)


def rows_needed(request: Request, num_seqs: int, *, runs: bool) -> int:
    """Rows that must be left for `num_seqs` more sequences of a request to run."""
    if not request.sampling_params.use_beam_search:
        return num_seqs
    return 0 if runs else rows_claimed(request)


def tokens_to_compute(request: Request, seqs: list[Sequence]) -> list[SeqTokens]:
    """The tokens that these running sequences of a request still have to compute, in groups that are scheduled
    together: single sequences, or beams. It is one token each, as a rule, and more in a prefill or after a preemption.

    Beams draw together, so none computes its last token before all the others lack only theirs.
    """
    seq_tokens = [(seq, seq.get_len() - seq.num_computed_tokens) for seq in seqs]
    if not request.sampling_params.use_beam_search:
        return [[want] for want in seq_tokens if want[1] > 0]
    if seqs[0].get_output_len() == 0:
        return [seq_tokens]  # there is one beam so far, from which the others will branch
    all_here = not request.get_seqs(SequenceStatus.WAITING)
    if all_here and all(num_tokens == 1 for _, num_tokens in seq_tokens):
        return [seq_tokens]
    behind = [(seq, num_tokens - 1) for seq, num_tokens in seq_tokens if num_tokens > 1]
    return [behind] if behind else []


def in_prefill(seq: Sequence) -> bool:
    """Whether its prompt has not been computed to its end."""
    return seq.num_computed_tokens < seq.get_prompt_len()


def is_decode(group: SeqTokens) -> bool:
    """Whether each sequence of the group computes one token."""
    return all(num_tokens == 1 for _, num_tokens in group)
