"""`folovllm complete` and `folovllm chat --url`: a client for a server that runs, this one or another of OpenAI's
interface. It needs no package beside Python's own.

vLLM: entrypoints/cli/openai.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import add_fields
from folovllm.entrypoints.commands import Messages, notes
from folovllm.outputs import CompletionOutput, RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import describe, wrong

URL = "http://localhost:8000/v1"


def add_parser(choices: Any) -> None:
    text = "let a server that runs complete texts"
    parser = choices.add_parser(
        "complete", help=text, description=f"Texts, completed by a server. {commands.CHAT_HELP}."
    )
    add_options(parser, url=URL)
    add_fields(parser, SamplingParams, max_tokens=128)
    parser.set_defaults(run=complete, max_tokens=128)


def add_options(parser: argparse.ArgumentParser, url: str | None = None) -> None:
    group = parser.add_argument_group("a server")
    text = f"its address, such as {URL}" if url is None else "its address"
    group.add_argument("--url", default=url, help=text)
    group.add_argument("--model-name", metavar="NAME", help="which of its models (default: the first that it names)")
    text = "the key that it asks for (default: FOLOVLLM_API_KEY, or OPENAI_API_KEY)"
    group.add_argument("--api-key", metavar="KEY", help=text)
    group.add_argument("-q", "--quick", metavar="TEXT", help="send this text alone, print the answer, and end")


def complete(args: argparse.Namespace) -> int:
    server = Server(args)

    def reply(turns: Messages) -> Messages:
        server.answer("/completions", prompt=turns[-1]["content"])
        return []

    return _converse(args, [], reply)


def chat(args: argparse.Namespace) -> int:
    """Raises ValueError: an option of an engine, which is the server's."""
    options = [*commands.given(args, *commands.ENGINE), *(name for name in ("trace", "nvtx") if getattr(args, name))]
    if options:
        raise ValueError(f"--{options[0].replace('_', '-')} must not be given with --url: the engine is the server's")
    server = Server(args)

    def reply(turns: Messages) -> Messages:
        return [*turns, {"role": "assistant", "content": server.answer("/chat/completions", messages=turns)}]

    return _converse(args, [{"role": "system", "content": args.system}] if args.system else [], reply)


def _converse(args: argparse.Namespace, opening: Messages, reply: Any) -> int:
    if args.quick is None:
        return commands.converse(opening, reply)
    reply([*opening, {"role": "user", "content": args.quick}])
    return 0


class Server:
    """Raises ValueError: there is none at the address, or it has no model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.url, self._key = args.url.rstrip("/"), args.api_key
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise wrong("--url", f"be like {URL}", args.url)
        for name in ("FOLOVLLM_API_KEY", "OPENAI_API_KEY"):
            self._key = self._key or os.environ.get(name)
        self._sampling = commands.given(args, SamplingParams)
        self.model = args.model_name or self._first_model()
        notes.print(f"{self.model} at {self.url}", style="dim", markup=False)

    def answer(self, path: str, **asked: Any) -> str:
        """Printed as it comes; Ctrl-C ends it. Raises ValueError: the server refuses, or cannot be read."""
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        metrics, completion = RequestMetrics(time.perf_counter()), CompletionOutput(0, "", [])
        try:
            for event in self._events(path, {"model": self.model, **asked, **stream, **self._sampling}):
                metrics.num_output_tokens = (event.get("usage") or {}).get("completion_tokens", 0)
                for choice in event.get("choices", ()):
                    delta = choice.get("delta") or choice
                    thoughts = delta.get("reasoning") or delta.get("reasoning_content")
                    text = delta.get("content") or delta.get("text") or ""
                    if thoughts:
                        notes.print(thoughts, end="", style="dim", markup=False)
                    if thoughts or text:
                        metrics.first_token_time = metrics.first_token_time or time.perf_counter()
                    completion.text += text
                    completion.finish_reason = choice.get("finish_reason") or completion.finish_reason
                    print(text, end="", flush=True)
        except KeyboardInterrupt:
            pass
        print(flush=True)
        metrics.finished_time = time.perf_counter()
        notes.print(commands.summary(RequestOutput("", None, [], outputs=[completion], metrics=metrics)), style="dim")
        return completion.text

    def _first_model(self) -> str:
        with closing(self._open("/models")) as answer:
            try:
                return str(json.load(answer)["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise wrong("--url", "be of a server with a model", self.url, f"try {URL}") from None

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with closing(self._open(path, body)) as answer:
            try:
                for line in answer:
                    name, _, data = line.partition(b":")
                    if name != b"data" or data.strip() == b"[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise ValueError(f"the server ended the answer: {describe(event['error'].get('message'))}")
                    yield event
            except (OSError, HTTPException) as error:
                raise ValueError(f"the server ended the answer: {error!r}") from error

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            return urlopen(Request(self.url + path, data, headers))  # type: ignore[no-any-return]
        except HTTPError as error:
            raise ValueError(f"the server refuses, with status {error.code}: {_message(error)}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise wrong(
                "--url", "be of a server that answers", self.url, str(getattr(error, "reason", error))
            ) from None


def _message(error: HTTPError) -> str:
    text = error.read().decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return describe(text)
