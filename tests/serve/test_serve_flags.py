"""Flags of vLLM's server that do something here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from folovllm.serving.openai.launch import listen, make_server
from folovllm.serving.openai.options import ServerOptions
from tests.serve.support import Running, program, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(
        served_model_name=["first", "second"],
        response_role="tutor",
        override_generation_config={"max_new_tokens": 3, "temperature": 0.0},
        default_chat_template_kwargs={"word": "default"},
        chat_template="{{ word }}{{ messages[0].content }}",
        return_tokens_as_token_ids=True,
        enable_force_include_usage=True,
    ) as made:
        yield made


def asked(server: Running, **body: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": "second", **body}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).raise_for_status()


def test_each_name_is_the_models(server: Running) -> None:
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["first", "second"]
    assert asked(server).json()["model"] == "first"
    assert httpx.get(f"{server.url}/v1/models/second").json()["id"] == "second"
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        asked(server, model="embedded")


def test_answers_have_the_role_and_the_defaults_that_were_asked_for(server: Running) -> None:
    answer = asked(server, logprobs=True, return_token_ids=True).json()
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "tutor"
    assert answer["usage"]["completion_tokens"] == 3
    ids = [f"token_id:{token}" for token in choice["token_ids"]]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ids


def test_a_template_has_the_defaults_where_the_request_says_nothing(server: Running) -> None:
    def prompt(**variables: Any) -> Any:
        return asked(server, return_token_ids=True, chat_template_kwargs=variables).json()["prompt_token_ids"]

    tokenizer = server.app.state.serving.tokenizer
    assert tokenizer.decode(prompt()) == "defaultHi"
    assert tokenizer.decode(prompt(word="own")) == "ownHi"


def test_every_stream_counts_its_tokens(server: Running) -> None:
    events = [line[6:] for line in asked(server, stream=True).text.splitlines() if line.startswith("data: {")]
    assert json.loads(events[0])["choices"][0]["delta"]["role"] == "tutor"
    assert json.loads(events[-1])["usage"]["completion_tokens"] == 3


def test_a_unix_socket_is_listened_on_and_goes_with_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with listen("127.0.0.1", 0, path), pytest.raises(OSError, match="^--uds must be a path where no file is yet, got"):
        listen("127.0.0.1", 0, path).__enter__()
    transport = httpx.HTTPTransport(uds=path)
    with program("--uds", path, said=r"http\+unix:\S+"), httpx.Client(transport=transport, timeout=600) as client:
        assert client.get("http://localhost/health").status_code == 200
    assert not Path(path).exists()


@pytest.mark.parametrize("off", [False, True])
def test_uvicorns_log_is_as_the_flags_say(off: bool, server: Running, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_text(json.dumps({"version": 1, "disable_existing_loggers": False, "loggers": {"mine": {"level": 7}}}))
    server.app.state.options = ServerOptions(
        uvicorn_log_level="info", disable_uvicorn_access_log=off, log_config_file=str(file)
    )
    config = make_server(server.app).config
    assert (config.access_log, config.log_config) == (not off, str(file))
