"""The errors a caller may want to catch by name.

A wrong value is always a ValueError whose text starts with the field's name. Where a program would want to
tell one kind of wrong value from another, it gets a class here that is a ValueError as well, so that
`except ValueError` keeps working.

vLLM: exceptions.py, v1/engine/exceptions.py
"""

from __future__ import annotations


class FoloVLLMError(Exception):
    """Base of every error that is FoloVLLM's own."""


class ModelLoadError(FoloVLLMError, ValueError):
    """The named model cannot be loaded: the folder is incomplete, or a tensor is missing or misshapen."""


class PromptTooLongError(FoloVLLMError, ValueError):
    """The prompt leaves no room to generate: it can never run, so it is refused when it is added."""


class LogitsNotFiniteError(FoloVLLMError, ValueError):
    """The model gave a request NaN or infinity instead of logits: its activations overflowed. The request ends."""


class NoTokenLeftError(FoloVLLMError, ValueError):
    """A request's own masks, biases, penalties or logits processors left no token to draw. The request ends."""


class IllegalTransition(FoloVLLMError, ValueError):  # noqa: N818  named after what happened
    """A sequence was asked to go to a status that the state machine does not allow from where it is."""


class EngineDeadError(FoloVLLMError, RuntimeError):
    """No engine of its process computes anything any more: the device has faulted, or the process has ended."""
