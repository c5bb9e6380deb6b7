"""From the name of a model to its files: which folder, and what it lacks.

There are four ways to name a model: "embedded", a local Hugging Face folder, a GGUF file, or a hub id. What others
wrote is checked before it is followed: an index may name a file outside of its folder. Whatever goes wrong inside the
libraries that read a model becomes one kind of error, in one line.

vLLM: model_executor/model_loader/weight_utils.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from folovllm.config import EMBEDDED_MODEL
from folovllm.errors import ModelLoadError
from folovllm.utils.checks import describe, nearest_name

EMBEDDED_FOLDER = Path(__file__).parents[1] / "assets" / "embedded"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# The largest models come in some hundreds. Each is a path to make and to look for: a million take the better part of a
# minute.
MAX_FILES = 10_000
_JSON: dict[type[Any], str] = {dict: "object", list: "list"}
LONGEST_NAME = 255  # bytes of a file's name, on the usual file systems
_OTHER_FORMATS = {
    "*.bin": "its *.bin weights are pickles, which can run code: convert them with save_pretrained",
    "*.gguf": "it has a GGUF file: name that file, not its folder",
}


def resolve_model_path(model: str, *, weights: bool = True, tokenizer: bool = False) -> str:
    """The folder or the GGUF file behind a name, checked; a hub id is passed on as it is.

    `weights` and `tokenizer` say whether the caller is about to read those. A folder that lacks something
    the caller needs is refused with everything that it lacks; weights are no part of that for a caller that
    does without them.
    """
    folder = EMBEDDED_FOLDER if model == EMBEDDED_MODEL else Path(model).expanduser()
    if is_gguf(folder):
        if not folder.is_file():
            raise ModelLoadError(f"model must be a GGUF file that is here, got {model!r}{_similar(folder)}")
        return str(folder)
    if not folder.exists() and model != EMBEDDED_MODEL:
        if _HUB_ID.fullmatch(model):
            return model
        raise ModelLoadError(
            f"model must be 'embedded', a folder or a hub id, got {model!r}: no such folder{_similar(folder)}"
        )
    if folder.is_file():
        raise ModelLoadError(f"model must be a folder, got the file {model!r}; name the folder it is in")
    missing = _missing_files(folder)
    if not weights:
        missing.pop("weights", None)
    needed = {"config": True, "weights": weights, "tokenizer": tokenizer}
    if any(needed[part] for part in missing):
        found = [text for pattern, text in _OTHER_FORMATS.items() if any(folder.glob(pattern))]
        hint = f"; {found[0]}" if found and "weights" in missing else ""
        raise ModelLoadError(
            f"model folder {str(folder)!r} is not complete, it lacks {', '.join(missing.values())}{hint}"
        )
    return str(folder)


def is_gguf(path: str | Path) -> bool:
    """Whether that names a GGUF file, be it there or not."""
    return str(path).lower().endswith(".gguf") and not os.path.isdir(path)


def weight_files(weights: Path) -> list[Path]:
    """All files that say what is computed, of a model's folder or GGUF file."""
    return [weights] if is_gguf(weights) else sorted([weights / "config.json", *weights.glob("*.safetensors")])


def hub_hint(path: str) -> str:
    """What to add where a name that was taken for a hub id leads nowhere: it may be a folder's, mistyped."""
    folder = Path(path).expanduser()
    return "" if folder.exists() else f"there is no folder of that name here, so the hub was asked{_similar(folder)}"


def _similar(folder: Path) -> str:
    """Names what was perhaps meant, beside it."""
    if not folder.parent.is_dir():
        return ""
    near = nearest_name(folder.name, [path.name for path in folder.parent.iterdir() if path.is_dir() or is_gguf(path)])
    return f"; did you mean {str(folder.parent / near)!r}?" if near else ""


def _missing_files(folder: Path) -> dict[str, str]:
    """What a Hugging Face folder should have and this one has not: part -> what to call it in a message."""
    missing = {}
    if not (folder / "config.json").is_file():
        missing["config"] = "config.json"
    files = checkpoint_files(folder)
    if not files:
        missing["weights"] = "*.safetensors (weights)"
    elif lost := [file.name for file in files if not file.is_file()]:
        missing["weights"] = f"{len(lost)} of {len(files)} weight files ({', '.join(lost[:3])})"
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        missing["tokenizer"] = "tokenizer.json (or tokenizer.model)"
    return missing


def checkpoint_files(folder: Path) -> list[Path]:
    """The files that hold the weights: model.safetensors, else those that the index names, else all there are.

    Some repositories hold the weights twice, the second time under other names (consolidated.safetensors).

    Raises:
        ModelLoadError: the index is no index, or names a file outside of the folder.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelLoadError(f"{index} cannot be read: weight_map must map tensors to files, got {describe(names)}")
    # Each file once, with the first of its tensors: an index may have a hundred thousand of these.
    first: dict[str, str] = {}
    for tensor, name in names.items():
        if not isinstance(name, str) or not name:
            raise ModelLoadError(f"{index} must name files of its own folder, got {describe(name)} for {tensor[:80]}")
        first.setdefault(name, tensor)
    if len(first) > MAX_FILES:
        shown = ", ".join(describe(name) for name in list(first)[:3])
        raise ModelLoadError(f"{index} must name at most {MAX_FILES} files, got {len(first)}: {shown}, ...")
    for name, tensor in first.items():
        # By the text alone: a hub download's files are links, which rightly lead out of the folder.
        if Path(name).is_absolute() or ".." in Path(name).parts or len(name.encode()) > LONGEST_NAME:
            raise ModelLoadError(f"{index} must name files of its own folder, got {describe(name)} for {tensor[:80]}")
    return sorted(folder / name for name in first)


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """The JSON object, or list, in a file.

    Raises:
        ModelLoadError: it is damaged, or no object, by the file's name.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}; was it downloaded to its end?") from None
    if not isinstance(values, kind):
        raise ModelLoadError(f"{path} must hold a JSON {_JSON[kind]}, got {describe(values)}")
    return values


@contextmanager
def readable_errors(name: str, what: str = "model", hint: str = "") -> Iterator[None]:
    """transformers' own errors run over many lines and rarely name the model: keep one line, and name it.

    Every Exception is caught. A damaged file makes these libraries stumble wherever its values are used first, with
    a TypeError or an AttributeError as likely as with a ValueError. The first error is the `__context__` of ours.
    """
    try:
        yield
    except ModelLoadError:
        raise  # it says already what is wrong with which file
    except Exception as error:
        reason = _one_line(error)
        if hint:
            reason = f"{reason.rstrip('.')}; {hint}"
        raise ModelLoadError(f"{what} {name!r} cannot be loaded: {reason}") from None


def _one_line(error: Exception) -> str:
    """The first line of an error's text. Lines that end in a colon only announce the next one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    if not lines or isinstance(error, LookupError):  # the text of a KeyError is the key alone
        lines[:1] = [": ".join([type(error).__name__, *lines[:1]])]
    return lines[0]
