"""The reference engine: what an answer has to be, in the plainest way there is.

One sequence at a time, the whole text through Hugging Face's model for every token, no cache, no batch, float64. What
sampling means is written down here once more from its definition; only the draws come from torch, since a seed stands
for its generator's numbers.

Float32 rounds what float64 tells apart. Where a change of the logits in their last digits would bring about the token
that the engine said, it is a tie: the reference goes on behind the engine's token, and ties are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from folovllm import SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.campaign.case import Asked, Wrong
from tests.campaign.models import Model
from tests.m1.sampling_reference import distribution

# Logits of the random models are of the order of 1, and float32 is right to some 1e-6 of that.
TIE = 1e-5


@register_logits_processor("campaign_tilt")
class Tilt(LogitsProcessor):
    """A request's own code: lifts every token whose id and place add up to a multiple of extra_args' number."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, mine in zip(logits, self.rows, strict=True):
            assert mine.params.extra_args is not None
            row += torch.from_numpy(tilt(len(row), len(mine.output_token_ids), mine.params.extra_args)).float()
        return logits


@register_logits_processor("campaign_raise")
class Raise(LogitsProcessor):
    """A request's own code that fails at the output token of this number."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for mine in self.rows:
            assert mine.params.extra_args is not None
            if len(mine.output_token_ids) >= mine.params.extra_args["campaign_raise"]:
                raise RuntimeError("campaign_raise")
        return logits


def tilt(vocab_size: int, place: int, extra_args: dict[str, Any]) -> np.ndarray:
    return np.where((np.arange(vocab_size) + place) % extra_args["campaign_tilt"] == 0, 1.5, 0.0)


@dataclass
class Answer:
    """One sequence, as it has to be."""

    token_ids: list[int] = field(default_factory=list)
    reason: str | None = None  # "stop", "length"; None: it is not at its end
    stop_reason: int | str | None = None
    text: str = ""
    raw: list[np.ndarray] = field(default_factory=list)  # log-probabilities at each place: the model's own,
    processed: list[np.ndarray] = field(default_factory=list)  # and those that were drawn from
    draws: list[float] = field(default_factory=list)
    ties: int = 0

    def total(self, mode: str) -> float:
        rows = self.raw if mode == "raw" else self.processed
        return float(sum(row[token] for row, token in zip(rows, self.token_ids, strict=True)))


class Reference:
    """Answers requests to one model, in an engine that ends every sequence at `longest` tokens.

    seed: of the numbers that shake logits and say where inside its token a draw fell. Every case needs another one:
    else all cases have these numbers in common, and their draws taken together follow no distribution.
    """

    def __init__(self, model: Model, longest: int, seed: int) -> None:
        self.model, self.longest, self.tie = model, longest, TIE * model.slack
        self._rng = np.random.default_rng(seed)

    def answer(self, asked: Asked, index: int, said: list[int] | None = None) -> Answer:
        """Sequence `index` of a request. `said` is what the engine says: looked at where two tokens tie, and for what
        no seed determines.

        Raises:
            Wrong: the engine said a token that cannot be.
        """
        params = asked.sampling_params()
        generator = None if params.seed is None else torch.Generator().manual_seed(params.seed + index)
        answer = Answer()
        if said:
            self.model.read(asked.prompt + said)
        while answer.reason is None:
            place = len(answer.token_ids)
            if said is not None and place == len(said):
                return answer
            row = self.model.after(asked.prompt + answer.token_ids)
            edited = self.edit(row, asked.prompt, answer.token_ids, params)
            uniform = None
            if not params.is_greedy and generator is not None:
                uniform = float(torch.rand((), dtype=torch.float64, generator=generator))
            token = None if said is None else said[place]
            token = self._choose(edited, params, uniform, token, answer, asked)
            answer.raw.append(log_softmax(row))
            answer.processed.append(_processed(edited, params))
            answer.token_ids.append(token)
            self._end(answer, params, asked.prompt)
        return answer

    def is_torn(self, asked: Asked, token_ids: list[int]) -> bool:
        return self.model.is_torn(asked.prompt + token_ids, self.tie)

    def has_ties(self, asked: Asked, index: int, token_ids: list[int]) -> bool:
        """Whether a change of logits in their last digits brings another token somewhere in this seeded answer."""
        params = asked.sampling_params()
        generator = torch.Generator().manual_seed((params.seed or 0) + index)
        for place, token in enumerate(token_ids):
            before = token_ids[:place]
            edited = self.edit(self.model.after(asked.prompt + before), asked.prompt, before, params)
            uniform = float(torch.rand((), dtype=torch.float64, generator=generator))
            if any(draw(self._shaken(edited), params, uniform) != token for _ in range(40)):
                return True
        return False

    def edit(self, row: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams) -> np.ndarray:
        """Masks, biases, processors, penalties."""
        row = row.copy()
        banned = {t for t in self.banned(output, params) if t < len(row)}
        if params.allowed_token_ids is not None:
            kept = [t for t in params.allowed_token_ids if t not in banned] or params.allowed_token_ids
            mask = np.full(len(row), -np.inf)
            mask[kept] = 0.0
            row += mask
        else:
            row[list(banned)] = -np.inf
        for token, bias in (params.logit_bias or {}).items():
            row[token] += bias
        if "campaign_tilt" in (params.extra_args or {}):
            row += tilt(len(row), len(output), params.extra_args or {})
        for token in set(prompt + output):
            factor, count = params.repetition_penalty, output.count(token)
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
            row[token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        return row

    def banned(self, output: list[int], params: SamplingParams) -> set[int]:
        banned = set[int]()
        if len(output) < params.min_tokens:
            banned |= {*self.model.spec.eos, *(params.stop_token_ids or ())}
        for word in params.bad_words or ():
            for *before, last in (list(word.encode()), list(f" {word}".encode())):
                if output[len(output) - len(before) :] == before:
                    banned.add(last)
        return banned

    def _choose(
        self,
        edited: np.ndarray,
        params: SamplingParams,
        uniform: float | None,
        said: int | None,
        answer: Answer,
        asked: Asked,
    ) -> int:
        if not params.is_greedy and uniform is None:  # unseeded: all that can be said is how likely a token was
            assert said is not None
            probs = _distribution(edited, params)
            if probs[said] == 0.0:
                could_be = any(_distribution(self._shaken(edited), params)[said] > 0 for _ in range(64))
                if not could_be and not self.is_torn(asked, answer.token_ids):
                    raise Wrong("impossible token", f"{asked.name} says {said} at {len(answer.token_ids)}")
                answer.ties += 1
            answer.draws.append(float(probs[:said].sum() + probs[said] * self._rng.random()))
            return said
        token = draw(edited, params, uniform)
        if said is None or said == token:
            return token
        so_far = answer.token_ids
        if not self._is_tie(edited, params, uniform, said) and not self.is_torn(asked, so_far):
            raise Wrong("token", f"{asked.name} says {said} behind {so_far}, the reference {token}")
        answer.ties += 1
        return said

    def _is_tie(self, edited: np.ndarray, params: SamplingParams, uniform: float | None, said: int) -> bool:
        if uniform is None:
            return bool(edited[said] > edited.max() - 2 * self.tie)
        return any(
            draw(self._shaken(edited), params, uniform + delta) == said
            for delta in (0.0, 1e-7, -1e-7)
            for _ in range(40)
        )

    def _shaken(self, edited: np.ndarray) -> np.ndarray:
        return edited + self._rng.uniform(-self.tie, self.tie, len(edited))

    def _end(self, answer: Answer, params: SamplingParams, prompt: list[int]) -> None:
        """Whether the newest token ends the sequence, and the text up to there."""
        output = answer.token_ids
        if len(output) >= params.min_tokens:
            if not params.ignore_eos and output[-1] in self.model.spec.eos:
                answer.reason = "stop"
            elif output[-1] in (params.stop_token_ids or ()):
                answer.reason, answer.stop_reason = "stop", output[-1]
        by_token = answer.reason is not None
        if answer.reason is None and len(output) == params.max_tokens:
            answer.reason = "length"
        if answer.reason is None and len(prompt) + len(output) >= self.longest:
            answer.reason = "length"
        if self.model.tokenizer is None or not params.detokenize:
            return
        shown = output[:-1] if by_token and not params.include_stop_str_in_output else output
        whole = self.model.tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
        before = answer.text
        if answer.reason or not whole.endswith("\ufffd"):  # else its last character is not complete
            answer.text = whole
        if params.stop and not by_token and answer.text != before and len(output) > params.min_tokens:
            found = [
                (at, stop)
                for stop in params.stop
                if (at := answer.text.find(stop, max(0, len(before) - len(stop) + 1))) >= 0
            ]
            if found:
                at, stop = min(found, key=lambda hit: hit[0])
                answer.text = answer.text[: at + len(stop) * params.include_stop_str_in_output]
                answer.reason, answer.stop_reason = "stop", stop


def draw(edited: np.ndarray, params: SamplingParams, uniform: float | None) -> int:
    """The token on which `uniform` falls when the tokens lie end to end, each as long as it is probable: in falling
    order if a filter has put them into one, else in the vocabulary's. None: the likeliest."""
    if uniform is None:
        return int(edited.argmax())
    probs = _distribution(edited, params)
    filtered = 0 < params.top_k < len(probs) or params.top_p < 1 or params.min_p > 0
    order = np.argsort(-edited, kind="stable") if filtered else np.arange(len(probs))
    line = probs[order].cumsum()
    return int(order[np.searchsorted(line, uniform * line[-1], side="right")])


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row - row.max()
    with np.errstate(divide="ignore"):
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _distribution(edited: np.ndarray, params: SamplingParams) -> np.ndarray:
    return distribution(edited.tolist(), params.temperature, params.top_k, params.top_p, params.min_p)


def _processed(edited: np.ndarray, params: SamplingParams) -> np.ndarray:
    if params.is_greedy:
        return log_softmax(edited)
    with np.errstate(divide="ignore"):
        return np.log(_distribution(edited, params))
