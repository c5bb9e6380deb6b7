"""What changes logits before they become a distribution: masks, biases, penalties, and processors of your own.

All have one small interface. `update` gives a processor its rows, once, when the batch's membership changes.
`apply` then edits those rows' logits at every step. It can read what has been generated so far in the rows' live
`output_token_ids`.

vLLM: v1/sample/logits_processor/, v1/sample/ops/penalties.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import nearest_name


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
        for row, row_logits in zip(self.rows, logits, strict=True):
            # A tokenizer, or a generation config, may know ids that the model has no logit for.
            banned = [token_id for token_id in banned_token_ids(row) if token_id < len(row_logits)]
            allowed = row.params.allowed_token_ids
            if allowed is None:
                row_logits[banned] = -torch.inf
            else:
                kept = [token_id for token_id in allowed if token_id not in banned] or allowed
                values = row_logits[kept]
                row_logits.fill_(-torch.inf)
                row_logits[kept] = values
        return logits


def banned_token_ids(row: SamplingRow) -> set[int]:
    """Tokens that must not come next: the last token of a bad word where the output ends with the tokens before it, and
    the tokens that end the text before min_tokens."""
    output = row.output_token_ids
    banned = set[int]()
    for *before, last in row.bad_words_token_ids:
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            banned.add(last)
    if len(output) < row.params.min_tokens:
        banned.update(row.eos_token_ids, row.params.stop_token_ids or ())
    return banned


class LogitBias(LogitsProcessor):
    """Adds logit_bias[token] to that token's logit; 100 all but forces a token, -100 all but bans it."""

    @staticmethod
    def wanted(row: SamplingRow) -> bool:
        return bool(row.params.logit_bias)

    def apply(self, logits: Tensor) -> Tensor:
        for row, row_logits in zip(self.rows, logits, strict=True):
            bias = row.params.logit_bias or {}
            row_logits[list(bias)] += torch.tensor(list(bias.values()), device=logits.device)
        return logits


class Penalties(LogitsProcessor):
    """Repetition, frequency and presence penalties, applied to the tokens that occurred and to no others.

        repetition   prompt and output   logit > 0: divided, else multiplied, once
        frequency    output only         minus penalty * times it occurred
        presence     output only         minus penalty, once

    So a step touches a few hundred logits per row instead of a table of counts as wide as the vocabulary.
    """

    @staticmethod
    def wanted(row: SamplingRow) -> bool:
        params = row.params
        return (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)

    def apply(self, logits: Tensor) -> Tensor:
        for row, row_logits in zip(self.rows, logits, strict=True):
            row.count_tokens()
            params = row.params
            token_ids = torch.tensor(list(row.token_counts), dtype=torch.int64, device=logits.device)
            counts = torch.tensor(list(row.token_counts.values()), device=logits.device)
            values = row_logits[token_ids]
            penalty = params.repetition_penalty
            values = torch.where(values > 0, values / penalty, values * penalty)
            drop = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
            row_logits[token_ids] = values - drop
        return logits


def processors_for(row: SamplingRow) -> tuple[type[LogitsProcessor], ...]:
    """Those that edit the row's logits, in the order in which they act: masks, biases, custom ones, penalties."""
    custom = [processor for name, processor in _REGISTRY.items() if name in (row.params.extra_args or {})]
    first = [processor for processor in (TokenMasks, LogitBias) if processor.wanted(row)]
    return (*first, *custom, *([Penalties] if Penalties.wanted(row) else []))


def apply_checked(processor: LogitsProcessor, logits: Tensor) -> Tensor:
    """The processor's result in float32. A forgotten `return`, or whole numbers, are found here, so that they end the
    requests of this processor only; later they would end the whole batch."""
    edited: object = processor.apply(logits)
    got: object
    if not isinstance(edited, Tensor):
        must, got = "return a tensor", type(edited).__name__
    elif edited.shape != logits.shape:
        must, got = f"return logits of the shape that it was given, {list(logits.shape)}", list(edited.shape)
    elif edited.device != logits.device:
        must, got = f"return logits on the device of those that it was given, {logits.device}", edited.device
    elif not edited.is_floating_point():
        must, got = "return logits of a floating-point dtype", edited.dtype
    else:
        return edited.float()
    raise ValueError(f"logits processor {type(processor).__name__} must {must}, got {got}")
