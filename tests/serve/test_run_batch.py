"""`folovllm run-batch`: every line of a file is answered once, whatever ends the program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from folovllm.entrypoints.cli.main import main
from folovllm.errors import EngineDeadError
from folovllm.serving.openai.batch import answer_line, batch_files
from tests.serve.support import wait_for

GREEDY = {"temperature": 0, "max_tokens": 12}


def line(custom_id: str, body: dict[str, Any], url: str = "/v1/completions", **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


def begin(source: Path, target: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "folovllm", "run-batch", "-i", str(source), "-o", str(target), "--dtype=float32"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment)


def answers(target: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in target.read_text(encoding="utf-8").splitlines()]


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "folovllm.serving.openai.batch")
    assert main(["run-batch", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 2
    assert "error: `run-batch` needs the package httpx: pip install " in capsys.readouterr().err


def test_each_line_is_answered_as_a_server_answers_it(tmp_path: Path, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "What is prefix caching?"}]
    lines = [
        line("chat", {"messages": messages, **GREEDY}, "/v1/chat/completions"),
        line("text", {"prompt": ["Once", "一只小猫"], **GREEDY}),
        line("response", {"input": "Hello", "temperature": 0, "max_output_tokens": 4}, "/v1/responses"),
        line("message", {"messages": messages, **GREEDY}, "/v1/messages"),
        "",
        "{no JSON",
        line("", {"prompt": "a"}),
        line("url", {"input": "a"}, "/v1/audio"),
        line("stream", {"prompt": "a", "stream": True}),
        line("wrong", {"prompt": "a", "temperature": -1}),
        line("model", {"prompt": "a", "model": "other"}),
        line("field", {"prompt": "a"}, beside=1),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    with begin(source, target) as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert f"11 lines, 7 of them errors: {target}" in said
    found = {answer["id"].split("_")[2]: answer for answer in answers(target)}
    assert sorted(map(int, found)) == [1, 2, 3, 4, *range(6, 13)]
    good = [found[str(number)]["response"]["body"] for number in (1, 2, 3, 4)]
    ask: Any = {"model": "embedded", **GREEDY}
    expected = client.chat.completions.create(messages=messages, **ask).choices[0].message.content
    assert good[0]["choices"][0]["message"]["content"] == good[3]["content"][0]["text"] == expected
    texts = client.completions.create(prompt=["Once", "一只小猫"], **ask).choices
    assert [choice["text"] for choice in good[1]["choices"]] == [choice.text for choice in texts]
    assert good[2]["status"] == "incomplete"
    problems = {number: answer["error"]["message"] for number, answer in found.items() if answer["error"]}
    for number, text in {
        "6": "the line must be JSON",
        "7": "custom_id ",
        "8": "url must be '/v1/chat/completions',",
        "9": "body.stream must be false",
        "10": "temperature must be non-negative, got -1.0",
        "11": "model must be 'embedded'",
        "12": "beside is not a field of this request",
    }.items():
        assert problems.pop(number).startswith(text)
    assert problems == {}
    known = {number: answer["custom_id"] for number, answer in found.items()}
    assert (known["6"], known["8"], known["10"]) == (None, "url", "wrong")
    assert (found["8"]["response"], found["10"]["response"]["status_code"]) == (None, 400)
    before = target.read_bytes()
    assert main(["run-batch", "-i", str(source), "-o", str(target)]) == 0  # loads no model
    assert target.read_bytes() == before


@pytest.mark.slow
def test_killed_three_times_and_without_its_engine_it_loses_and_repeats_no_line(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": "Once", "temperature": 0, "max_tokens": 32, "ignore_eos": True}
    lines = [line(f"r{number}", body) for number in range(160)]
    lines[5] = "{no JSON"
    source.write_text("\n".join(lines), encoding="utf-8")
    kept = b""
    for round_ in range(4):
        with begin(source, target, "--max-num-seqs", "2") as process:
            enough = kept.count(b"\n") + 6
            wait_for(lambda enough=enough: target.exists() and target.read_bytes().count(b"\n") >= enough)  # type: ignore[misc]
            if round_ == 3:
                children = psutil.Process(process.pid).children()
                (engine,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
                engine.kill()
                assert process.wait() == 1
                assert process.stderr is not None
                assert "the same command goes on" in process.stderr.read()
            else:
                process.send_signal(signal.SIGKILL)
        now = target.read_bytes()
        assert now.startswith(kept)
        assert now.count(b"\n") < len(lines)
        if round_ == 1:
            now = now[: now.rindex(b"\n") - 9]  # as if the last line had not been written to its end
            target.write_bytes(now)
        kept = now[: now.rindex(b"\n") + 1]
    with begin(source, target, "--max-num-seqs", "2") as process:
        assert process.wait() == 0
    assert target.read_bytes().startswith(kept)
    found = answers(target)
    assert sorted(int(answer["id"].split("_")[2]) for answer in found) == list(range(1, 161))
    texts = {answer["response"]["body"]["choices"][0]["text"] for answer in found if not answer["error"]}
    assert len(texts) == 1


def ours(tmp_path: Path, *lines: str) -> tuple[Path, Path]:
    """An input, and an output with an error for each of its lines."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    with batch_files(source, target) as files:
        for name, _ in files.left():
            files.add({"id": name, "custom_id": None, "response": None, "error": {"message": "no"}})
    return source, target


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_that_is_not_whole_is_cut_wherever_it_ends(tmp_path: Path, cut: int) -> None:
    source, target = ours(tmp_path, "a", "b")
    whole = target.read_bytes()
    target.write_bytes(whole[: whole.index(b"\n") + 1 + cut])
    with batch_files(source, target) as files:
        assert [text for _, text in files.left()] == [b"b"]
        assert (files.num_before, files.num_lines) == (1, 2)
    assert target.read_bytes() == whole[: whole.index(b"\n") + 1]


def test_what_is_no_output_of_this_input_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    source, target = ours(tmp_path, "a", "b")
    before = target.read_bytes()
    refused = partial(pytest.raises, ValueError)
    one_run = refused(match="^output_file must be of one run at a time")
    with batch_files(source, target), one_run, batch_files(source, target):
        pass
    for text in ("a\nc", "a"):
        source.write_text(text, encoding="utf-8")
        said = "^output_file must have answers to this input alone, .*it has answers to other lines"
        with refused(match=said), batch_files(source, target):
            pass
    assert target.read_bytes() == before
    for strange in (b"my notes", b"my notes\n", b'{"id": 3}\n', b"[]\n"):
        target.write_bytes(strange)
        said = "^output_file must have answers of run-batch alone, .*its line 1 is none"
        with refused(match=said), batch_files(source, target):
            pass
        assert target.read_bytes() == strange


def test_an_input_that_is_not_there_leaves_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.jsonl"
    assert main(["run-batch", "-i", str(tmp_path / "none"), "-o", str(target)]) == 2
    assert capsys.readouterr().err.startswith("error: input_file must be a file that can be read")
    assert not target.exists()


def test_an_engine_that_has_died_answers_no_line(tmp_path: Path) -> None:
    def dead(_: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"error": {"message": "the engine has died"}})

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(dead), base_url="http://localhost") as client:
            await answer_line(client, "batch_req_1_a", line("a", {"prompt": "a"}).encode())

    with pytest.raises(EngineDeadError, match="the engine has died; what has been answered stays"):
        asyncio.run(ask())
