"""`folovllm complete` and `folovllm chat --url`: a client for a server that runs, this one or another of OpenAI's
interface. It needs no package beside Python's own.

vLLM: entrypoints/cli/openai.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import add_fields, said_of
from folovllm.entrypoints.commands import Messages, notes
from folovllm.outputs import CompletionOutput, RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import describe, wrong

URL = "http://localhost:8000/v1"


def add_parser(choices: Any) -> None:
    text = f"Texts, completed by a server. {commands.LINE_HELP}."
    parser = choices.add_parser("complete", help="let a server that runs complete texts", description=text)
    _add_options(parser, url=URL)
    add_fields(parser, SamplingParams, **{**dict.fromkeys(said_of(SamplingParams), "the server's"), "max_tokens": 128})
    parser.set_defaults(run=complete, max_tokens=128)


def extend(parser: argparse.ArgumentParser) -> None:
    """`chat`, which makes no engine where it has --url."""
    _add_options(parser)
    parser.set_defaults(run=partial(_here_or_there, parser.get_default("run")))


def _here_or_there(run_here: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    if args.url is not None:
        return chat(args)
    for option in ("quick", "model_name", "api_key"):
        if getattr(args, option) is not None:
            way_out = "`folovllm generate --chat TEXT` asks once" if option == "quick" else "add --url"
            raise ValueError(f"--{option.replace('_', '-')} must be given with --url: {way_out}")
    return run_here(args)


def _add_options(parser: argparse.ArgumentParser, url: str | None = None) -> None:
    group = parser.add_argument_group("a server")
    group.add_argument("--url", default=url, help="its address" + ("" if url else f", such as {URL} (default: none)"))
    group.add_argument("--model-name", metavar="NAME", help="which of its models (default: the first that it names)")
    text = "the key that it asks for (default: FOLOVLLM_API_KEY, or OPENAI_API_KEY)"
    group.add_argument("--api-key", metavar="KEY", help=text)
    group.add_argument("-q", "--quick", metavar="TEXT", help="send this text alone, and end (default: none)")


def complete(args: argparse.Namespace) -> int:
    server = Server(args)

    def reply(turns: Messages) -> Messages:
        server.answer("/completions", prompt=turns[-1]["content"])
        return []

    return commands.converse([], reply, args.quick, commands.LINE_HELP)


def chat(args: argparse.Namespace) -> int:
    """Raises ValueError: an option of an engine, which is the server's."""
    options = [*commands.given(args, *commands.ENGINE), *(name for name in ("trace", "nvtx") if getattr(args, name))]
    if options:
        raise ValueError(f"--{options[0].replace('_', '-')} must not be given with --url: the engine is the server's")
    server = Server(args)

    def reply(turns: Messages) -> Messages:
        return [*turns, {"role": "assistant", "content": server.answer("/chat/completions", messages=turns)}]

    return commands.converse([{"role": "system", "content": args.system}] if args.system else [], reply, args.quick)


class Server:
    """Raises ValueError: there is none at the address, or it has no model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.url, self._sampling = args.url.rstrip("/"), commands.given(args, SamplingParams)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https"):
            raise wrong("--url", f"be like {URL}", args.url)
        self.url += "" if parts.path else "/v1"  # `serve` prints its address without
        self._key = args.api_key or os.environ.get("FOLOVLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
        self.model = args.model_name or self._first_model()
        notes.print(f"{self.model} at {self.url}", style="dim", markup=False)

    def _first_model(self) -> str:
        text = b"".join(self._asked("/models"))
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise wrong("--url", "be of a server with a model", self.url, f"try {URL}") from None

    def answer(self, path: str, **asked: Any) -> str:
        """Printed as it comes; Ctrl-C ends it. Raises ValueError: the server refuses, or leaves before its end."""
        asked |= {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **self._sampling}
        metrics, completion = RequestMetrics(time.perf_counter()), CompletionOutput(0, "", [])
        with suppress(KeyboardInterrupt), closing(self._asked(path, asked)) as lines:
            for line in lines:
                name, _, data = line.partition(b":")
                if name == b"data" and data.strip() != b"[DONE]":
                    num_tokens, pieces = _event(data)
                    metrics.num_output_tokens = num_tokens or metrics.num_output_tokens
                    for piece in pieces:
                        _show(piece, metrics, completion)
            if completion.finish_reason is None:
                raise ValueError("the server ended the answer before its end")
        print(flush=True)
        metrics.finished_time = time.perf_counter()
        notes.print(commands.summary(RequestOutput("", None, [], outputs=[completion], metrics=metrics)), style="dim")
        return completion.text

    def _asked(self, path: str, body: dict[str, Any] | None = None) -> Generator[bytes, None, None]:
        """The lines of the answer. Raises ValueError: the server refuses, or there is none, or it leaves."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self.url + path, data, headers)) as answer:
                yield from answer
        except HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            with suppress(ValueError, LookupError, TypeError):
                text = str(json.loads(text)["error"]["message"])
            raise ValueError(f"{self.url}{path} refuses, with status {error.code}: {text[:1000]}") from None
        except (OSError, HTTPException) as error:
            why = str(getattr(error, "reason", error))
            raise wrong("--url", "be of a server that answers to the end", self.url, why) from None


def _event(data: bytes) -> tuple[int | None, list[dict[str, Any]]]:
    """(tokens so far, where they are counted; what each choice gained). Raises ValueError: it is an error, or odd."""
    try:
        event = json.loads(data)
        if (error := event.get("error")) is None:
            pieces = [{**choice, **(choice.get("delta") or {})} for choice in event.get("choices") or ()]
            return (event.get("usage") or {}).get("completion_tokens"), pieces
    except (ValueError, TypeError, AttributeError):
        must = "be events of OpenAI's interface"
        raise ValueError(f"the server's answer must {must}, got {describe(data.decode('utf-8', 'replace'))}") from None
    said = error.get("message", error) if isinstance(error, dict) else error
    raise ValueError(f"the server ended the answer: {describe(said)}")


def _show(piece: dict[str, Any], metrics: RequestMetrics, completion: CompletionOutput) -> None:
    thoughts = piece.get("reasoning") or piece.get("reasoning_content")
    text = str(piece.get("content") or piece.get("text") or "")
    if thoughts:
        notes.print(thoughts, end="", style="dim", markup=False)
    if thoughts or text:
        metrics.first_token_time = metrics.first_token_time or time.perf_counter()
    print(text, end="", flush=True)
    completion.text += text
    completion.finish_reason = piece.get("finish_reason") or completion.finish_reason
