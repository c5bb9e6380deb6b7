"""`folovllm chat --url` and `complete`: clients of a server that runs, ours or another of that interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from openai import OpenAI

from tests.m1.test_commands import run
from tests.serve.support import Running, running

ASK: Any = {"model": "embedded", "temperature": 0, "max_tokens": 24}
OPTIONS = ["--temperature", "0", "--max-tokens", "24"]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOLOVLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    left = iter(lines)
    monkeypatch.setattr("builtins.input", lambda _: next(left))


def test_a_conversation_is_sent_whole_each_time(
    server: Running, client: OpenAI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "What is a KV cache?", "And why?", "/reset", "And why?", "/quit")
    code, out, err = run(["chat", "--url", f"{server.url}/v1/", "--system-prompt", "Be brief.", *OPTIONS], capsys)
    assert (code, f"embedded at {server.url}/v1" in err, "24 tokens: the first after" in err) == (0, True, True)
    opening: Any = [{"role": "system", "content": "Be brief."}]

    def says(*messages: str) -> str:
        roles = ("user", "assistant") * len(messages)
        turns = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
        answer = client.chat.completions.create(messages=[*opening, *turns], **ASK).choices[0].message.content
        assert answer is not None
        return answer

    first = says("What is a KV cache?")
    expected = [first, says("What is a KV cache?", first, "And why?"), says("And why?")]
    assert out == "".join(f"{text}\n" for text in expected)


def test_complete_goes_on_from_each_text(
    server: Running, client: OpenAI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = client.completions.create(prompt="Once upon", **ASK).choices[0].text
    typed(monkeypatch, "Once upon", "Once upon", "/quit")
    code, out, err = run(["complete", "--url", server.url, *OPTIONS], capsys)  # as `serve` prints it
    assert (code, out, "/quit" in err, "/reset" in err) == (0, f"{expected}\n" * 2, True, False)
    assert "(default: the server's)" in run(["complete", "--help=temperature"], capsys)[1]
    one = ["complete", "--url", f"{server.url}/v1", "-q", "Once upon", "--model-name", "embedded", *OPTIONS]
    assert run(one, capsys)[:2] == (0, f"{expected}\n")


def test_a_key_is_sent_and_a_refusal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(api_keys=["sesame"]) as server:
        ask = ["chat", "--url", f"{server.url}/v1", "-q", "Hello", "--max-tokens", "2"]
        code, out, err = run(ask, capsys)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {server.url}/v1/models refuses, with status 401: the API key is missing or")
        assert run([*ask, "--api-key", "sesame"], capsys)[0] == 0
        monkeypatch.setenv("OPENAI_API_KEY", "sesame")
        assert run(ask, capsys)[0] == 0
        typed(monkeypatch, "a" * 9999, "Hello", "/quit")  # it goes on after what was refused
        code, out, err = run([*ask[:3], "--max-tokens", "2"], capsys)
        assert (code, out.count("\n")) == (0, 1)
        assert "refuses, with status 400: " in err


class Strange(BaseHTTPRequestHandler):
    """Another server of that interface: it thinks, counts nothing, and what it says last is the test's."""

    last = b""

    def do_GET(self) -> None:
        self._send(b'{"data": [{"id": "other"}]}')

    def do_POST(self) -> None:
        deltas: list[Any] = [{"reasoning_content": "Hm."}, {"content": "Ye"}, {"content": "s."}]
        events = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        said = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)
        self._send(b": a comment\n\n" + said + self.last)

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (9 if self.command == "POST" and not self.last else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def strange(last: bytes) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), type("Other", (Strange,), {"last": last})) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{other.server_address[1]}/v1"
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        (b'data: {"choices": [{"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n', 0, "0 tokens: the first after"),
        (b'data: {"error": {"message": "it is tired"}}\n\n', 2, "error: the server ended the answer: 'it is tired'"),
        (b'data: {"error": "overloaded"}\n\n', 2, "error: the server ended the answer: 'overloaded'"),
        (b'data: {"choices": null}\n\n', 2, "error: the server ended the answer before its end"),
        (b"data: oops\n\n", 2, "error: the server's answer must be events of OpenAI's interface, got ' oops\\n'"),
        (b"", 2, "error: the server ended the answer before its end"),
    ],
)
def test_another_server_s_thoughts_go_beside_the_answer(
    last: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with strange(last) as url:
        found, out, err = run(["chat", "--url", url, "-q", "Well?"], capsys)
        assert (found, out.strip()) == (code, "Yes.")
        assert "Hm." in err
        assert said in err


def test_a_reader_of_stdout_that_leaves_is_no_fault_of_the_server() -> None:
    """`| head`, gone before the first word."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with strange(b"") as url:
        command = [sys.executable, "-m", "folovllm", "complete", "--url", url, "-q", "Well?"]
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (0, ["Hm."])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--url localhost:8000", "--url must be like http://localhost:8000/v1, got 'localhost:8000'"),
        (
            "--url http://127.0.0.1:1",
            "--url must be of a server that answers to the end, got 'http://127.0.0.1:1/v1'; [E",
        ),
        ("--url x --max-num-seqs 3", "--max-num-seqs must not be given with --url: the engine is the server's"),
        ("--url x --trace /nosuch/trace.jsonl", "--trace must not be given with --url: the engine is the server's"),
        ("-q Hello", "--quick must be given with --url: `folovllm generate --chat TEXT` asks once"),
        ("--model-name x", "--model-name must be given with --url: add --url"),
    ],
)
def test_what_cannot_be_is_one_line(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["chat", *argv.split()], capsys)
    assert (code, err.startswith(f"error: {said}"), err.count("\n")) == (2, True, 1)
