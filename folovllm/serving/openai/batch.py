"""A file of requests in the form of OpenAI's batches: each line goes through the server's own application, in memory.

    input    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {…}}
    output   {"id": "batch_req_1_5c0e…", "custom_id": "a", "response": {"status_code": 200, "body": {…}}, "error": null}

The output grows by whole lines, and an id says which line of the input is answered: its number and a digest. So a run
that was ended at any moment needs no other record. The next one cuts a line that was not written to its end, and asks
what has no answer.

vLLM: entrypoints/launchers/run_batch.py
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import httpx
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from folovllm.entrypoints.commands import waiting
from folovllm.errors import EngineDeadError
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.bodies import check_json
from folovllm.serving.openai.body import Body
from folovllm.serving.openai.errors import APIError, refused
from folovllm.serving.openai.options import ServerOptions
from folovllm.utils.named_files import check_target, incomplete, open_file, wrong_file

PREFIX = "batch_req_"
_BEGINNING = f'{{"id": "{PREFIX}'.encode()


class BatchLine(Body):
    """A line of the input."""

    custom_id: str = Field(min_length=1)
    method: Literal["POST"]
    url: Literal[
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
        "/v1/embeddings", "/v1/score", "/v1/rerank",
    ]  # fmt: skip
    body: dict[str, Any]


@contextmanager
def batch_files(source: Path, target: Path) -> Iterator[BatchFiles]:
    """Raises ValueError: a file cannot be used, or the output is that of another input or of another run."""
    with open_file("input_file", source) as file:
        if not file.seekable():
            raise wrong_file("input_file", "be a file that can be read twice", source, "this is a pipe")
    check_target("output_file", target)
    with target.open("a+b") as output:
        try:
            fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise wrong_file("output_file", "be of one run at a time", target, "another one writes it") from None
        yield BatchFiles(source, target, output)


class BatchFiles:
    def __init__(self, source: Path, target: Path, output: BinaryIO) -> None:
        self.source, self.target, self._output = source, target, output
        self.num_errors = self.num_tokens = 0
        self._answered = set(self._read_output())
        names = {name for name, _ in self._lines()}
        if self._answered - names:
            why = "it has answers to other lines; name a file that is not there"
            raise wrong_file("output_file", "have answers to this input alone", target, why)
        self.num_lines, self.num_before, self.began = len(names), len(self._answered), time.perf_counter()

    def left(self) -> Iterator[tuple[str, bytes]]:
        """(id, line) of what has no answer."""
        return (line for line in self._lines() if line[0] not in self._answered)

    def add(self, answer: dict[str, Any]) -> None:
        """Raises ValueError: there is no room."""
        usage = ((answer["response"] or {}).get("body") or {}).get("usage") or {}
        self.num_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
        self.num_errors += answer["error"] is not None
        try:
            self._output.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            self._output.flush()  # so that it outlives this process
        except OSError as error:
            raise incomplete("output_file", self.target, error) from None

    def speed(self) -> str:
        return f"{self.num_tokens / (time.perf_counter() - self.began):,.0f} tokens/s"

    def summary(self) -> str:
        before = f"; {self.num_before} were there" if self.num_before else ""
        text = f"{self.num_lines} lines, {self.num_errors} of them errors{before}: {self.target}"
        return f"{text} · {self.num_tokens:,} tokens, {self.speed()}" if self.num_tokens else text

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        with open_file("input_file", self.source) as file:
            for number, text in enumerate(file, 1):
                if line := text.strip():
                    yield f"{PREFIX}{number}_{hashlib.sha256(line).hexdigest()[:16]}", line

    def _read_output(self) -> Iterator[str]:
        """The ids in it. A last line that is not whole is cut off."""
        end = 0
        self._output.seek(0)
        for place, text in enumerate(self._output, 1):
            try:
                if not text.startswith(_BEGINNING[: len(text)]):
                    raise ValueError(text)
                if not text.endswith(b"\n"):
                    self._output.truncate(end)
                    return
                answer = json.loads(text)
                self.num_errors += answer["error"] is not None
                yield answer["id"]
            except (LookupError, ValueError):
                why = f"its line {place} is none; name a file that is not there"
                raise wrong_file("output_file", "have answers of run-batch alone", self.target, why) from None
            end += len(text)


async def run_batch(files: BatchFiles, options: ServerOptions, engine: EngineProcess, notes: Console) -> None:
    """Until every line has its answer.

    Raises:
        EngineDeadError: the engine has ended. What was answered before stays.
        ValueError: as BatchFiles.add().
    """
    with waiting(f"loading {options.model} …", notes):
        llm = MPClient(engine)
    app, lines = make_app(llm, options), files.left()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[speed]}")
    with Progress("answering", *columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task("", total=files.num_lines, completed=files.num_before, speed="")
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://localhost", timeout=None
        )

        async def answer_some() -> None:
            for name, line in lines:  # the next that nobody has taken
                files.add(await answer_line(client, name, line))
                progress.update(task, advance=1, speed=files.speed())

        async with app.router.lifespan_context(app), client:
            files.began = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(2 * llm.load().rows):  # twice as many as run: the next is there when one ends
                        group.create_task(answer_some())
            except ExceptionGroup as several:
                raise several.exceptions[0] from None


async def answer_line(client: httpx.AsyncClient, name: str, line: bytes) -> dict[str, Any]:
    """What is written for it. Raises EngineDeadError."""
    answer: dict[str, Any] = {"id": name, "custom_id": None, "response": None, "error": None}
    try:
        found = check_json("the line", line)
        if isinstance(found, dict) and isinstance(found.get("custom_id"), str):
            answer["custom_id"] = found["custom_id"]
        asked = BatchLine.model_validate(found)
        if asked.body.get("stream"):
            raise APIError(400, "body.stream must be false: an answer is one line")
    except (APIError, ValueError) as error:
        return answer | {"error": {"code": "invalid_line", "message": refused(error).message}}
    got = await client.post(asked.url, json=asked.body, headers={"X-Request-Id": name})
    body = got.json()
    if got.status_code == 503:
        raise EngineDeadError(f"{body['error']['message']}; what has been answered stays")
    response = {"status_code": got.status_code, "request_id": name, "body": body}
    return answer | {"response": response, "error": body["error"] if got.is_error else None}
