"""Autoscaling: how many replicas a load needs, within bounds. No clock and no cluster: the times come in.

    13 requests, 4 a replica ─▶ 13 / 4, rounded up: 4 replicas

More at once after `up_after` seconds in which more were wanted, and one less after `down_after` seconds in which fewer
were: a start costs a model's loading, and a load that is gone for a moment comes back.

vLLM: none (Ray Serve, Kubernetes)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.utils.checks import check_int, wrong


@dataclass
class Scaling:
    """Args:
    least, most: bounds of the number of replicas, both included.
    target: unfinished requests that a replica should have.

    Raises:
        ValueError: least is above most, or a value is below 1; by the option's name.
    """

    least: int
    most: int
    target: int = 32
    up_after: float = 2.0
    down_after: float = 30.0
    _since: dict[int, float] = field(default_factory=dict)
    """+1 and -1: since when more, or fewer, are wanted."""

    def __post_init__(self) -> None:
        check_int("min_replicas", self.least, 1)
        check_int("max_replicas", self.most, 1)
        check_int("target_ongoing_requests", self.target, 1)
        if self.least > self.most:
            raise wrong("min_replicas", f"be at most max_replicas ({self.most})", self.least)

    def wanted(self, num_replicas: int, num_requests: int, now: float) -> int:
        """How many there should be from now on. `now` in seconds of a clock that never goes back."""
        needed = min(self.most, max(self.least, -(-num_requests // self.target)))
        direction = (needed > num_replicas) - (needed < num_replicas)
        for other in (-1, 1):
            if other != direction:
                self._since.pop(other, None)
        if direction == 0:
            return num_replicas
        began = self._since.setdefault(direction, now)
        if now - began < (self.up_after if direction > 0 else self.down_after):
            return num_replicas
        del self._since[direction]
        return needed if direction > 0 else num_replicas - 1
