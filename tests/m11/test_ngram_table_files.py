"""A file that is no table of n-grams is refused, however it came about."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.spec_decode.ngram_table import NgramTable
from tests.m8.test_ngram_table import refusal


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    name = "speculative_config['model']"
    assert refusal(str(tmp_path)).startswith(f"{name} must be a file, got {str(tmp_path)!r}")
    assert refusal(str(tmp_path / "none")).startswith(f"{name} must be a file that can be read")
    assert refusal(str(EMBEDDED_FOLDER / "config.json")).startswith(
        f"{name} must be a file that NgramTable.save() made, got"
    )
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    assert "must be a file that NgramTable.save() made" in refusal(str(tmp_path / "other.npz"))
    NgramTable(6, {3: {1: 6}, 2: {}}).save(tmp_path / "table")
    assert refusal(str(tmp_path / "table")).endswith("it names tokens that the model has not")


def test_a_file_is_as_large_as_what_comes_out_of_it(tmp_path: Path) -> None:
    path = tmp_path / "packed.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("contexts_3.npy", "w") as part:
        for _ in range(2**7 + 1):
            part.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(ValueError, match="135,266,304 bytes when it is unpacked, 134,217,728 are the most"):
        NgramTable.load(str(path), 10)
