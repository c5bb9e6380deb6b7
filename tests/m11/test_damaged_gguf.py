"""GGUF files that are cut short, lie about sizes, or are of what is not read: one line, the file and the field."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

gguf = pytest.importorskip("gguf")

from folovllm import LLM, ModelConfig, ModelLoadError  # noqa: E402
from folovllm.model_loader import load_tokenizer  # noqa: E402
from folovllm.model_loader.hf_config import load_generation_config, load_hf_config  # noqa: E402
from folovllm.model_loader.model_files import resolve_model_path  # noqa: E402
from folovllm.models.weights import build_model  # noqa: E402
from tests.helpers import make_hf_model  # noqa: E402
from tests.m11.gguf_files import write_gguf  # noqa: E402

VOCABULARY = {
    "tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "gpt-2", "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__tokens": [*"abcdefgh", "ab", "<|im_end|>"], "tokenizer__ggml__merges": ["a b"],
    "tokenizer__ggml__token_type": [1] * 9 + [3],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(path, make_hf_model("llama"), "Q8_0", **VOCABULARY)
    return path


def read_all(path: Path) -> None:
    config = ModelConfig(str(path))
    load_hf_config(config)
    load_generation_config(config)
    load_tokenizer(config)
    build_model(load_hf_config(config), 64, torch.float32, torch.device("cpu"), path)


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_all(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def changed(whole: Path, tmp_path: Path, *changes: tuple[bytes, bytes]) -> Path:
    data = whole.read_bytes()
    for before, after in changes:
        assert data.count(before) == 1
        data = data.replace(before, after)
    (tmp_path / "changed.gguf").write_bytes(data)
    return tmp_path / "changed.gguf"


def field(name: str, form: str, *values: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<{form}", *values)


def test_what_is_whole_is_read(whole: Path) -> None:
    read_all(whole)
    assert load_generation_config(ModelConfig(str(whole))).eos_token_ids == {9}


def test_a_file_that_was_cut_short_is_refused_wherever_that_was(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    for length in [0, 3, *range(4, 40), *range(40, len(data), len(data) // 150), len(data) - 32]:
        (tmp_path / "short.gguf").write_bytes(data[:length])
        refusal(tmp_path / "short.gguf")


def test_no_size_is_believed_before_it_is_compared_with_the_file(whole: Path, tmp_path: Path) -> None:
    huge = 2**60
    model, tokens, merges = (f"tokenizer.ggml.{name}" for name in ("model", "tokens", "merges"))
    for before, after, what in (
        (b"GGUF" + struct.pack("<IQ", 3, 21), b"GGUF" + struct.pack("<IQ", 3, huge), "name of tensor 21"),
        (field(tokens, "IIQ", 9, 8, 10), field(tokens, "IIQ", 9, 8, huge), tokens),
        (field(merges, "IIQ", 9, 8, 1), field(merges, "IIQ", 9, 5, huge), merges),
        (field(model, "IQ", 8, 4), field(model, "IQ", 8, huge), model),
        (field("output_norm.weight", "IQ", 1, 64), field("output_norm.weight", "IQ", 1, huge), "output_norm.weight"),
    ):
        path = changed(whole, tmp_path, (before, after))
        tracemalloc.start()
        try:
            text = refusal(path)
            assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        finally:
            tracemalloc.stop()
        assert what in text


def test_a_wrong_field_is_named(whole: Path, tmp_path: Path) -> None:
    for before, after, text in (
        (b"GGUF\x03", b"GGUF\x01", "version must be 2 or 3, little-endian, got 1"),
        (b"GGUF", b"GGML", "first four bytes must be b'GGUF', got b'GGML'"),
        (field("general.architecture", "IQ", 8, 5) + b"llama", field("general.architecture", "IQ", 8, 5) + b"mamba",
         "general.architecture must be one of llama, qwen2, qwen3, qwen3moe, got 'mamba'"),
        (field("llama.block_count", "II", 4, 2), field("llama.block_count", "II", 5, 2**32 - 2),
         "llama.block_count must be a positive int, got -2"),
        (b"llama.embedding_length", b"llama.embedding_lengtx", "llama.embedding_length must be a positive int, got No"),
        (field("output_norm.weight", "IQI", 1, 64, 0), field("output_norm.weight", "IQI", 1, 64, 99),
         "type of output_norm.weight must be one that the package gguf knows, got 99"),
        (field("output_norm.weight", "IQI", 1, 64, 0), field("output_norm.weight", "IQI", 1, 64, 24),
         "type of output_norm.weight must be one that the package gguf widens, got 'I8'; take the folder that it was"),
        (b"gpt-2", b"gpt-3", "tokenizer.ggml.pre must be one of gpt-2, smollm, "),
    ):  # fmt: skip
        assert text in refusal(changed(whole, tmp_path, (before, after)))


def test_damaged_bytes_end_in_one_kind_of_error(whole: Path, tmp_path: Path) -> None:
    """Where the head is damaged; what is wrong among the weights cannot be seen."""
    data, draw, path = whole.read_bytes(), random.Random(0), tmp_path / "damaged.gguf"
    for _ in range(200):
        worse = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            worse[draw.randrange(3000)] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
        path.write_bytes(worse)
        with contextlib.suppress(ModelLoadError):
            read_all(path)


def test_what_is_missing_is_said_before_torch_is_imported(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model must be a GGUF file that is here, got .*did you mean '.*whole.gg"):
        resolve_model_path(str(whole.with_name("whle.gguf")))
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(ModelLoadError, match="it lacks config.json, .*; it has a GGUF file: name that file, not its f"):
        resolve_model_path(str(tmp_path))


def test_the_package_that_reads_it_is_named(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "is read by the package gguf: pip install gguf" in refusal(changed(whole, tmp_path))


def test_what_only_our_layers_compute_is_told_to_others(tmp_path: Path) -> None:
    write_gguf(whole := tmp_path / "plain.gguf", make_hf_model("llama"))
    with pytest.raises(ModelLoadError, match="is computed by our own layers"):
        LLM(str(whole), model_impl="transformers", skip_tokenizer_init=True, device="cpu", dtype="float32")
