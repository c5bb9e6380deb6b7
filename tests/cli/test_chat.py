"""`folovllm chat` at the root: a checkpoint's own way to be drawn from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from folovllm import SamplingParams
from tests.m1.test_commands import run


@pytest.mark.parametrize(("given", "expected"), [([], 0.25), (["--temperature", "0.5"], 0.5)])
def test_a_checkpoint_is_drawn_from_as_its_makers_say(
    model: str, given: list[str], expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "eos_token_id": 1}))
    seen: list[float] = []

    def answer(llm: Any, turns: Any, params: SamplingParams) -> Any:
        seen.append(params.temperature)
        return turns

    monkeypatch.setattr("folovllm.entrypoints.commands.answer", answer)
    lines = iter(["hello", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    code, _, _ = run(["chat", "--model", str(folder), *given], capsys)
    assert (code, seen) == (0, [expected])
