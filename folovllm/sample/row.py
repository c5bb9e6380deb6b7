"""SamplingRow: one running sequence as the sampler sees it, with what it keeps from step to step.

Its parameters, live tokens, generator and counts of tokens lie together: a sequence can change its place in the batch,
leave it and come back, and still draws what it would have drawn. metadata.py gathers the rows of a batch.

vLLM: v1/worker/gpu_input_batch.py (what it holds for each request)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from folovllm.sampling_params import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """One running sequence, as the sampler sees it; lives as long as the sequence."""

    params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]  # the live list: the engine appends to it
    eos_token_ids: frozenset[int]
    generator: torch.Generator | None
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    bad_words: BadWords = field(init=False, repr=False)
    token_counts: TokenCounts | None = field(default=None, init=False, repr=False)
    num_reported: int | None = field(init=False)
    """How many of the likeliest tokens it reports beside its own; None: log-probabilities are not asked for."""
    _states: dict[int, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    """Of the generator, before the draws of the last two tokens: {place of the token: state}."""

    def __post_init__(self) -> None:
        self.bad_words = BadWords(self.bad_words_token_ids)
        self.num_reported = None
        if self.params.use_beam_search:
            # A beam needs best_of tokens that do not end it, and every token that ends it may be likelier than these.
            endings = len(self.eos_token_ids | set(self.params.stop_token_ids or ()))
            self.num_reported = max(self.params.logprobs or 0, self.params.best_of + endings)
        elif self.params.needs_logprobs:
            self.num_reported = self.params.logprobs or 0

    def begin_draw(self) -> None:
        """Before each draw of a row that has a generator. A place that was drawn for already is drawn for with the same
        random numbers: the step that was to bring its token, or that and the one launched behind it, was cut short.
        """
        assert self.generator is not None
        place = len(self.output_token_ids)
        if place in self._states:
            self.generator.set_state(self._states[place])
        else:
            self._states[place] = self.generator.get_state()
            self._states.pop(place - 2, None)


def make_generator(params: SamplingParams, index: int, device: torch.device) -> torch.Generator | None:
    """The generator of the request's sequence `index`: seed + index, or None for an unseeded request.

    Made once per sequence. Its state advances once per output token, and goes along through preemption.
    """
    if params.seed is None:
        return None
    return torch.Generator(device=device).manual_seed(params.seed + index)


class BadWords:
    """Sequences of tokens that must not be completed, by what stands before their last token. A step looks up one
    prefix for each length that there is, however many words have it."""

    __slots__ = ("_last", "_lengths")

    def __init__(self, sequences: list[list[int]]) -> None:
        self._last: dict[tuple[int, ...], set[int]] = {}
        for *before, last in sequences:
            self._last.setdefault(tuple(before), set()).add(last)
        self._lengths = {len(before) for before in self._last}

    def next_banned(self, output_token_ids: list[int]) -> set[int]:
        """The tokens that would complete one now."""
        num_tokens, banned = len(output_token_ids), set[int]()
        for length in self._lengths:
            if length <= num_tokens:
                banned |= self._last.get(tuple(output_token_ids[num_tokens - length :]), set())
        return banned


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs in its OUTPUT (0: in the prompt alone).

    Kept on the SamplingRow: it outlives changes of the batch, and reads each token once.
    """

    __slots__ = ("_counts", "_num_counted", "_slot_of", "_token_ids", "size")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._slot_of: dict[int, int] = {token_id: slot for slot, token_id in enumerate(distinct)}
        self.size = len(distinct)
        self._token_ids = np.fromiter(distinct, np.int64, self.size)
        self._counts = np.zeros(self.size, np.float32)
        self._num_counted = 0

    def catch_up(self, output_token_ids: list[int]) -> None:
        """Counts what the live list gained since the last call."""
        for token_id in output_token_ids[self._num_counted :]:
            slot = self._slot_of.setdefault(token_id, self.size)
            if slot == self.size:
                self._append(token_id)
            self._counts[slot] += 1
        self._num_counted = len(output_token_ids)

    @property
    def token_ids(self) -> np.ndarray:
        return self._token_ids[: self.size]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: self.size]

    def _append(self, token_id: int) -> None:
        if self.size == len(self._token_ids):
            room = max(64, self.size)
            self._token_ids = np.concatenate([self._token_ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._token_ids[self.size] = token_id
        self.size += 1


def validate_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """What SamplingParams cannot know when it is made: ids and counts that only fit some vocabularies."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, name) or ():
            if not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"{name} must hold token ids in [0, {vocab_size}), the model's vocabulary, got {token_id}"
                )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and count > vocab_size:
            raise ValueError(f"{name} must be at most {vocab_size}, the model's vocabulary, got {count}")
