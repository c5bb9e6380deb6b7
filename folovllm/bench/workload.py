"""What a benchmark needs before it starts: a model (a folder, or just a shape), prompts, progress.

It imports nothing but Python's own: `python -m milestones` answers where no package is installed.

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from folovllm.bench.shapes import SHAPES


@dataclass(frozen=True)
class BenchModel:
    """How to name the model to the engine and to its peers."""

    label: str
    path: str
    load_format: Literal["auto", "dummy"]
    """"dummy" for a shape: the folder then holds a config.json and nothing else."""
    observers: tuple[Callable[[Any], object], ...] = ()
    """Called with each engine that is made of it, before its first step."""


@contextmanager
def bench_model(
    model: str | None, shape: str, load_format: Literal["auto", "dummy"] | None = None
) -> Iterator[BenchModel]:
    """`model` if given, else a folder with the configuration of `shape`, there as long as the block runs.

    Raises:
        ValueError: load_format="auto" without a model: a shape has no weights to read.
    """
    if model is not None:
        label = Path(model).name + (", random weights" if load_format == "dummy" else "")
        yield BenchModel(label, model, load_format or "auto")
        return
    if load_format == "auto":
        raise ValueError("load_format must be 'dummy' for a shape, got 'auto': give --model to read weights")
    with tempfile.TemporaryDirectory(prefix="folovllm-bench-") as folder:
        shape_config(shape).save_pretrained(folder)
        yield BenchModel(f"{shape} shape, random weights", folder, "dummy")


def shape_config(shape: str) -> Any:
    import torch
    from transformers import AutoConfig

    none: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    values = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SHAPES[shape]}
    return AutoConfig.for_model(values.pop("model_type"), **values, dtype=torch.bfloat16, **none)


def hf_config_of(model: BenchModel) -> Any:
    from folovllm.config import ModelConfig
    from folovllm.model_loader.hf_config import load_hf_config

    return load_hf_config(ModelConfig(model.path, load_format=model.load_format, skip_tokenizer_init=True))


def dtype_of(model: BenchModel, dtype: str, device: str | None) -> str:
    """What the engine computes in for this `dtype`: peers get the same, and the report has its name."""
    import torch

    from folovllm.config import ModelConfig
    from folovllm.model_loader import resolve_dtype
    from folovllm.utils.devices import default_device

    config = ModelConfig(model.path, dtype=dtype, load_format=model.load_format, skip_tokenizer_init=True)
    chosen = resolve_dtype(config, hf_config_of(model), torch.device(device or default_device()))
    return str(chosen).removeprefix("torch.")


def vocab_size(model: BenchModel) -> int:
    return int(hf_config_of(model).vocab_size)


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int | str = 0) -> list[list[int]]:
    """Uniform token ids, a prompt of each length."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


@contextmanager
def progress_bar(total: int) -> Iterator[Any]:
    """Yields tick(text): one more step begins, and this is what it does. Drawn on stderr, gone when done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def tick(text: str) -> None:
            nonlocal started
            progress.update(task, description=text, completed=started)
            started += 1

        yield tick
