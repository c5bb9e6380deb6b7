"""Holds what an engine said against the oracles: the reference engine, and Hugging Face's generate."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from zlib import crc32

import numpy as np

from folovllm import SamplingParams
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from tests.campaign.case import Asked, Case, Life, Tally, Wrong
from tests.campaign.models import Model
from tests.campaign.reference import Answer, Reference, log_softmax
from tests.campaign.reference_beams import Beam, BeamReference, is_plain

# Log-probabilities in float32, and sums of some dozens of them.
CLOSE = 2e-4
CLOSE_VECTOR = 2e-5
FAINT = -80.0


class Judge:
    """Looks at the outputs of one case. longest: where its engine says that every sequence ends."""

    def __init__(self, case: Case, model: Model, longest: int) -> None:
        self.model, self.longest = model, longest
        self.reference = Reference(model, longest, seed=crc32(case.to_json().encode()))
        self.tally = Tally()

    def judge(self, asked: Asked, output: RequestOutput) -> None:
        """`output` is the last one of a request, finished or not.

        Raises:
            Wrong: something in it is not as it has to be.
        """
        _same("prompt", asked, output.prompt_token_ids, asked.prompt)
        if self.model.spec.pooling:
            self._vector(asked, output)
            return
        params = asked.sampling_params()
        self._prompt_logprobs(asked, output)
        if params.use_beam_search:
            self._beams(asked, output)
            return
        # Of a request that was aborted the completions that had begun: they begin one after another.
        count = params.n if output.finished else min(num_run(params), max(1, len(output.outputs)))
        _same("number of outputs", asked, [c.index for c in output.outputs], list(range(count)))
        if output.finished and num_run(params) != params.n:
            self._best(asked, output)
        else:
            for index, completion in enumerate(output.outputs):
                self._sequence(asked, index, completion, output.finished)
        if output.finished and params.is_greedy and is_plain(params):
            self._hf_greedy(asked, output.outputs[0])

    def _vector(self, asked: Asked, output: RequestOutput) -> None:
        _same("outputs", asked, [(c.token_ids, c.finish_reason) for c in output.outputs], [([], "stop")])
        if asked.params.get("skip_reading_prefix_cache") or self.model.spec.pooling == "MEAN":
            _same("cached tokens", asked, output.num_cached_tokens, 0)
        row = self.model.vector(asked.prompt)[: asked.params.get("dimensions")]
        if asked.params.get("use_activation", True):
            row = row / np.linalg.norm(row)
        said = np.array(output.pooling_output)
        _same("dimensions", asked, said.shape, row.shape)
        close = CLOSE_VECTOR * self.model.slack * max(1.0, float(np.abs(row).max()))
        if self.model.is_torn(asked.prompt, self.reference.tie):
            self.tally.ties += 1
        elif not (off := float(np.abs(said - row).max())) <= close:  # nan is not
            raise Wrong("vector", f"{asked.name} is off by {off}: {said[:4]} ..., it has to be {row[:4]}")
        self.tally.vectors += 1

    def _sequence(self, asked: Asked, index: int, said: CompletionOutput, finished: bool) -> None:
        answer = self.reference.answer(asked, index, said.token_ids)
        _same("length", asked, len(answer.token_ids), len(said.token_ids))
        if answer.reason != said.finish_reason or answer.stop_reason != said.stop_reason:
            raise Wrong(
                "end",
                f"{asked.name} ends by {said.finish_reason} ({said.stop_reason!r}) behind {said.token_ids}, not by "
                f"{answer.reason} ({answer.stop_reason!r})",
            )
        if finished:
            _same("text", asked, said.text, answer.text)
        self._logprobs(asked, said, answer)
        self.tally.ties += answer.ties
        self.tally.tokens += len(answer.token_ids)
        if num_run(asked.sampling_params()) == asked.sampling_params().n:  # else the likelier ones were chosen
            self.tally.draws += answer.draws

    def _logprobs(self, asked: Asked, said: CompletionOutput, answer: Answer) -> None:
        params = asked.sampling_params()
        mode = params.logprobs_mode
        if not params.needs_logprobs:
            _same("logprobs", asked, (said.logprobs, said.cumulative_logprob), (None, None))
            return
        if not self.reference.is_torn(asked, said.token_ids):
            self._close(asked, "cumulative_logprob", said.cumulative_logprob, answer.total(mode))
        rows = answer.raw if mode == "raw" else answer.processed
        if params.logprobs is None:
            _same("logprobs", asked, said.logprobs, None)
        else:
            self._entries(asked, asked.prompt, said.logprobs or [], rows, said.token_ids, params.logprobs)

    def _prompt_logprobs(self, asked: Asked, output: RequestOutput) -> None:
        count = asked.sampling_params().prompt_logprobs
        if count is None:
            _same("prompt_logprobs", asked, output.prompt_logprobs, None)
        elif output.finished or output.prompt_logprobs is not None:
            first, *entries = output.prompt_logprobs or [None]
            _same("first prompt_logprobs", asked, first, None)
            self.model.read(asked.prompt)
            rows = [log_softmax(self.model.after(asked.prompt[:end])) for end in range(1, len(asked.prompt))]
            entries = [entry or {} for entry in entries]
            self._entries(asked, asked.prompt[:1], entries, rows, asked.prompt[1:], count)

    def _entries(
        self, asked: Asked, before: list[int], entries: list[dict[int, Logprob]], rows: list[np.ndarray],
        tokens: list[int], count: int,
    ) -> None:  # fmt: skip
        """At each place behind `before` the token itself, in front, and the `count` likeliest with their ranks."""
        _same("number of logprobs", asked, len(entries), len(tokens))
        for place, (entry, row, token) in enumerate(zip(entries, rows, tokens, strict=True)):
            if next(iter(entry)) != token or not max(count, 1) <= len(entry) <= count + 1:
                raise Wrong("logprobs", f"{asked.name}: {list(entry)} for token {token} and the {count} likeliest")
            if self.model.is_torn(before + tokens[:place], self.reference.tie):
                return
            best = np.sort(row)[::-1]
            for number, (token_id, told) in enumerate(entry.items()):
                self._close(asked, f"log-probability of {token_id}", told.logprob, float(row[token_id]))
                assert told.rank is not None
                self._close(asked, f"rank of {token_id}", told.logprob, float(best[told.rank - 1]))
                if number > 0 and told.rank > count:
                    raise Wrong("logprobs", f"{asked.name}: {token_id} is of rank {told.rank}, asked were {count}")
            self.tally.logprobs += len(entry)

    def _best(self, asked: Asked, output: RequestOutput) -> None:
        """The n best of best_of: each is one of the sequences that a seed stands for, the others are worse."""
        params = asked.sampling_params()
        totals = [completion.cumulative_logprob or 0.0 for completion in output.outputs]
        if any(worse > better for better, worse in pairwise(totals)):
            raise Wrong("best_of", f"{asked.name} is not in falling order: {totals}")
        if params.seed is None:
            for completion in output.outputs:
                self._sequence(asked, 0, completion, finished=True)
            return
        left = list(output.outputs)
        for index in range(num_run(params)):
            free = self.reference.answer(asked, index)
            exact = [completion for completion in left if completion.token_ids == free.token_ids]
            if mine := exact or [completion for completion in left if self._fits(asked, index, completion)]:
                left.remove(mine[0])
                self._sequence(asked, index, mine[0], finished=True)
            elif free.total(params.logprobs_mode) > totals[-1] + CLOSE * self.model.slack and not (
                self.reference.is_torn(asked, free.token_ids) or self.reference.has_ties(asked, index, free.token_ids)
            ):
                raise Wrong("best_of", f"{asked.name} leaves out sequence {index}: {free.token_ids}")
        if left:
            raise Wrong("token", f"{asked.name} says what none of its seeds stands for: {left[0].token_ids}")

    def _fits(self, asked: Asked, index: int, said: CompletionOutput) -> bool:
        try:
            return self.reference.answer(asked, index, said.token_ids).reason is not None
        except Wrong:
            return False

    def _beams(self, asked: Asked, output: RequestOutput) -> None:
        if not output.finished:
            raise Wrong("outputs", f"{asked.name} tells of its beams before their end")
        params = asked.sampling_params()
        search = BeamReference(self.reference, asked)
        expected = search.run()
        said = [(c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs]
        if said != [self._told(beam, params) for beam in expected]:
            if search.margin > self.reference.tie:
                raise Wrong("beams", f"{asked.name} finds {said}, the reference {[b.token_ids for b in expected]}")
            self.tally.ties += 1
            return
        for beam, completion in zip(expected, output.outputs, strict=True):
            if self.reference.is_torn(asked, beam.token_ids):
                continue
            self._close(asked, "beam's score", completion.cumulative_logprob, beam.score)
            if params.logprobs is not None:
                rows = [
                    log_softmax(self.model.after(asked.prompt + beam.token_ids[:place]))
                    for place in range(len(beam.token_ids))
                ]
                self._entries(asked, asked.prompt, completion.logprobs or [], rows, beam.token_ids, params.logprobs)
        self.tally.beams += len(expected)
        self.tally.tokens += sum(len(beam.token_ids) for beam in expected)
        if is_plain(params):
            self._hf_beams(asked, search, output)

    def _told(self, beam: Beam, params: SamplingParams) -> tuple[list[int], str, int | None]:
        by_id = beam.ended_by if beam.ended_by in (params.stop_token_ids or ()) else None
        return beam.token_ids, "length" if beam.ended_by is None else "stop", by_id

    def _hf_settings(self, asked: Asked) -> tuple[SamplingParams, list[int], int]:
        params = asked.sampling_params()
        ends = [*(params.stop_token_ids or ()), *(() if params.ignore_eos else self.model.spec.eos)]
        room = self.longest - len(asked.prompt)
        return params, ends, min(params.max_tokens or room, room)

    def _hf_greedy(self, asked: Asked, said: CompletionOutput) -> None:
        """Token for token. Where they part, the reference has found both to tie, or it has said so already."""
        _, ends, max_new_tokens = self._hf_settings(asked)
        out = self.model.generate(asked.prompt, max_new_tokens=max_new_tokens, eos_token_id=ends or None)
        expected = out.sequences[0, len(asked.prompt) :].tolist()
        self.tally.hf_tokens += len(expected)
        if said.token_ids == expected:
            return
        place = _first_difference(said.token_ids, expected)
        if self.reference.is_torn(asked, expected[:place]):
            return
        row = self.model.after(asked.prompt + expected[:place])
        is_end = place == min(len(said.token_ids), len(expected))
        if is_end or abs(row[said.token_ids[place]] - row[expected[place]]) > 2 * self.reference.tie:
            raise Wrong("token", f"{asked.name} says {said.token_ids}, Hugging Face {expected}")
        self.tally.ties += 1

    def _hf_beams(self, asked: Asked, search: BeamReference, output: RequestOutput) -> None:
        params, ends, max_new_tokens = self._hf_settings(asked)
        if search.width == 1:
            return  # which is another function of theirs
        out = self.model.generate(
            asked.prompt,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends or None,
            num_beams=search.width,
            num_return_sequences=params.n,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )
        rows = out.sequences[:, len(asked.prompt) :].tolist()
        said = [completion.token_ids for completion in output.outputs]
        if len(said) == len(rows) and all(row[: len(s)] == s for s, row in zip(said, rows, strict=True)):
            self.tally.hf_tokens += sum(map(len, said))
        elif search.margin > self.reference.tie:
            raise Wrong("beams", f"{asked.name} finds {said}, Hugging Face {rows}")
        else:
            self.tally.ties += 1

    def _close(self, asked: Asked, what: str, said: float | None, expected: float) -> None:
        """Below FAINT float32 may have nothing left to tell."""
        close = CLOSE * self.model.slack
        if said is None or not (abs(said - expected) <= close or said == expected or max(said, expected) < FAINT):
            raise Wrong("logprobs", f"{asked.name}: {what} is {said}, it has to be {expected}")


def check_cached_tokens(case: Case, lives: Iterable[Life]) -> None:
    """No more prompt tokens were found in the cache than another text of the same salt and adapter has in common, one
    that was computed behind the last reset before this request came. What an engine that is gone had computed counts:
    it may be in the folder."""
    block_size, lives = case.engine["block_size"], list(lives)
    for life in lives:
        if life.output is None or not life.output.num_cached_tokens:
            continue
        reset, mine = max([at for at in case.resets if at <= life.begun], default=-1), life.asked
        texts = [
            text
            for other in lives
            if other is not life and other.ended >= reset
            and (other.asked.salt, other.asked.voice) == (mine.salt, mine.voice)
            for text in other.texts()
        ]  # fmt: skip
        shared = max((_first_difference(text, mine.prompt) for text in texts), default=0)
        most = min(shared, len(mine.prompt) - 1) // block_size * block_size
        if life.output.num_cached_tokens > most:
            found = life.output.num_cached_tokens
            raise Wrong("cached tokens", f"{mine.name} found {found}, others computed {most}")


def num_run(params: SamplingParams) -> int:
    """How many sequences are run for a request."""
    return params.best_of or params.n


def _first_difference(a: list[int], b: list[int]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _same(what: str, asked: Asked, said: object, expected: object) -> None:
    if said != expected:
        raise Wrong(what, f"{asked.name} says {said!r}, it has to be {expected!r}")
