"""`folovllm info`: what this machine can run, and why not the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import folovllm
from folovllm.entrypoints.cli.info import collect
from tests.m1.test_commands import run
from tests.m11.models.tiny_types import make_model


def test_info_json_says_what_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["info", "--json"], capsys)
    data = json.loads(out)
    assert code == 0
    assert {"python", "torch", "transformers", "folovllm"} <= set(data["versions"])
    assert data["hardware"]["threads"] >= 1
    assert data["attention_backends"]["dense"] is None
    assert set(data["auto_dtype"]) == {"bfloat16", "float32"}


def test_info_prints_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["info"], capsys)
    assert (code, "picked" in out) == (0, True)
    assert len(out.splitlines()) <= 24


def test_info_says_what_runs_the_layers_and_why_not_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    if collect()["default_device"] == "cpu":
        assert collect()["layers"] == {"compiled": "FOLOVLLM_CPU_KERNELS=no", "torch": None}
    monkeypatch.delenv("FOLOVLLM_CPU_KERNELS")
    layers = collect()["layers"]
    assert list(layers)[-1] == "torch"
    assert layers["torch"] is None


def test_info_says_what_memory_a_model_of_transformers_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 2: a block has 16 tokens of 2 of its 4 layers, keys and values, 2 heads of 16 numbers of 4 bytes: 8 KiB."""
    make_model("gemma2").save_pretrained(tmp_path)
    code, out, _ = run(["info", "--json", "--model", str(tmp_path)], capsys)
    cache = json.loads(out)["kv_cache"]
    assert code == 0
    assert cache["model_impl"] == "transformers"
    assert cache["text"].startswith("16,384 blocks of 16 tokens in 1 of 2 groups of layers = ")
    assert "512 tokens, 128.0 MiB (all that max_num_seqs and max_model_len can use)" in cache["text"]


def test_collect_env_has_what_a_report_needs_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOLOVLLM_API_KEY", "sesame")
    monkeypatch.setenv("FOLOVLLM_LOG_LEVEL", "INFO")
    monkeypatch.setenv("PASSWORD_OF_MINE", "sesame")
    code, out, _ = run(["collect-env"], capsys)
    assert code == 0
    assert f"folovllm {folovllm.__version__}" in out
    for text in ("attention", "PyTorch version: ", "\nnumpy==", "_LOG_LEVEL=INFO\n", "_API_KEY=(not shown)\n"):
        assert text in out
    assert "sesame" not in out
    assert "folovllm collect-env" in run(["info"], capsys)[1]
