"""Names, keys that are given twice, and requests that never come to their end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from typing import Any

import httpx
import pytest

from folovllm.serving.openai import launch
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.options import ServerOptions
from tests.serve.support import Running, running, wait_for


def status(options: ServerOptions, server: Running, host: str | None) -> int:
    """Of /v1/models for who calls the server by this name."""
    lines = ["GET /v1/models HTTP/1.0", *([] if host is None else [f"Host: {host}"]), "Authorization: Bearer k", "", ""]
    app = make_app(server.llm, options)
    real, server.server.config.loaded_app = server.server.config.loaded_app, app
    try:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall("\r\n".join(lines).encode())
            return int(client.recv(100).split()[1])
    finally:
        server.server.config.loaded_app = real


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9", None])
def test_loopback_names_are_let_in(server: Running, host: str | None) -> None:
    assert status(ServerOptions(), server, host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "192.168.1.5", "[::2]", "127.0.0.1:80@evil.com",
     "[::1].evil.com", "[::1]evil.com", "127.0.0.1:80:evil.com", "127.0.0.1/evil.com", "127.0.0.1#.evil.com", "[::1",
     ""],
)  # fmt: skip
def test_another_name_is_refused_where_no_key_is_asked_for(server: Running, host: str) -> None:
    assert status(ServerOptions(), server, host) == 400
    assert status(ServerOptions(api_keys=["k"]), server, host) == 200
    assert status(ServerOptions(host="0.0.0.0"), server, host) == 200


def test_a_name_that_was_given_is_let_in_and_then_no_other_is(server: Running) -> None:
    options = ServerOptions(host="0.0.0.0", allowed_hosts=["box.local"], api_keys=["k"])
    assert [status(options, server, host) for host in ("Box.local:80", "localhost", "other.local")] == [200, 200, 400]


def asked_by_a_page(server: Running, options: ServerOptions) -> httpx.Response:
    """What a browser asks before a page of https://app.example sends a body to the server."""
    app = make_app(server.llm, options)
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.options("/v1/chat/completions", headers=asks)

    return asyncio.run(ask())


@pytest.mark.parametrize("origin", ["https://app.example", "*"])
def test_pages_of_a_site_that_was_given_may_call_also_where_a_key_is_asked_for(server: Running, origin: str) -> None:
    answer = asked_by_a_page(server, ServerOptions(allowed_origins=[origin], api_keys=["k"]))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize("origins", [[], ["https://other.example"]])
def test_pages_of_other_sites_may_not(server: Running, origins: list[str]) -> None:
    assert "access-control-allow-origin" not in asked_by_a_page(server, ServerOptions(allowed_origins=origins)).headers


def test_two_keys_are_refused(server: Running) -> None:
    twice = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
    answer = httpx.get(f"{server.url}/v1/models", headers=twice)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"].startswith("Authorization must be given once")


def test_the_name_of_a_request_comes_back_with_every_answer(server: Running) -> None:
    named = {"X-Request-Id": "mine"}
    for path, kind in (("chat/completions", "chatcmpl"), ("completions", "cmpl")):
        body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
        answer = httpx.post(f"{server.url}/v1/{path}", json={**body, "max_tokens": 1}, headers=named)
        assert (answer.headers["x-request-id"], answer.json()["id"]) == ("mine", f"{kind}-mine")
        stream = httpx.post(f"{server.url}/v1/{path}", json={**body, "max_tokens": 1, "stream": True}, headers=named)
        assert (stream.headers["x-request-id"], f'"id":"{kind}-mine"' in stream.text) == ("mine", True)
        own = httpx.post(f"{server.url}/v1/{path}", json={**body, "max_tokens": 1, "request_id": "x"}, headers=named)
        assert (own.headers["x-request-id"], own.json()["id"]) == ("mine", f"{kind}-x")
    for path in ("/nowhere", "/health"):
        assert httpx.get(server.url + path, headers=named).headers["x-request-id"] == "mine"
    long = httpx.get(f"{server.url}/health", headers={"X-Request-Id": "x" * 1025})
    assert (long.status_code, "X-Request-Id must have at most 1024" in long.text) == (400, True)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"", "application/json", "the body must be JSON, and is empty"),
        (b"", None, "the body must be JSON, and is empty"),
        (b"{}", None, "the header Content-Type must be application/json, got none"),
        (b"{}", "text/plain", "the header Content-Type must be application/json, got 'text/plain'"),
        (b"{}", "application/x-www-form-urlencoded", "the header Content-Type must be application/json, got"),
        (b"{}", "application/json; charset=utf-8", "prompt must be given"),
        (b"[]", "Application/JSON", "the body must be an object, got []"),
    ],
)
def test_what_is_no_json_is_said_as_such(server: Running, content: bytes, kind: str | None, message: str) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = httpx.post(f"{server.url}/v1/completions", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health",
    ],
)
def test_a_request_that_does_not_end_is_ended(server: Running, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "READ_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=600) as client:
        client.sendall(sent)
        try:
            while client.recv(1000):
                pass
        except ConnectionResetError:
            pass


def test_the_time_that_reading_takes_is_not_that_of_the_answer(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer is left once the request is there, and the next request has its own."""
    timers: list[Any] = []
    real = launch.TimedH11._begin

    def begin(self: Any) -> None:
        real(self)
        timers.append(self._reading)

    monkeypatch.setattr(launch.TimedH11, "_begin", begin)
    with httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
        assert timers
        assert all(timer.cancelled() for timer in timers)


@pytest.mark.parametrize("stream", [True, False])
def test_a_second_signal_cuts_answers_off_and_says_nothing(capfd: pytest.CaptureFixture[str], stream: bool) -> None:
    body = {"prompt": "a", "max_tokens": 900, "n": 32, "ignore_eos": True, "stream": stream}
    with running() as server:
        errors: list[Exception] = []

        def ask() -> None:
            try:
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)
            except httpx.TransportError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for(lambda: server.llm.stats().running == 1)
        for _ in range(2):
            server.server.handle_exit(signal.SIGINT, None)
        thread.join()
    assert len(errors) == 1
    assert server.server.exit_status == 130
    assert server.llm.is_closed
    assert capfd.readouterr().err == ""
