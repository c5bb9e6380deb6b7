"""What must hold of a scheduler between two steps. Tests ask after every step; nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from folovllm.request import Request, SequenceStatus

if TYPE_CHECKING:
    from folovllm.core.scheduler import Scheduler

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED


def check_scheduler(scheduler: Scheduler) -> None:
    """Raises RuntimeError: blocks that belong to nobody or to two, too many sequences, a request in the wrong line."""
    running = [seq for request in scheduler.running for seq in request.get_seqs(RUNNING)]
    swapped = [seq for request in scheduler.swapped for seq in request.get_seqs(SWAPPED)]
    scheduler.kv.check_invariants(running, swapped)
    if len(running) > scheduler.max_num_seqs:
        raise RuntimeError(f"{len(running)} sequences run, max_num_seqs is {scheduler.max_num_seqs}")
    for request in scheduler.unfinished:
        _check_place(scheduler, request)


def _check_place(scheduler: Scheduler, request: Request) -> None:
    where = (request in scheduler.running, request in scheduler.waiting, request in scheduler.swapped)
    if where != tuple(bool(request.get_seqs(status)) for status in (RUNNING, WAITING, SWAPPED)):
        raise RuntimeError(f"request {request.request_id} is in the wrong place (running, waiting, swapped): {where}")
