"""An engine that hangs or has died, and what a server must not do for anyone."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from folovllm.entrypoints.cli.main import main
from folovllm.serving import command, mp_client
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from tests.serve.support import Running, program, running, wait_for
from tests.serve.test_mp_client import ENGINE, engine_of, has_ended


def test_a_snapshot_of_a_stopped_engine_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mp_client, "SNAPSHOT_SECONDS", 0.05)
    llm = MPClient(EngineProcess("embedded", **ENGINE))
    with running(llm=llm) as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        os.kill(llm._process.pid or 0, signal.SIGSTOP)
        for _ in range(2):
            answer = httpx.get(f"{server.url}/metrics")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stuck")
        os.kill(llm._process.pid or 0, signal.SIGCONT)
        wait_for(lambda: httpx.get(f"{server.url}/metrics").status_code == 200)


def test_a_second_signal_ends_a_stopped_engine_too() -> None:
    with program("--num-kv-blocks", "64") as (url, process):
        engine = engine_of(process)
        ask = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=ask, timeout=600) as answer:
            next(answer.iter_lines())
            engine.suspend()
            threading.Thread(target=_is_draining, args=(f"{url}/metrics",), daemon=True).start()
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: _is_draining(f"{url}/health"))
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=600)
            assert process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: has_ended(engine))


def _is_draining(url: str) -> bool:
    try:
        return httpx.get(url, timeout=600).status_code == 503
    except httpx.HTTPError:
        return True


def test_whether_the_server_lives_may_be_asked_without_a_body(server: Running) -> None:
    for path in ("/health", "/ping"):
        answer = httpx.head(f"{server.url}{path}")
        assert (answer.status_code, answer.content) == (200, b"")


def test_the_description_of_the_routes_is_there_before_it_is_asked_for(server: Running) -> None:
    assert "/v1/completions" in server.app.openapi_schema["paths"]


@pytest.mark.parametrize(
    ("given", "environment", "keys"),
    [
        ([], {}, []),
        ([], {"FOLOVLLM_API_KEY": "e"}, ["e"]),
        (["--api-key", "a"], {"FOLOVLLM_API_KEY": "e"}, ["a"]),
        (["--api-key", "a", "--api-key-file", "FILE"], {}, ["a", "f1", "f2"]),
    ],
)
def test_keys_come_from_the_command_a_file_or_the_environment(
    given: list[str], environment: dict[str, str], keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("f1\nf2\n")
    monkeypatch.setattr(os, "environ", {**os.environ, **environment})
    found: list[Any] = []
    monkeypatch.setattr(command, "EngineProcess", lambda *args, **kwargs: _Closed())
    monkeypatch.setattr("folovllm.serving.openai.launch.serve", lambda options, *rest: found.append(options) or 0)
    given = [str(tmp_path / "keys") if word == "FILE" else word for word in given]
    assert main(["serve", *given]) == 0
    assert found[0].api_keys == keys


class _Closed:
    def close(self) -> None:
        pass


def test_what_would_give_a_browser_s_keys_to_any_site_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--allowed-origins", '["*"]', "--allow-credentials"]) == 2
    assert "error: --allow-credentials must be given with origins by their names" in capsys.readouterr().err
