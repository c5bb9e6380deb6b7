"""Under load: clients that leave, clients that do not read, steps that fail, and a server that is told to end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from folovllm.serving.openai import streams
from tests.serve.support import Running, first_tokens_only, program, running, wait_for

LONG: dict[str, Any] = {"max_tokens": 200, "extra_body": {"ignore_eos": True}}


def test_of_200_streams_a_third_is_cut_off_and_the_pool_is_full_again(server: Running) -> None:
    """The others get what they would have got alone."""
    ask: dict[str, Any] = {"model": "embedded", "max_tokens": 24, "temperature": 0, "extra_body": {"ignore_eos": True}}
    alone = server.client().completions.create(prompt="Once upon a time", **ask).choices[0].text

    async def read(client: AsyncOpenAI, number: int) -> str:
        text = ""
        async with await client.completions.create(prompt="Once upon a time", stream=True, **ask) as stream:
            async for chunk in stream:
                text += chunk.choices[0].text
                if number % 3 == 0:
                    return "cut off"
        return text

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=200)
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.AsyncClient(limits=limits, timeout=600),
        ) as client:
            return await asyncio.gather(*(read(client, number) for number in range(200)))

    texts = asyncio.run(all_of_them())
    assert texts == ["cut off" if number % 3 == 0 else alone for number in range(200)]
    wait_for(server.is_idle)


def test_a_client_that_waits_for_a_whole_answer_may_leave_too(server: Running) -> None:
    before = server.llm.stats().output_tokens
    body = {"prompt": ["a"] * 40, "n": 1, "max_tokens": 1000, "ignore_eos": True}
    with first_tokens_only(server.llm.engine):
        with post(server, "/v1/completions", body):
            wait_for(lambda: server.llm.stats().output_tokens == before + 40)
        wait_for(server.is_idle)
    assert server.llm.stats().output_tokens == before + 40


def post(server: Running, path: str, body: dict[str, Any]) -> socket.socket:
    """A client that has asked, and does nothing more."""
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    client.sendall("\r\n".join([*head, "Connection: close", "", ""]).encode() + data)
    return client


def test_who_reads_slowly_holds_nobody_up_and_nothing_piles_up(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for some 20 MB and reads none of them. What waits for it is one write, not each step's: the next one is
    made when less than 64 KiB of it are left."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "n": 8,
        "max_tokens": 500,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    make, writes = streams.Burst.of, list[int]()

    def noted(*given: Any) -> streams.Burst:
        burst = make(*given)
        writes.append(len(burst.data))
        return burst

    def waiting() -> int:
        transports = [getattr(protocol, "transport", None) for protocol in server.server.server_state.connections]
        return max(transport.get_write_buffer_size() for transport in transports if transport is not None)

    monkeypatch.setattr(streams.Burst, "of", noted)
    before = server.llm.stats().output_tokens
    with post(server, "/v1/chat/completions", body) as slow:
        wait_for(lambda: server.llm.stats().output_tokens > before)
        assert server.client().completions.create(model="embedded", prompt="a", max_tokens=5).choices
        wait_for(lambda: server.llm.stats().running == 0)  # the engine is done; the reader has not begun
        wait_for(lambda: waiting() > 0)
        assert waiting() < max(writes) + 2**16 + 1000
        received = bytearray()
        while part := slow.recv(65536):
            received += part
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b'"finish_reason":"length"') == 8
    wait_for(server.is_idle)


def test_a_step_that_fails_answers_with_500_and_the_server_goes_on(
    server: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = server.llm.engine.runner
    real, calls = runner.execute_model, iter(range(100))

    def fails_once(scheduled: Any) -> Any:
        if next(calls) == 3:
            raise ArithmeticError("a secret text")
        return real(scheduled)

    monkeypatch.setattr(runner, "execute_model", fails_once)
    client = server.client()
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="embedded", prompt="a private prompt", **LONG)
    assert caught.value.code == "engine_error"
    assert client.completions.create(model="embedded", prompt="a", max_tokens=5).choices
    logged = "".join(capfd.readouterr())
    assert "secret" not in logged
    assert "private" not in logged
    wait_for(server.is_idle)


def test_a_failing_step_ends_a_stream_with_an_error(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = server.llm.engine.runner
    real, calls = runner.execute_model, iter(range(100))
    monkeypatch.setattr(runner, "execute_model", lambda s: 1 / 0 if next(calls) == 3 else real(s))
    with pytest.raises(openai.APIError, match="could not finish"):
        list(server.client().completions.create(model="embedded", prompt="a", stream=True, **LONG))
    wait_for(server.is_idle)


def test_ending_finishes_what_runs_and_takes_nothing_more() -> None:
    with running() as server:
        client = server.client()
        stream = client.completions.create(model="embedded", prompt="a", stream=True, **LONG)
        chunks = iter(stream)
        next(chunks)
        live = client.with_options(timeout=600)._client.stream("GET", f"{server.url}/live")
        with live as looks:
            next(looks.iter_lines())
            server.server.handle_exit(signal.SIGTERM, None)
            with pytest.raises(openai.APIError):
                client.completions.create(model="embedded", prompt="b")
            assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert server.llm.is_closed


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_kill_under_load_answers_every_request_that_runs() -> None:
    """The program itself, told to end while eight requests run: all eight are answered whole, and it exits with 0."""
    with program("--num-kv-blocks", "1024") as (url, process):
        body = {"prompt": "a private prompt", "max_tokens": 300, "ignore_eos": True}

        def all_have_come() -> bool:
            """Those that run, and those that have been answered."""
            text = httpx.get(f"{url}/metrics").text
            counts = re.findall(r"^vllm:(?:num_requests_running|request_success_total){.*} (.*)$", text, re.M)
            return sum(map(float, counts)) == 8

        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=600) for _ in range(8)]
            wait_for(all_have_come)
            process.send_signal(signal.SIGTERM)
            answers = [each.result() for each in asked]
        _, said = process.communicate()
        assert process.returncode == 0
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [300] * 8
    assert "private" not in said
