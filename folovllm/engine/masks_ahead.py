"""Grammar masks of the next step, computed in a thread: a grammar that takes long holds up no other request.

    step thread    step 1: A B ── step 2: B ── step 3: B ── step 4: A B      A: a form whose mask takes two steps
    mask thread        └─ mask of A ──────────────┘

A step waits for masks half as long as the step before it took. A request whose masks are not all there then is held:
the scheduler leaves it out, and asks again before the next step. Requests take turns by slices of time, so that one
with many sequences does not keep the others waiting. llguidance lets go of the interpreter while it computes.

vLLM: v1/structured_output/__init__.py (grammar_bitmask), which makes all masks while the step waits
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Condition

from folovllm.core.scheduler import Scheduler
from folovllm.distributed.forks import keep_from_forks
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sample.structured.grammars import Grammar
from folovllm.sample.structured.processor import KEY

WAIT = 0.5
"""Of the time of the last step: how long the next one waits for masks."""
SLICE = 0.001
"""Seconds after which another request has its turn."""
IDLE = 0.01
"""Seconds to wait where nothing else can run: the caller then takes new requests, and aborts."""


class MasksAhead:
    """`let_go` before a step and `begin` after it are the engine's."""

    def __init__(self) -> None:
        self._left: dict[Request, list[Sequence]] = {}
        self._changed = Condition()  # held where _left changes
        self._thread: ThreadPoolExecutor | None = None
        self._step_began = self._step_seconds = 0.0
        keep_from_forks(self)

    def forked(self, error: Exception) -> None:
        """Its thread is its parent's; there will be another."""
        self._left, self._changed, self._thread = {}, Condition(), None

    def let_go(self, scheduler: Scheduler) -> bool:
        """Tells the scheduler whom to hold. Returns whether there is anything that may run."""
        if self._left:
            with self._changed:
                self._changed.wait_for(lambda: not self._left, WAIT * self._step_seconds)
                if not self._may_run(scheduler):
                    self._changed.wait_for(lambda: self._may_run(scheduler), IDLE)
                scheduler.held = frozenset(self._left)
        else:
            scheduler.held = frozenset()
        self._step_began = time.perf_counter()
        return not scheduler.held or self._may_run(scheduler)

    def _may_run(self, scheduler: Scheduler) -> bool:
        return bool(scheduler.waiting or scheduler.swapped) or not self._left.keys() >= set(scheduler.running)

    def begin(self, requests: Iterable[Request]) -> None:
        """These have new tokens."""
        self._step_seconds = time.perf_counter() - self._step_began
        for request in requests:
            if request.sampling_params.extra_args and not request.is_finished() and (form := _form(request)):
                with self._changed:
                    self._left[request] = request.get_seqs(SequenceStatus.RUNNING)
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="folovllm-masks")
                self._thread.submit(self._some, self._thread, request, form)

    def _some(self, thread: ThreadPoolExecutor, request: Request, form: Grammar) -> None:
        """A slice of a request's masks, in the thread."""
        end, left = time.perf_counter() + SLICE, self._left.get(request, [])
        while left and not request.is_finished() and time.perf_counter() < end:
            with suppress(Exception):  # the step meets it, too, and the request ends in it
                form.look(left.pop().data.output_token_ids)
        if left and not request.is_finished():
            thread.submit(self._some, thread, request, form)
            return
        with self._changed:
            self._left.pop(request, None)
            self._changed.notify_all()


def _form(request: Request) -> Grammar | None:
    form = (request.sampling_params.extra_args or {}).get(KEY)
    return form if isinstance(form, Grammar) else None
