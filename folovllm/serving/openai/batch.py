"""A file of requests in the form of OpenAI's batches: each line goes through the server's own application, in memory.

    input    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {…}}
    output   {"id": "batch_req_1_5c0e…", "custom_id": "a", "response": {"status_code": 200, "body": {…}}, "error": null}

The output grows by whole lines, and its ids say which line of the input each of them answers: the number and a digest.
So a run that was ended at any moment needs no other record. The next one cuts a line that was not written to its end,
and asks what has no answer.

vLLM: entrypoints/launchers/run_batch.py
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
from fastapi import FastAPI
from pydantic import Field, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from folovllm.entrypoints.commands import waiting
from folovllm.errors import EngineDeadError
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.bodies import check_json
from folovllm.serving.openai.body import Body
from folovllm.serving.openai.errors import APIError, first_problem
from folovllm.serving.openai.options import ServerOptions
from folovllm.utils.named_files import check_target, incomplete, open_file, wrong_file

PREFIX = "batch_req_"
_BEGINNING = f'{{"id": "{PREFIX}'.encode()


class BatchLine(Body):
    """A line of the input."""

    custom_id: str = Field(min_length=1)
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
    body: dict[str, Any]


class Line(NamedTuple):
    """text: as it is in the file. name: its id in the output."""

    name: str
    text: bytes


class BatchFiles:
    """Raises ValueError: a file cannot be used, or the output is that of another input or of another run."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target, self.num_lines = source, target, 0
        with open_file("input_file", source) as file:
            if not file.seekable():
                raise wrong_file("input_file", "be a file that can be read twice", source, "this is a pipe")
        check_target("output_file", target)
        self._output = target.open("a+b")
        try:
            self._lock()
            self._answered, self.num_errors = self._read_output()
            num_found = 0
            for line in self._lines():
                self.num_lines += 1
                num_found += self._has_answer(line)
            if num_found < len(self._answered):
                raise self._other_input("more lines than this input has")
        except BaseException:
            self._output.close()
            raise
        self.num_before = len(self._answered)
        self.num_tokens, self.began = 0, time.perf_counter()

    def __enter__(self) -> BatchFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    @property
    def is_done(self) -> bool:
        return self.num_before == self.num_lines

    def left(self) -> Iterator[Line]:
        """What has no answer."""
        return (line for line in self._lines() if not self._has_answer(line))

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

    def _lock(self) -> None:
        try:
            fcntl.flock(self._output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise wrong_file("output_file", "be of one run at a time", self.target, "another one writes it") from None

    def _lines(self) -> Iterator[Line]:
        with open_file("input_file", self.source) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield Line(f"{PREFIX}{number}_{hashlib.sha256(text.strip()).hexdigest()[:16]}", text)

    def _has_answer(self, line: Line) -> bool:
        number, digest = line.name.removeprefix(PREFIX).split("_")
        known = self._answered.get(int(number))
        if known not in (None, digest):
            raise self._other_input(f"another line {number}")
        return known is not None

    def _other_input(self, what: str) -> ValueError:
        why = f"it has answers to {what}; name a file that is not there"
        return wrong_file("output_file", "have answers to this input alone", self.target, why)

    def _read_output(self) -> tuple[dict[int, str], int]:
        """Digests of the lines that are answered, by their numbers, and how many of the answers are errors. A last line
        that is not whole is cut off."""
        answered, num_errors, end = dict[int, str](), 0, 0
        self._output.seek(0)
        for place, text in enumerate(self._output, 1):
            is_ours = text.startswith(_BEGINNING[: len(text)])
            if is_ours and not text.endswith(b"\n"):
                self._output.truncate(end)
                break
            try:
                answer = json.loads(text)
                number, digest = answer["id"].removeprefix(PREFIX).split("_")
                answered[int(number)] = digest
                num_errors += answer["error"] is not None
            except (LookupError, TypeError, ValueError, AttributeError):
                why = f"its line {place} is none; name a file that is not there"
                raise wrong_file("output_file", "have answers of run-batch alone", self.target, why) from None
            end += len(text)
        return answered, num_errors


async def run_batch(files: BatchFiles, options: ServerOptions, engine: EngineProcess, notes: Console) -> None:
    """Until every line has its answer.

    Raises:
        EngineDeadError: the engine has ended. What was answered before stays.
        ValueError: as BatchFiles.add().
    """
    with waiting(f"loading {options.model} …", notes):
        llm = MPClient(engine)
    app = make_app(llm, options)
    lines, columns = files.left(), ("answering", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = [TextColumn(each) if isinstance(each, str) else each for each in (*columns, "{task.fields[speed]}")]
    with Progress(*shown, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task("", total=files.num_lines, completed=files.num_before, speed="")
        async with app.router.lifespan_context(app), _client(app) as client:
            files.began = time.perf_counter()

            async def answer_some() -> None:
                for line in lines:  # the next that nobody has taken
                    files.add(await _answer(client, line))
                    progress.update(task, advance=1, speed=files.speed())

            # Twice as many as run at a time: the next is there when one ends.
            workers = [asyncio.create_task(answer_some()) for _ in range(2 * llm.load().rows)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)


def _client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=None)


async def _answer(client: httpx.AsyncClient, line: Line) -> dict[str, Any]:
    """What is written for it."""
    answer: dict[str, Any] = {"id": line.name, "custom_id": None, "response": None, "error": None}
    try:
        asked = _read(line, answer)
    except (APIError, ValueError) as error:
        return answer | {"error": {"code": "invalid_line", "message": str(getattr(error, "message", error))}}
    got = await client.post(asked.url, json=asked.body, headers={"X-Request-Id": line.name})
    body = got.json()
    if got.status_code == 503:
        raise EngineDeadError(f"{body['error']['message']}; what has been answered stays")
    response = {"status_code": got.status_code, "request_id": line.name, "body": body}
    return answer | {"response": response, "error": body["error"] if got.is_error else None}


def _read(line: Line, answer: dict[str, Any]) -> BatchLine:
    """Its custom id goes into `answer`, whatever else is wrong.

    Raises:
        APIError, ValueError: it is no request, or one that is answered in pieces.
    """
    found = check_json("the line", line.text)
    if isinstance(found, dict) and isinstance(found.get("custom_id"), str):
        answer["custom_id"] = found["custom_id"]
    try:
        asked = BatchLine.model_validate(found)
    except ValidationError as error:
        raise first_problem(error.errors(include_url=False)) from None
    if asked.body.get("stream"):
        raise ValueError("body.stream must be false: an answer is one line")
    return asked
