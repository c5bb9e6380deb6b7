"""Beam search over the engine's sequences: each live beam is a running sequence, and branching is a fork.

    before     beam 0: blocks [1, 2, 3]       beam 1: blocks [1, 2, 4]        both survivors come from beam 0
    after      beam 0: blocks [1, 2, 3]       beam 2: blocks [1, 2, 3]        the first writer copies 3; 4 is free

Which beams live is decided by sample/beam_search.py. Here their tokens and forks are made, and EngineCore.apply() is
given what the scheduler must know of it. All beams of a request draw in the same step or none does.

vLLM: entrypoints/generate/beam_search/, which runs beams as one-token requests over the prefix cache.
"""

from __future__ import annotations

from typing import Any

from folovllm.request import Request, Sequence, SequenceData, SequenceStatus
from folovllm.sample.beam_search import BeamSearch, BeamStep, Hypothesis
from folovllm.worker.model_runner_output import BeamRow, LogprobsRow


class BeamGroup:
    """The search of one request. Until it is over, request.sequences are its live beams."""

    def __init__(self, request: Request, eos_token_ids: frozenset[int], max_model_len: int) -> None:
        self.request, params = request, request.sampling_params
        stop_ids = frozenset(params.stop_token_ids or ())
        self.search = BeamSearch(
            width=params.best_of,
            eos_token_ids=stop_ids if params.ignore_eos else stop_ids | eos_token_ids,
            max_new_tokens=min(params.max_tokens or max_model_len, max_model_len - len(request.prompt_token_ids)),
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )
        self.live = [request.get_seqs()[0]]  # the prompt is one beam; the others branch off, they do not begin anew
        request.sequences = {self.live[0].seq_id: self.live[0]}
        self._num_named = 1
        # The log-probabilities of each beam's tokens, for `logprobs`: carried along, and copied at a fork.
        self._history: dict[Sequence, list[LogprobsRow]] = {self.live[0]: []}
        self._ended: dict[Hypothesis, list[LogprobsRow]] = {}

    def advance(self, rows: dict[Sequence, LogprobsRow], changes: Any) -> bool:
        """One step: rows are the likeliest next tokens of every live beam. What becomes of the beams is added to
        `changes`, core.py's SequenceChanges. True when the search is over."""
        candidates = [rows[seq] for seq in self.live]  # the best token is in front, and among them once more
        step = self.search.advance([(row.token_ids[1:], row.logprobs[1:]) for row in candidates])
        for ending in step.endings:
            if ending.kept:
                seq, token_ids = self.live[ending.parent], ending.hypothesis.token_ids
                history = list(self._history[seq])
                if len(token_ids) > len(history):  # masks may leave a beam nothing to end with
                    history.append(_entry(candidates[ending.parent], token_ids[-1]))
                self._ended[ending.hypothesis] = history
        self._branch(step, candidates, changes)
        return step.done

    def _branch(self, step: BeamStep, candidates: list[LogprobsRow], changes: Any) -> None:
        """The first survivor of a beam is the beam itself, further ones are its forks; a beam without one is freed."""
        parents, self.live = self.live, []
        history, self._history = self._history, {}
        taken: set[int] = set()
        for survivor in step.survivors:  # all forks before any token is added: a child must not see a sibling's
            seq = parents[survivor.parent]
            if survivor.parent in taken:
                seq = seq.fork(f"{self.request.request_id}-{self._num_named}")
                self._num_named += 1
                changes.forked.append((self.request, parents[survivor.parent], seq))
            taken.add(survivor.parent)
            self.live.append(seq)
        for place, seq in enumerate(parents):
            if place not in taken:
                changes.ended.append((self.request, seq, SequenceStatus.FINISHED_IGNORED))
        for survivor, seq in zip(step.survivors, self.live, strict=True):
            seq.add_token_id(survivor.token_id)
            seq.cumulative_logprob = survivor.score
            changes.rewritten.append(seq)
            parent_history = history[parents[survivor.parent]]
            self._history[seq] = [*parent_history, _entry(candidates[survivor.parent], survivor.token_id)]
        if self.live:
            self.request.sequences = {seq.seq_id: seq for seq in self.live}

    def winners(self) -> list[tuple[Sequence, list[LogprobsRow]]]:
        """After the end: the n best as finished sequences, best first, each with a row per token."""
        found: list[tuple[Sequence, list[LogprobsRow]]] = []
        for hypothesis in self.search.best(self.request.sampling_params.n):
            by_token = hypothesis.stop_token_id is not None
            seq = Sequence(
                seq_id=f"{self.request.request_id}-{len(found)}",
                request_id=self.request.request_id,
                data=SequenceData(list(self.request.prompt_token_ids), list(hypothesis.token_ids)),
                sampling_params=self.request.sampling_params,
                status=SequenceStatus.FINISHED_STOPPED if by_token else SequenceStatus.FINISHED_LENGTH_CAPPED,
                cumulative_logprob=hypothesis.score,
            )
            if hypothesis.stop_token_id in (self.request.sampling_params.stop_token_ids or ()):
                seq.stop_reason = hypothesis.stop_token_id
            found.append((seq, self._ended[hypothesis]))
        return found


def _entry(row: LogprobsRow, token_id: int) -> LogprobsRow:
    """The row to report for `token_id`, one of its candidates: the model's own, or this one with it in front."""
    place = row.token_ids.index(token_id, 1)
    if isinstance(row, BeamRow):
        return row.raw[place - 1]
    return LogprobsRow([token_id, *row.token_ids[1:]], [row.logprobs[place], *row.logprobs[1:]], rank=place)
