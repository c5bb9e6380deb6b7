"""Shared by the tests: tiny Hugging Face models made on the spot, the greedy oracle, and the examples.

Hugging Face's own model on the same weights is what every parity test compares with, never another path
of ours.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import os
import runpy
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_OF_KIND: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_EXPERTS, "norm_topk_prob": True},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 40},
    "mixtral": {"num_local_experts": 4},
}


def tiny_hf_config(kind: str, **over: Any) -> PreTrainedConfig:
    """A configuration of some 100,000 parameters, of a model_type; `over` replaces any of its fields.

    EOS is None so that random text does not end by accident; a test that needs one says which.
    """
    values: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        **_OF_KIND.get(kind, {}),
        **over,
    }
    return AutoConfig.for_model(kind, **values)


def make_hf_model(
    kind: str, seed: int = 0, dtype: torch.dtype = torch.float32, std: float = 0.2, **over: Any
) -> torch.nn.Module:
    """A random model. Hugging Face's own initialisation (std 0.02) makes greedy output repeat one token;
    0.2 makes it wander, so that a wrong position or a wrong cache entry shows."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_hf_config(kind, **over))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(1.0 + noise if "norm" in name else noise)
    model.tie_weights()
    return model.to(dtype).eval()


def make_hf_folder(
    tmp_path: Path,
    kind: str = "qwen3",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sharded: bool = False,
    **over: Any,
) -> Path:
    """Save a random model as a Hugging Face folder without a tokenizer, sharded in several files if asked."""
    folder = Path(tmp_path) / f"{kind}-{seed}"
    model = make_hf_model(kind, seed, dtype, **over)
    model.save_pretrained(folder, max_shard_size="100KB" if sharded else "10GB")  # type: ignore[operator]
    return folder


def edit_config(folder: Path, **fields: Any) -> Path:
    """The folder, with some fields of its config.json replaced."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def edit_tensors(
    folder: Path, edit: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors"
) -> Path:
    """The folder, with a file's tensors by name as `edit` leaves them."""
    tensors = load_file(folder / file)
    edit(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return folder


@torch.inference_mode()
def hf_greedy(model: torch.nn.Module, prompt_ids: list[int], max_new_tokens: int) -> list[int]:
    """What Hugging Face generates greedily: the oracle. Stops at the model's EOS, which is kept."""
    ids = torch.tensor([prompt_ids], device=next(model.parameters()).device)
    out = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        use_cache=True,
    )
    return [int(t) for t in out[0, len(prompt_ids) :]]


def add_byte_tokenizer(folder: Path) -> None:
    """Save a tokenizer whose token i is byte i, and <eos> = 256, so that expected ids can be read off a text.

    The model beside it needs a vocabulary of at least 257.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Byte-level BPE writes each byte as a printable character; this is its own table, in byte order.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    symbol = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    tokenizer = Tokenizer(models.BPE(vocab={symbol[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


def our_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The package's own. What asyncio says of another test's task, when it is collected, is not among them."""
    ours = (each for each in caplog.records if each.name.partition(".")[0] == "folovllm")
    return [each.getMessage() for each in ours if each.levelno >= logging.WARNING]


@contextlib.contextmanager
def no_warning_of_its_length(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Within it the tokenizer must not warn of a text that no model takes whole; behind it, it is seen to warn."""
    logger = logging.getLogger("transformers.tokenization_utils_base")
    logger.addHandler(caplog.handler)  # transformers keeps its records from the root
    try:
        yield
        assert "longer than the specified maximum" not in caplog.text
        tokenizer.encode("a " * tokenizer.model_max_length)
        assert "longer than the specified maximum" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


def names(values: Iterable[str]) -> dict[str, str]:
    """An axis for `thinned` whose values are their own names."""
    return {name: name for name in values}


def thinned(*axes: Mapping[str, Any]) -> list[Any]:
    """For parametrize: combinations of the axes' values, each under the names of its values.

    As few as it takes for each value of each axis to be in one are left as they are, as far from each other as can be.
    The others are marked `exhaustive`: of up to three axes all, of more as few as it takes for any three values to be
    in one (a covering array: in what Kuhn, Wallace and Gallo looked at in 2004, some nine faults in ten took no more).
    """
    cells = list(itertools.product(*(range(len(axis)) for axis in axes)))
    kept = {tuple((row + shift) % len(axis) for shift, axis in enumerate(axes)) for row in range(max(map(len, axes)))}
    chosen = kept | (_covering(cells, kept) if len(axes) > 3 else set(cells))
    return [
        pytest.param(
            *(list(axis.values())[at] for axis, at in zip(axes, cell, strict=True)),
            id="-".join(list(axis)[at] for axis, at in zip(axes, cell, strict=True)),
            marks=() if cell in kept else pytest.mark.exhaustive,
        )
        for cell in cells
        if cell in chosen
    ]


def _covering(cells: list[tuple[int, ...]], kept: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Cells which, with those that are kept, have each three values together."""
    threes = {cell: set(itertools.combinations(enumerate(cell), 3)) for cell in cells}
    missing = set[Any]().union(*threes.values()).difference(*(threes[cell] for cell in kept))
    chosen = set()
    while missing:
        best = max(cells, key=lambda cell: len(threes[cell] & missing))
        chosen.add(best)
        missing -= threes[best]
    return chosen


def some(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """For parametrize: the first `kept` values as they are, the others marked `exhaustive`."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=() if at < kept else pytest.mark.exhaustive
        )
        for at, value in enumerate(values)
    ]


def in_a_fork(work: Callable[[], object], seconds: int = 300) -> None:
    """`work` in a forked child, which neither fails nor hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(seconds)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run_example(name: str, has_bf16_units: str | None = None) -> str:
    """What an example prints; where it is said, as on a CPU that has bf16 units ("yes") or has none ("no").

    In this process, since in fresh ones nine tenths of the time would be imports.
    """
    folder = Path(__file__).parents[1] / "examples"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.syspath_prepend(str(folder))  # as Python does for a script
        if has_bf16_units is not None:
            patch.setenv("FOLOVLLM_CPU_BF16", has_bf16_units)
        runpy.run_path(str(folder / name), run_name="__main__")
    return out.getvalue()


class Printed(dict[str, str]):
    """What examples print, by name: each is run when it is first asked for, as on a CPU with bf16 units or without."""

    def __init__(self, has_bf16_units: str) -> None:
        super().__init__()
        self.has_bf16_units = has_bf16_units

    def __missing__(self, name: str) -> str:
        self[name] = run_example(name, self.has_bf16_units)
        return self[name]
