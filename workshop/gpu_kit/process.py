"""A command with a limit: it ends by itself, or it is ended with all that it started; and what came of it.

A program on a GPU that hangs does so inside of the driver, its helpers wait for it, and what stays behind keeps the
memory that the next one wants. So the whole family is killed, by its process group and by its family tree: a child that
has left the group is still somebody's child.

A part's `status` in gpu.json:

    passed    it ran to its end and found nothing wrong
    failed    it ended with an error, or found something: `reason` says what, `tail` has the end of its output
    stopped   its time was over; what it had written by then is kept
    refused   it said that it cannot do this here
    skipped   it was not begun
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from workshop.gpu_kit.parts import Part

REFUSED = 2  # what `folovllm bench` ends with where it cannot do what it is asked to
TAIL_LINES = 40
Result = dict[str, Any]


@dataclass
class Record:
    """The results so far: gpu.json, written anew after every part."""

    command: str
    minutes: float
    device: str
    tiny: bool
    seconds: float = 0.0
    parts: list[Result] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.datetime.now().isoformat(timespec="minutes"))

    def report(self, part: str) -> Result | None:
        """What a part measured, if it did."""
        return next((found.get("report") for found in self.parts if found["name"] == part), None)

    def save(self, path: Path) -> None:
        """All of it or nothing: who reads it meanwhile finds the one before."""
        new = path.with_suffix(".new")
        data = {"kit": "folovllm gpu"} | vars(self)
        new.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(new, path)


def run_part(part: Part, limit: float, log: BinaryIO) -> Result:
    """Never raises for what a part does."""
    result: Result = {"name": part.name, "title": part.title, "command": shlex.join(part.argv), "limit_s": limit}
    if limit < part.need / 2:
        return result | {"status": "skipped", "seconds": 0.0, "reason": "no time was left for it"}
    log.write(f"\n==== {part.title}: {shlex.join(part.argv)}\n".encode())
    log.flush()
    begin, start = log.seek(0, 2), time.monotonic()
    code = run_limited(part.argv, limit, log, {"PYTHONUNBUFFERED": "1", **part.env})
    result["seconds"] = time.monotonic() - start
    log.seek(begin)
    said = log.read().decode(errors="replace")
    try:
        result["report"] = part.read(part.output, said)
    except Exception as error:  # a result of another shape than expected costs this part's, not the others'
        result["report"], result["unreadable"] = None, repr(error)
    status, reason = judge(code, limit, said, may_refuse=part.may_refuse)
    result |= {"status": status, "reason": reason, "code": code}
    return result | ({"tail": said.rstrip().splitlines()[-TAIL_LINES:]} if status in ("failed", "stopped") else {})


def judge(code: int | None, limit: float, said: str, *, may_refuse: bool) -> tuple[str, str | None]:
    """(status, why)."""
    if code is None:
        return "stopped", f"it was not done after {limit:.0f} s"
    if code == 0:
        return "passed", None
    if may_refuse and code == REFUSED and "error:" in said and "--help" not in said:  # that were a wrong option
        return "refused", said.rpartition("error:")[2].strip().replace("\n", " ")
    return "failed", (said.strip().splitlines() or ["it printed nothing"])[-1].strip()


def run_limited(argv: Sequence[str], limit: float, log: BinaryIO, env: Mapping[str, str]) -> int | None:
    """Run `argv` with both outputs into `log`, for at most `limit` seconds. Its exit status; None: the limit ended it.

    Whatever ends this function, an interrupt too, ends the command and its children.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True
    )
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # An ended leader's number may be another's by now, but as long as the group lives, not the group's.
        if process.poll() is None:
            leader = psutil.Process(process.pid)
            for member in [leader, *leader.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_parts_on_sigterm() -> None:
    """Let SIGTERM, by which `timeout` ends what takes too long, end the command that runs as an interrupt does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
