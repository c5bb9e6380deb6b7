"""A folder that sentence-transformers has written: our vectors are those of its class. `make clients` installs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import LLM
from tests.m11.pooling_support import close, make_folder
from tests.m11.test_pooling import PLAIN

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")


def test_vectors_are_its_own(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_folder(base)
    texts = ["A cat sat.", "Tom and Lily went out.", "x", "the sun"]
    for mode, behind in (("lasttoken", [modules.Normalize()]), ("mean", [])):
        folder = str(tmp_path / mode)
        made = st.SentenceTransformer(
            modules=[modules.Transformer(str(base)), modules.Pooling(64, mode), *behind], device="cpu"
        )
        made.tokenizer.pad_token = made.tokenizer.eos_token  # texts are encoded side by side
        made.save(folder)
        wanted = torch.tensor(st.SentenceTransformer(folder, device="cpu").encode(texts))
        close([output.outputs.embedding for output in LLM(folder, **PLAIN).embed(texts)], wanted)
