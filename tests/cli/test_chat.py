"""`folovllm chat` at the root: keys that are typed during an answer, and a checkpoint's own way to be drawn from."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.entrypoints.cli.chat import hide_keys
from tests.m1.test_commands import run

termios = pytest.importorskip("termios")


def test_what_is_typed_during_an_answer_is_not_shown(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, screen = os.openpty()
    seen: list[bool] = []

    def is_shown() -> bool:
        return bool(termios.tcgetattr(screen)[3] & termios.ECHO)

    with open(screen, encoding="utf-8", closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        llm = LLM(model)
        hide_keys(llm.engine)
        llm.engine.core.listen(lambda record: seen.append(is_shown()))
        assert is_shown()
        for _ in llm.engine.generate_stream("hello", SamplingParams(max_tokens=3, ignore_eos=True)):
            pass
        assert (seen, is_shown()) == ([False] * 3, True)
        stream = llm.engine.generate_stream("hello", SamplingParams(max_tokens=3, ignore_eos=True))
        next(stream)
        assert not is_shown()
        stream.close()  # as Ctrl-C does
        assert is_shown()
    os.close(keyboard)
    os.close(screen)


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
