"""One kind of error, in one line, for all that can go wrong inside the libraries that read a model.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from folovllm.errors import ModelLoadError


@contextmanager
def readable_errors(name: str, what: str = "model") -> Iterator[None]:
    """transformers' own errors run over many lines and rarely name the model: keep one line, and name it."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(f"{what} {name!r} cannot be loaded: {reason}") from error
