"""A server with a certificate, behind a proxy's path, with another template, and with a line for each request."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from folovllm.serving.openai.options import ServerOptions
from tests.serve.support import Running, running


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> object:
    options = {"root_path": "/llm", "api_keys": ["k"], "chat_template": "{{ messages[0].content }} is"}
    with running(engine={"num_kv_blocks": 64}, **options) as made:
        yield made


@pytest.mark.parametrize("prefix", ["", "/llm"], ids=["a proxy that takes it away", "one that leaves it"])
def test_a_prefix_is_no_part_of_a_route(proxied: Running, prefix: str) -> None:
    get = {"headers": {"Authorization": "Bearer k"}}
    for path in ("/health", "/", "/assets/chat.css"):
        assert httpx.get(proxied.url + prefix + path).status_code == 200  # without a key
    assert httpx.get(f"{proxied.url}{prefix}/v1/models").status_code == 401
    assert httpx.get(f"{proxied.url}{prefix}/v1/models", **get).status_code == 200
    assert "/llm/openapi.json" in httpx.get(f"{proxied.url}{prefix}/docs", **get).text


def test_the_servers_template_writes_the_prompt(proxied: Running) -> None:
    body = {"messages": [{"role": "user", "content": "An apple"}]}
    answer = httpx.post(f"{proxied.url}/tokenize", json=body, headers={"Authorization": "Bearer k"}).json()
    tokenizer = proxied.app.state.serving.tokenizer
    assert answer["tokens"] == tokenizer("An apple is", add_special_tokens=False)["input_ids"]


def test_a_template_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^chat_template must be a template that Jinja can compile, got '\{% if %\}'"):
        ServerOptions(chat_template="{% if %}")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_makes_it_https(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = str(tmp_path / "c.pem"), str(tmp_path / "k.pem")
    how = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*how, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    options = {"ssl_certfile": certificate, "ssl_keyfile": key, "uvicorn_log_level": "info"}
    with running(engine={"num_kv_blocks": 64}, **options) as server:
        logging.getLogger("uvicorn.access").addHandler(caplog.handler)
        answer = httpx.get(f"{server.url.replace('http', 'https')}/health", verify=False)
    logging.getLogger("uvicorn.access").removeHandler(caplog.handler)
    assert answer.status_code == 200
    assert "GET /health" in caplog.text
