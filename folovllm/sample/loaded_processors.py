"""Logits processors that are named when an engine starts: a class, or "module:Class".

    @register_logits_processor("x") class A    for the requests whose extra_args have "x"
    class B                                    for every request of this engine

A process that checks requests, or draws their tokens, imports what is named. For every request of such an engine, B is
asked for as if the request had done it, under a name of its own: what holds for a request's own code holds for B.

vLLM: v1/sample/logits_processor/__init__.py
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

from folovllm.sample.logits_processors import _REGISTRY, LogitsProcessor, register_logits_processor, validate_extra_args
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import wrong

Named = Sequence[str | type[Any]] | None


def resolve_extra_args(params: SamplingParams, named: Named) -> None:
    """Adds what every request has.

    Raises ValueError: a key that no processor answers to, or a value that it refuses."""
    if of_all := load_logits_processors(named):
        params.extra_args = dict.fromkeys(of_all) | (params.extra_args or {})
    validate_extra_args(params)


def load_logits_processors(named: Named) -> tuple[str, ...]:
    """The names of those that every request has. Raises ValueError: one cannot be imported, or is no processor."""
    return tuple(filter(None, map(_load, named or ())))  # type: ignore[arg-type]  # a class can be hashed


@cache
def _load(named: str | type[Any]) -> str | None:
    """None: it is registered, for those that ask."""
    try:
        found = resolve_name(named) if isinstance(named, str) else named
    except Exception as error:  # whatever a module of the user's raises
        way_out = f"{error or type(error).__name__}; PYTHONPATH must have the folder that the module is in"
        raise wrong("logits_processors", "be classes that can be imported", named, way_out) from error
    if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
        raise wrong("logits_processors", "be subclasses of folovllm.sample.logits_processors.LogitsProcessor", named)
    key = f"{found.__module__}:{found.__qualname__}"
    if any(known is found and name != key for name, known in _REGISTRY.items()):
        return None
    register_logits_processor(key)(found)
    return key
