"""Starts a server on a free port, waits for what the engine should come to, and keeps requests from ending."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai import OpenAI

from folovllm import AsyncLLM, LLMEngine
from folovllm.engine.engine_client import EngineClient
from folovllm.engine.messages import EngineCoreOutputs
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.launch import DrainingServer, make_server
from folovllm.serving.openai.options import ServerOptions
from tests.pace import LateAnswers

ENGINE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 64, "num_kv_blocks": 4096, "max_logprobs": -1}


@dataclass
class Running:
    url: str
    app: Any
    llm: Any
    server: DrainingServer

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 600, **options})

    def is_idle(self) -> bool:
        """Nothing runs or waits, and every block is free (the prefix cache may know what is in it)."""
        stats = self.llm.stats()
        return (stats.running, stats.waiting, stats.kv_blocks_used, self.app.state.serving.gate.num_inside) == (0,) * 4


@contextmanager
def running(
    *, engine: dict[str, Any] | None = None, llm: EngineClient | None = None, **options: Any
) -> Iterator[Running]:
    """`llm` instead of an engine made here."""
    llm = llm or AsyncLLM(**{**ENGINE, **(engine or {})})
    app = make_app(llm, ServerOptions("embedded", **{"host": "0.0.0.0", "unknown_fields": "refuse", **options}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(app)
        server.config.app = LateAnswers(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app, llm, server)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def program(*options: str, said: str = r"http://[\d.:]+") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`folovllm serve` in a process, once it listens: its address, and the process with the rest of what it says."""
    command = [sys.executable, "-m", "folovllm", "serve", "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            addresses = (re.search(said, line) for line in process.stderr)
            yield next(found for found in addresses if found)[0], process
        finally:
            process.terminate()


def wait_for(reached: Callable[[], bool], seconds: float = 600) -> None:
    """For what another thread brings about. The limit is far beyond what it takes: it ends a test that would hang."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "what was waited for did not come about"
        time.sleep(0.01)


@contextmanager
def first_tokens_only(*engines: LLMEngine) -> Iterator[None]:
    """Meanwhile no request gets further than its first token, however late a test looks: who has come is still there.
    Requests come, wait where there is no room, and leave, as ever."""
    for engine in engines:
        engine.core.step = partial(step_unless_all_have_begun, engine, engine.core.step)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for engine in engines:
            del engine.core.step


def step_unless_all_have_begun(engine: LLMEngine, step: Callable[[], EngineCoreOutputs]) -> EngineCoreOutputs:
    running, waiting = list(engine.scheduler.running), len(engine.scheduler.waiting)
    has_begun = all(seq.data.output_token_ids for request in running for seq in request.get_seqs())
    if has_begun and (not waiting or len(running) == engine.scheduler.max_num_seqs):
        time.sleep(0.001)  # the step thread asks again, after what has been asked of it meanwhile
        return EngineCoreOutputs()
    return step()
