"""What a service writes: one line an entry, with the id of the request that it is about.

    2026-11-28 22:33:43,120 INFO 127.0.0.1:40112 - "GET /health HTTP/1.1" 200 request_id=4f0c… seconds=0.002
    {"time": "2026-11-28T22:33:43.120+00:00", "level": "INFO", "logger": "uvicorn.access", "message": …}

At a terminal rich prints the same without the date. What follows the message is `extra={"fields": {…}}` of the call.

vLLM: logger.py, logging_utils/formatter.py
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console

from folovllm.entrypoints import commands
from folovllm.utils.logging import init_logger

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the id of the request, which its answer has as x-request-id, and its headers."""

    request_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  # it is frozen


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What follows the message. What is not known is left out."""
    found = {"request_id": caller.get().request_id, **getattr(record, "fields", {})}
    return {name: value for name, value in found.items() if value is not None}


_PLAIN = re.compile(r'[^\s"=]+')  # needs no quotation marks


class TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        words = [super().formatMessage(record)]
        for name, value in _fields(record).items():
            is_plain = isinstance(value, (int, float)) or _PLAIN.fullmatch(str(value))
            words.append(f"{name}={value if is_plain else json.dumps(value, ensure_ascii=False)}")
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps({**entry, **_fields(record)}, ensure_ascii=False)


class _Entries(io.TextIOBase):
    """A stream whose lines are entries of the log."""

    def __init__(self) -> None:
        self._logger = init_logger("folovllm.serve")
        self._logger.setLevel(logging.INFO)

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            self._logger.info("%s", line)
        return len(text)


@contextmanager
def logging_as(form: LogFormat) -> Iterator[Console]:
    """Of this process, meanwhile: what this package, uvicorn and other libraries log is written so. Yields what the
    command tells a person by: a terminal, or the log as well."""
    root, logger, is_text = logging.getLogger(), init_logger("folovllm"), form == "text"
    before, notes = (root.handlers, logger.handlers), commands.notes
    if is_text and sys.stderr.isatty():
        handler, text = logger.handlers[0], "%(message)s"
    else:
        handler, text = logging.StreamHandler(), "%(asctime)s %(levelname)s %(message)s"
        notes = Console(file=_Entries(), highlight=False, soft_wrap=True)  # type: ignore[arg-type]
    plain = handler.formatter
    handler.setFormatter(TextFormatter(text) if is_text else JsonFormatter())
    root.handlers, logger.handlers = [handler], [handler]
    logging.captureWarnings(True)
    try:
        yield notes
    finally:
        logging.captureWarnings(False)
        handler.setFormatter(plain)
        root.handlers, logger.handlers = before
