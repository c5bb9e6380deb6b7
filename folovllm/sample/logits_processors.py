"""What changes logits before they become a distribution: masks, biases, and processors of your own.

All have one small interface. `update` tells a processor its rows, once, when the batch's membership changes.
`apply` then edits those rows' logits at every step. It can read what has been generated so far in the rows' live
`output_token_ids`.

vLLM: v1/sample/logits_processor/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from folovllm.utils.suggest import nearest_name
from folovllm.utils.upload import upload


class LogitsProcessor:
    """Base class. A processor sees only its own rows: logits [len(rows), vocab], row i belonging to rows[i].

    The sampler may split a large batch, each part with a processor of its own: treat each row by itself.
    """

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        """Raise ValueError when extra_args holds a value that apply cannot use. Called when a request comes in."""

    def update(self, rows: Sequence[SamplingRow]) -> None:
        """The rows that apply will see from here on."""
        self.rows = list(rows)

    def is_idle(self) -> bool:
        """True when the next apply would change nothing, so that the logits need not be copied for it."""
        return False

    def apply(self, logits: Tensor) -> Tensor:
        """Logits in float32 in, logits of the same shape out; writing in place is fine."""
        raise NotImplementedError


_REGISTRY: dict[str, type[LogitsProcessor]] = {}
_P = TypeVar("_P", bound=type[LogitsProcessor])


def register_logits_processor(name: str) -> Callable[[_P], _P]:
    """Class decorator: the processor runs for requests whose `extra_args` has the key `name`."""

    def register(cls: _P) -> _P:
        if not (isinstance(cls, type) and issubclass(cls, LogitsProcessor)):
            raise TypeError(f"a logits processor must be a subclass of LogitsProcessor, got {cls!r}")
        # A class of the same name comes from a module that was reloaded: the newer one counts.
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"name {name!r} is taken by the logits processor {_REGISTRY[name].__qualname__}")
        _REGISTRY[name] = cls
        return cls

    return register


def registered_logits_processors() -> dict[str, type[LogitsProcessor]]:
    """Name to class, in the order of registration, which is the order in which they run."""
    return dict(_REGISTRY)


def validate_extra_args(params: SamplingParams) -> None:
    """Refuses keys that no processor answers to: a misspelt one would be ignored in silence."""
    for name in params.extra_args or {}:
        if name not in _REGISTRY:
            near = nearest_name(name, _REGISTRY)
            hint = f"did you mean {near!r}?" if near else f"registered: {sorted(_REGISTRY) or 'none'}"
            raise ValueError(
                f"extra_args key {name!r} must name a registered logits processor; {hint} "
                "(register one with register_logits_processor)"
            )
        _REGISTRY[name].validate(params)


class TokenMasks(LogitsProcessor):
    """allowed_token_ids, bad_words and min_tokens: what is forbidden gets -inf, which is probability zero.

    Where the bans would leave none of the allowed tokens, the allowed ones stay: a row must have something to
    draw.
    """

    @staticmethod
    def wanted(row: SamplingRow) -> bool:
        params = row.params
        return bool(row.bad_words_token_ids) or params.allowed_token_ids is not None or params.min_tokens > 0

    def is_idle(self) -> bool:
        return not any(row.params.allowed_token_ids is not None or banned_token_ids(row) for row in self.rows)

    def apply(self, logits: Tensor) -> Tensor:
        vocab_size = logits.shape[-1]
        banned_at: list[tuple[int, int]] = []  # (row, token id)
        kept_at: list[tuple[int, int]] = []
        closed: list[int] = []  # rows in which only what is kept stays open
        for position, row in enumerate(self.rows):
            # A tokenizer, or a generation config, may know ids that the model has no logit for.
            banned = {token_id for token_id in banned_token_ids(row) if token_id < vocab_size}
            allowed = row.params.allowed_token_ids
            if allowed is not None:
                closed.append(position)
                kept_at += [(position, t) for t in allowed if t not in banned] or [(position, t) for t in allowed]
            else:
                banned_at += [(position, t) for t in banned]
        banned_rows, banned_ids, kept_rows, kept_ids = upload(logits.device, *_columns(banned_at), *_columns(kept_at))
        kept = logits[kept_rows, kept_ids]
        for position in closed:
            logits[position] = -torch.inf
        logits[kept_rows, kept_ids] = kept
        logits[banned_rows, banned_ids] = -torch.inf
        return logits


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(all first, all second numbers)."""
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return first, second


def banned_token_ids(row: SamplingRow) -> set[int]:
    """Tokens that must not come next: the last token of a bad word where the output ends with the tokens before it, and
    the tokens that end the text before min_tokens."""
    output = row.output_token_ids
    banned = row.bad_words.next_banned(output)
    if len(output) < row.params.min_tokens:
        banned.update(row.eos_token_ids, row.params.stop_token_ids or ())
    return banned


class LogitBias(LogitsProcessor):
    """Adds logit_bias[token] to that token's logit; 100 all but forces a token, -100 all but bans it."""

    @staticmethod
    def wanted(row: SamplingRow) -> bool:
        return bool(row.params.logit_bias)

    def update(self, rows: Sequence[SamplingRow]) -> None:
        biases = [row.params.logit_bias or {} for row in rows]
        self._arrays = (
            np.repeat(np.arange(len(rows)), [len(bias) for bias in biases]),
            np.fromiter(chain.from_iterable(biases), np.int64),
            np.fromiter(chain.from_iterable(bias.values() for bias in biases), np.float32),
        )
        self._sent: list[Tensor] = []

    def apply(self, logits: Tensor) -> Tensor:
        if not self._sent or self._sent[0].device != logits.device:
            self._sent = upload(logits.device, *self._arrays)
        positions, token_ids, biases = self._sent
        logits[positions, token_ids] += biases
        return logits
