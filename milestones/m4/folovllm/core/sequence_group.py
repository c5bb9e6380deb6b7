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


def tokens_to_compute(request: Request, seqs: list[Sequence], left: int) -> list[SeqTokens]:
    """The tokens that these running sequences of a request shall compute, at most `left`, in groups that are scheduled
    together: single sequences, or beams. It is one token each, as a rule, and more after a preemption.

    Beams draw together, so none computes its last token before all the others lack only theirs.
    """
    seq_tokens = [(seq, seq.get_len() - seq.num_computed_tokens) for seq in seqs]
    beams = request.sampling_params.use_beam_search
    all_here = not request.get_seqs(SequenceStatus.WAITING)
    if beams and all_here and all(num_tokens == 1 for _, num_tokens in seq_tokens):
        return [seq_tokens] if len(seq_tokens) <= left else []
    granted: SeqTokens = []
    for seq, num_tokens in seq_tokens:
        num_tokens -= beams
        if 0 < num_tokens <= left:
            granted.append((seq, num_tokens))
            left -= num_tokens
    if beams:
        return [granted] if granted else []
    return [[want] for want in granted]
