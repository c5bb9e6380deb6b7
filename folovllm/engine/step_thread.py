"""The engine's steps in a thread of their own, one after the other: none of them waits for the event loop.

    step thread    step ─ step ─ add b ─ step ─ step ─ step ─ abort a     commands run between two steps
                     └──┬──┘       ▲       └─────┬────┘
                        ▼          │             ▼
    event loop       hand out   generate(b)   hand out                    the newest output of each request

A milestone's AsyncLLM goes back to the event loop after each step. Under a server the engine then waits, at every
step, until all answers have been written. Here it goes on, and what it makes meanwhile takes the place of what waits.

Both share one interpreter, so a loop that writes all the time still slows the steps. It therefore rests REST times as
long as a round of writing took, LONGEST_REST at most. Say a round of 64 streams takes some 4 ms: where a
step takes 40 ms nothing is held back, and where it takes 3 ms several tokens go out as one piece. First outputs, last
outputs and errors do not wait.

An output costs the step thread time, too, for its text above all. So none is made that the next step would replace
before the loop looks: while it writes, and while it rests for longer than the last step took.

vLLM: v1/engine/core.py (EngineCoreProc.run_busy_loop)
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Literal

from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import RequestOutput

REST = 9
LONGEST_REST = 0.1  # seconds: a reader sees ten pieces a second at least


class Mailbox:
    """The newest output of one request, or the error that ended it, until its consumer looks."""

    def __init__(self, *, wants_all: bool = True) -> None:
        self.wants_all = wants_all  # not the last output alone
        self.has_begun = False  # the step thread's alone
        self._filled = asyncio.Event()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None

    def put(self, output: RequestOutput) -> None:
        self._output = output
        self._filled.set()

    def fail(self, error: BaseException) -> None:
        """Keep the error for the consumer, except where the last output is there already, fetched or not."""
        if self._output is not None and self._output.finished:
            return
        self._error = error
        self._filled.set()

    async def get(self) -> RequestOutput:
        await self._filled.wait()
        self._filled.clear()
        if self._error is not None:
            raise self._error
        assert self._output is not None
        return self._output


class StepThread:
    """`run` is the thread's, `submit` is for the event loop.

    Args:
        is_open: whether this mailbox still belongs to the request of this id.
    """

    def __init__(
        self, engine: LLMEngine, loop: asyncio.AbstractEventLoop, is_open: Callable[[str, Mailbox], bool]
    ) -> None:
        self.engine, self.loop, self.is_open = engine, loop, is_open
        self._mailboxes: dict[str, Mailbox] = {}  # by request; the step thread's alone
        self._due = 0.0  # the event loop's: from when on it hands out what is patient; while it writes, never
        self._timer: asyncio.TimerHandle | None = None
        self._both = threading.Lock()  # held for what both touch:
        self._commands: list[Callable[[], None]] = []
        self._runs, self._ends = False, False
        self._patient: dict[Mailbox, RequestOutput] = {}
        self._urgent: dict[Mailbox, RequestOutput | BaseException] = {}
        self._told: Literal["nothing", "later", "now"] = "nothing"  # when the event loop is going to hand out

    def submit(self, commands: list[Callable[[], None]]) -> bool:
        """Run them between two steps, in their order. Returns whether `run` has to be started for it."""
        with self._both:
            self._commands += commands
            starts, self._runs = not self._runs, True
            return starts

    def end(self) -> None:
        """No further step; commands that have been submitted are run."""
        with self._both:
            self._ends = True

    def expect(self, request_id: str, mailbox: Mailbox) -> None:
        """Called by a command, in the step thread: outputs of this request go there."""
        self._mailboxes[request_id] = mailbox

    def run(self) -> None:
        """Until there is nothing to do. Raises what the engine raises."""
        try:
            while self._run_commands():
                began = time.perf_counter()
                self.engine.advance()
                self._collect(time.perf_counter() - began)
        finally:
            self._collect()

    def _run_commands(self) -> bool:
        """Returns False when nothing is left to do."""
        with self._both:
            commands, self._commands = self._commands, []
            if not commands and (self._ends or not self.engine.has_unfinished_requests()):
                self._runs = False
                return False
        for command in commands:
            command()
        if commands:  # one of them may have been an abort, after which nothing more comes
            self._mailboxes = {name: box for name, box in self._mailboxes.items() if self.is_open(name, box)}
        return True

    def _collect(self, seconds: float = 0.0) -> None:
        """What the engine has made goes to where the event loop finds it. `seconds`: of a step."""
        rests = self._due > time.perf_counter() + seconds
        later = {name for name, box in self._mailboxes.items() if not box.wants_all or (rests and box.has_begun)}
        outputs, failures = self.engine.drain(later)
        with self._both:
            for output in outputs:
                self._take(output)
            for request_id, error in failures.items():
                if (mailbox := self._mailboxes.pop(request_id, None)) is not None:
                    self._patient.pop(mailbox, None)
                    self._urgent[mailbox] = error
            if self._told == "now" or not (self._urgent or (self._patient and self._told == "nothing")):
                return
            self._told = "now"
            try:
                self.loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:  # the event loop has been closed: no one waits any more
                self._ends = True

    def _take(self, output: RequestOutput) -> None:
        mailbox = self._mailboxes.get(output.request_id)
        if mailbox is None:
            return
        if output.finished:
            del self._mailboxes[output.request_id]
        elif mailbox.has_begun and mailbox not in self._urgent:
            self._patient[mailbox] = output
            return
        mailbox.has_begun = True
        self._patient.pop(mailbox, None)
        self._urgent[mailbox] = output

    def _hand_out(self) -> None:
        began = time.perf_counter()
        news: dict[Mailbox, RequestOutput | BaseException]
        with self._both:
            news, self._urgent = self._urgent, {}
            if began >= self._due:
                news |= self._patient
                self._patient = {}
        for mailbox, what in news.items():
            if isinstance(what, BaseException):
                mailbox.fail(what)
            else:
                mailbox.put(what)
        if news:
            # In line behind the readers, each of which has been woken.
            self.loop.call_soon(self._rest, began, self._due)
            self._due = math.inf
        else:
            self._plan()

    def _rest(self, began: float, due: float) -> None:
        """The readers have written."""
        now = time.perf_counter()
        self._due = min(max(due, now) + REST * (now - began), now + LONGEST_REST)
        self._plan()

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._both:
            if self._urgent:
                self._told = "now"
                self.loop.call_soon(self._hand_out)
            elif self._patient:
                self._told = "later"
                self._timer = self.loop.call_later(max(0.0, self._due - time.perf_counter()), self._hand_out)
            else:
                self._told = "nothing"
