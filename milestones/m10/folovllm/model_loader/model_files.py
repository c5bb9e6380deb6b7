"""From the name of a model to its folder: "embedded", a local Hugging Face folder, or a hub id.

vLLM: model_executor/model_loader/weight_utils.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from folovllm.config import EMBEDDED_MODEL
from folovllm.errors import ModelLoadError

EMBEDDED_FOLDER = Path(__file__).parents[1] / "assets" / "embedded"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model_path(model: str, field: str = "model") -> str:
    """The folder behind a name, the value of `field`; a hub id is passed on as it is."""
    folder = EMBEDDED_FOLDER if model == EMBEDDED_MODEL else Path(model).expanduser()
    if folder.is_dir():
        return str(folder)
    if model != EMBEDDED_MODEL and _HUB_ID.fullmatch(model):
        return model
    raise ModelLoadError(f"{field} must be 'embedded', a folder or a hub id, got {model!r}: no such folder")


@contextmanager
def readable_errors(name: str, what: str = "model") -> Iterator[None]:
    """What the libraries that read a model raise, in one line that names the model."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"{what} {name!r} cannot be loaded: {' '.join(str(error).split())}") from None
