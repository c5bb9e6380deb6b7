"""What the server writes: one line an entry, in text or in JSON, by the id of the request that it is about."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from folovllm.entrypoints.cli.main import main
from folovllm.serving.logs import Caller, JsonFormatter, TextFormatter, caller, logging_as
from folovllm.serving.openai.options import ServerOptions
from tests.serve.support import Running, program, running, wait_for

ASK: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True, "temperature": 0}
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) \S")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(enable_log_requests=True, max_log_len=6) as made:
        yield made


@pytest.fixture
def entries(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """What was logged meanwhile, as JSON has it."""
    found = list[dict[str, Any]]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(JsonFormatter().format(record)))

    handler, loggers = Kept(), [logging.getLogger(name) for name in ("folovllm", "uvicorn.access")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
    loggers[1].setLevel(logging.INFO)
    yield found
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def posted(server: Running, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", timeout=600, **more)


def test_an_ended_request_is_one_entry(server: Running, entries: list[dict[str, Any]]) -> None:
    answer = posted(server, json=ASK, headers={"X-Request-Id": "mine"})
    (entry,) = entries
    usage = answer.json()["usage"]
    assert (entry["message"], entry["request_id"], entry["level"]) == ("request ended", "mine", "INFO")
    assert entry["prompt_tokens"] == usage["prompt_tokens"]
    assert (entry["output_tokens"], entry["finish_reason"]) == (5, "length")
    assert 0 <= entry["queue_seconds"] <= entry["ttft_seconds"] <= entry["e2e_seconds"]
    assert (entry["prompt"], entry["outputs"]) == ("Once u", [answer.json()["choices"][0]["text"][:6]])


def test_a_request_that_its_client_leaves_is_one_too(server: Running, entries: list[dict[str, Any]]) -> None:
    ask = {**ASK, "stream": True, "max_tokens": 900}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=ask, timeout=600) as answer:
        next(answer.iter_lines())
    wait_for(lambda: bool(entries))
    (entry,) = entries
    assert (entry["finish_reason"], entry["request_id"]) == ("abort", answer.headers["x-request-id"])
    assert "ttft_seconds" in entry


def test_texts_are_not_logged_unless_asked_for(entries: list[dict[str, Any]]) -> None:
    with running(enable_log_requests=True, uvicorn_log_level="info") as made:
        posted(made, json={**ASK, "prompt": "secret", "temperature": "secret"})
        posted(made, json={**ASK, "prompt": "secret"})
    assert "secret" not in json.dumps(entries)
    access = [entry for entry in entries if entry["logger"] == "uvicorn.access"]
    assert [re.sub(r"\S+ - ", "", entry["message"]) for entry in access] == [
        f'"POST /v1/completions HTTP/1.1" {status}' for status in (400, 200)
    ]
    assert all(entry["seconds"] > 0 for entry in access)
    assert access[1]["request_id"] == next(entry["request_id"] for entry in entries if "finish_reason" in entry)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/health", 200), ("GET", "/nothing", 404), ("POST", "/v1/completions", 400)]
)
def test_each_answer_has_an_id(method: str, path: str, status: int, server: Running) -> None:
    made = [httpx.request(method, f"{server.url}{path}") for _ in range(2)]
    assert {answer.status_code for answer in made} == {status}
    assert len({answer.headers["x-request-id"] for answer in made}) == 2


def test_what_no_handler_is_for_has_an_id_and_a_line(
    server: Running, entries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bool:
        raise KeyError("text")

    monkeypatch.setattr(type(server.llm), "replicas", lambda self: broken())
    answer = httpx.get(f"{server.url}/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    (entry,) = entries
    assert entry["message"] == "a request ended in KeyError"
    assert entry["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_every_line_of_the_program_is_an_entry(form: str) -> None:
    """Its process's and its engine's, what it tells a person, and uvicorn's: none is wrapped."""
    options = ("--log-format", form, "--uvicorn-log-level", "info", "--enable-log-requests", "--log-level", "debug")
    said = r"http://[\d.:]+"
    with program(*options, said=said) as (url, process):
        answer = httpx.post(f"{url}/v1/completions", json={**ASK, "f" * 200: 1}, timeout=600)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert process.wait() == 0
    assert len(lines) > 4
    if form == "json":
        entries = [json.loads(line) for line in lines]
        assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in entries)
        about = [entry["message"] for entry in entries if entry.get("request_id") == answer.headers["x-request-id"]]
        assert any("is not known here" in message for message in about)
        assert "request ended" in about
    else:
        assert [line for line in lines if not LINE.match(line)] == []
        about = [line for line in lines if f"request_id={answer.headers['x-request-id']}" in line]
    assert len(about) == 3


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_said_before_there_is_an_engine_is_an_entry_too(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["serve", "--log-format", form, "--disable-log-stats", "--max-num-seqs", "0"])
    finally:
        warning, error = capfd.readouterr().err.splitlines()
    assert status == 2
    if form == "json":
        assert [json.loads(line)["level"] for line in (warning, error)] == ["WARNING", "ERROR"]
        assert json.loads(error)["message"].startswith("max_num_seqs must be positive")
    else:
        assert LINE.match(warning)
        assert error.startswith("error: max_num_seqs must be positive")


def test_a_value_with_spaces_or_lines_is_quoted() -> None:
    record = logging.makeLogRecord({"msg": "said", "fields": {"a": "x\ny", "b": "plain", "c": 0.5, "d": None, "e": []}})
    caller.set(Caller('i"d'))
    text = TextFormatter("%(message)s").format(record)
    assert text == r'said request_id="i\"d" a="x\ny" b=plain c=0.5 e=[]'
    caller.set(Caller())


def test_an_error_is_one_entry_of_json() -> None:
    try:
        raise RuntimeError("why")
    except RuntimeError as error:
        info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(logging.makeLogRecord({"msg": "failed", "exc_info": info}))
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("RuntimeError: why")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_logs_as_before_when_the_server_has_ended(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    loggers = [logging.getLogger(name) for name in ("", "folovllm")]
    before = [(list(logger.handlers), logger.handlers[0].formatter) for logger in loggers]
    with logging_as(form):
        assert loggers[0].handlers == loggers[1].handlers != before[0][0]
        loggers[0].addHandler(logging.NullHandler())
        assert len(loggers[1].handlers) == 1
    assert [(logger.handlers, logger.handlers[0].formatter) for logger in loggers] == before


def test_texts_have_a_length_only_where_requests_are_logged() -> None:
    with pytest.raises(ValueError, match="^max_log_len must be given with enable_log_requests, got 5 without it"):
        ServerOptions(max_log_len=5)
