"""Makes a failing case small: as long as the same sort of thing stays wrong, whatever can be left out is left out.

- requests: by halves, by quarters, then one by one (delta debugging: Zeller & Hildebrandt, 2002)
- features: parameters one by one, aborts, salts, priorities, late arrivals
- sizes: how many tokens and sequences a request may have, and the tokens of its prompt
- the engine: its settings back to their defaults, and the simplest model
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.campaign.case import Case, ModelSpec, Wrong

# Settings that are never left out, only made plain: they hold the model's length and the pool's size.
PLAIN_ENGINE: dict[str, Any] = {"max_model_len": 64, "block_size": 4, "num_kv_blocks": 128, "max_num_seqs": 8}
PLAIN_REQUEST: dict[str, Any] = {"abort_at": None, "salt": None, "voice": None, "priority": 0, "at": 0}


class Shrinker:
    """`case` is the smallest that fails so far.

    Args:
        examine: raises Wrong where a case fails.
        kind: of the failure that has to stay.
    """

    def __init__(self, case: Case, examine: Callable[[Case], object], kind: str) -> None:
        self.case, self.examine, self.kind = case, examine, kind
        self._tried = {case.to_json()}

    @property
    def num_tried(self) -> int:
        return len(self._tried) - 1

    def run(self, seconds: float) -> Case:
        """Until nothing more can be left out, or the time is up."""
        until, size = time.monotonic() + seconds, None
        while size != (size := self.case.to_json()):
            for candidate in self._smaller():
                if time.monotonic() >= until:
                    return self.case
                if self._fails(candidate):
                    self.case = candidate
        return self.case

    def _fails(self, candidate: Case) -> bool:
        if (text := candidate.to_json()) in self._tried:
            return False
        self._tried.add(text)
        try:
            self.examine(candidate)
        except Wrong as wrong:
            return wrong.kind == self.kind
        except Exception:
            return False  # what was left out is needed for a case to make sense
        return False

    def _smaller(self) -> Iterator[Case]:
        """Candidates, each one change away from the case as it is at that moment."""
        yield from self._without_parts(lambda case: case.requests)
        yield from self._plainer_engine()
        for place in range(len(self.case.requests)):
            yield from self._smaller_request(place)

    def _without_parts(self, of: Callable[[Case], list[Any]]) -> Iterator[Case]:
        """Without half of a list, without a quarter, and so on to its single items."""
        size = len(of(self.case))
        while size := size // 2:
            start = 0
            while start < len(of(self.case)):
                before = self.case
                yield self._changed(lambda case, at=slice(start, start + size): of(case).__delitem__(at))
                if self.case is before:
                    start += size

    def _smaller_request(self, place: int) -> Iterator[Case]:
        for name, plain in PLAIN_REQUEST.items():
            yield self._changed(lambda case, n=name, v=plain: setattr(case.requests[place], n, v))
        for name in sorted(self.case.requests[place].params.keys() - {"max_tokens"}):
            yield self._changed(lambda case, n=name: case.requests[place].params.pop(n))
        for name in ("max_tokens", "n", "best_of", "min_tokens"):
            for smaller in (lambda number: number // 2, lambda number: number - 1):
                before = None
                while self.case is not before and (number := self.case.requests[place].params.get(name, 0)) > 1:
                    before, value = self.case, {name: smaller(number)}
                    yield self._changed(lambda case, v=value: case.requests[place].params.update(v))
        yield from self._without_parts(lambda case: case.requests[place].prompt)

    def _plainer_engine(self) -> Iterator[Case]:
        yield self._changed(lambda case: setattr(case, "engine", dict(PLAIN_ENGINE)))
        for name in list(self.case.engine):
            if name in PLAIN_ENGINE:
                yield self._changed(lambda case, n=name: case.engine.update({n: PLAIN_ENGINE[n]}))
            else:
                yield self._changed(lambda case, n=name: case.engine.pop(n, None))
        for name, nothing in (
            ("swap_blocks", 0),
            ("folder_blocks", 0),
            ("host_blocks", 0),
            ("resets", []),
            ("restarts", []),
        ):
            yield self._changed(lambda case, n=name, v=nothing: setattr(case, n, v))
        yield self._changed(lambda case: setattr(case, "model", ModelSpec(pooling=case.model.pooling)))
        yield self._changed(lambda case: setattr(case, "model", replace(case.model, quantization=None)))
        yield self._changed(lambda case: setattr(case, "model", replace(case.model, int8_cache=False)))

    def _changed(self, change: Callable[[Case], object]) -> Case:
        candidate = copy.deepcopy(self.case)
        change(candidate)
        return candidate
