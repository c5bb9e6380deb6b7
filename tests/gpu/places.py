"""Where a GPU test runs, and what it watches there.

A test that takes `place` runs on the GPU; where there is none it is rehearsed on the CPU, small, so that the first run
on a GPU does not fail for a slip of the pen. A rehearsal proves what does not depend on the device, and nothing about
waits or compiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch


class Place(NamedTuple):
    device: str
    full: bool
    """A model's sizes, or as small as it goes."""


on_every_place = pytest.mark.parametrize(
    "place", [pytest.param(Place("cuda", True), id="gpu"), pytest.param(Place("cpu", False), id="rehearsal")]
)


@contextmanager
def waits_forbidden() -> Iterator[None]:
    """torch raises where the host would wait for a CUDA device."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def forbid_waits_in_launches(engine: Any) -> list[int]:
    """From now on no step may wait while it is launched. Returns a list that gets each step's number of sequences."""
    execute, sizes = engine.runner.execute_model, []

    def watched(scheduled: Any) -> Any:
        with waits_forbidden():
            step = execute(scheduled)
        sizes.append(len(scheduled.scheduled_seqs))
        return step

    engine.runner.execute_model = watched
    return sizes


@contextmanager
def kernels_compiled() -> Iterator[list[str]]:
    """A list that gets the name of each Triton kernel of which a variant is made, on disk already or not."""
    from triton import knobs

    names: list[str] = []
    before = knobs.runtime.jit_post_compile_hook

    def note(**told: Any) -> None:
        names.append(str(told["repr"]))

    knobs.runtime.jit_post_compile_hook = note
    try:
        yield names
    finally:
        knobs.runtime.jit_post_compile_hook = before
