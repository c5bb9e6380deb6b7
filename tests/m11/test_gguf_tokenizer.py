"""A GGUF file's tokenizer, on vocabularies that are small enough to merge by hand. tests/real compares the ids of a
real one with llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

gguf = pytest.importorskip("gguf")

from folovllm import ModelLoadError  # noqa: E402
from folovllm.model_loader.gguf_tokenizer import gguf_tokenizer  # noqa: E402

BYTES = [chr(code) for code in range(33, 127)]  # of byte-level BPE, those that look like themselves
SPACE = "Ġ"


def tokenizer(path: Path, model: str, tokens: list[str], **fields: Any) -> Any:
    writer = gguf.GGUFWriter(path / "vocabulary.gguf", "llama")
    kinds = [3 if token.startswith("<|") else 4 if token == "<think>" else 1 for token in tokens]
    for name, value in {"model": model, "tokens": tokens, "token_type": kinds, **fields}.items():
        of = {str: writer.add_string, list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}
        of[type(value)](f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_tokenizer(str(path / "vocabulary.gguf"))


def test_bytes_are_merged_by_rank_and_never_across_a_cut(tmp_path: Path) -> None:
    tokens = [*BYTES, SPACE, "12", "ab", "abc", "<|end|>", "<think>"]
    merges = ["1 2", "a b", "ab c"]
    made = tokenizer(tmp_path, "gpt2", tokens, pre="smollm", merges=merges, eos_token_id=tokens.index("<|end|>"))
    pieces = made.convert_ids_to_tokens(made("abcab 12<|end|><think>ab").input_ids)
    assert pieces == ["abc", "ab", SPACE, "1", "2", "<|end|>", "<think>", "ab"]
    assert made.eos_token == "<|end|>"
    assert made.decode(made("abcab 12<|end|><think>").input_ids, skip_special_tokens=True) == "abcab 12<think>"


def test_where_numbers_are_cut_is_the_files_word(tmp_path: Path) -> None:
    """smollm and Qwen cut after each digit, Llama 3 after three, GPT-2 nowhere."""
    tokens, merges = [*BYTES, SPACE, "12", "34", "123", "1234"], ["1 2", "3 4", "12 3", "12 34"]
    for pre, pieces in (
        ("gpt-2", ["1234"]), ("smollm", [*"1234"]), ("qwen2", [*"1234"]), ("llama-bpe", ["123", "4"]),
    ):  # fmt: skip
        made = tokenizer(tmp_path, "gpt2", tokens, pre=pre, merges=merges, add_bos_token=False)
        assert made.convert_ids_to_tokens(made("1234").input_ids) == pieces


def test_pieces_are_merged_by_score_and_unknown_ones_are_bytes(tmp_path: Path) -> None:
    """▁ab by its better score, and not ▁a and then b. A text begins with a space, and with BOS."""
    every = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *every, "▁", "a", "b", "▁a", "ab", "▁ab"]
    scores = [0.0] * 262 + [-3.0, -1.0, -2.0]
    made = tokenizer(tmp_path, "llama", tokens, scores=scores)
    assert made.convert_ids_to_tokens(made("ab a é").input_ids) == ["<s>", "▁ab", "▁a", "▁", "<0xC3>", "<0xA9>"]
    assert made.decode(made("ab a é").input_ids[1:]) == "ab a é"
    plain = tokenizer(tmp_path, "llama", tokens, scores=scores, add_space_prefix=False, add_bos_token=False)
    assert plain.convert_ids_to_tokens(plain("ab").input_ids) == ["ab"]


def test_a_tokenizer_that_is_not_known_is_refused(tmp_path: Path) -> None:
    way_out = "name the folder of the original model's with tokenizer="
    with pytest.raises(ModelLoadError, match=f"tokenizer.ggml.pre must be one of .*, got 'viking'; {way_out}"):
        tokenizer(tmp_path, "gpt2", BYTES, pre="viking", merges=["a b"])
    with pytest.raises(ModelLoadError, match=f"tokenizer.ggml.model must be gpt2 or llama, .*, got 'bert'; {way_out}"):
        tokenizer(tmp_path, "bert", BYTES)
    with pytest.raises(ModelLoadError, match=r"tokenizer.ggml.eos_token_id must be below 94, got 94"):
        tokenizer(tmp_path, "gpt2", BYTES, pre="gpt-2", merges=[], eos_token_id=94)
    for merges in ([], ["ab"], ["a ☃"], ["a b"]):  # without them, each byte would be a token
        with pytest.raises(ModelLoadError, match=r"tokenizer.ggml.merges must be pairs of tokens that make another"):
            tokenizer(tmp_path, "gpt2", BYTES, pre="gpt-2", merges=merges)
