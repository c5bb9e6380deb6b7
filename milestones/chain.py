"""Chain resolution: which version of each file a milestone has.

A file at mK is the first one found going right from mK; the root comes last:

    milestones/m1/x.py -> milestones/m2/x.py -> ... -> x.py

So a file that never changes after it arrives is stored once, at the root. Whether it is there at all is a
second question: it arrives at the milestone whose `milestone.toml` lists it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from milestones.sources import File, Snapshot
from milestones.spec import Milestone, MilestoneError, find_specs, matches, parse_milestone

# Every file that matches one of these belongs to exactly one milestone …
MANAGED = ("folovllm/**", "tests/**", "examples/**", "docs/*/m*/**")
# … but these are about the repository as a whole.
NOT_MANAGED = (
    *(f"tests/{name}/**" for name in ("milestones", "docs", "workshop", "campaign", "real", "browser", "macos")),
    "tests/cost.py",
)

# What stands around the last milestone's engine and is in none of them: serving, watching and measuring.
AFTER = (
    "folovllm/bench/**",
    "folovllm/entrypoints/cli/**",
    "folovllm/serving/**",
    "folovllm/simulator/**",
    "folovllm/tracing/**",
    "tests/bench/**",
    "tests/cli/**",
    "tests/clients/**",
    "tests/ray/**",
    "tests/serve/**",
    "tests/simulator/**",
    "tests/tracing/**",
    "examples/first_hour.ipynb",
    "examples/one_file_engine.py",
    "examples/serve_*.py",
    "examples/simulate.py",
    "examples/trace.py",
)


@dataclass(frozen=True)
class Course:
    """All milestones, over one snapshot of the repository."""

    snapshot: Snapshot
    milestones: list[Milestone]

    @classmethod
    def load(cls, snapshot: Snapshot) -> Course:
        milestones = []
        for number in find_specs(snapshot):
            path = f"milestones/m{number}/milestone.toml"
            milestones.append(parse_milestone(number, snapshot[path].data.decode("utf-8")))
        return cls(snapshot, milestones)

    def get(self, name: str) -> Milestone:
        """The milestone called `m1` (or `M1`)."""
        for milestone in self.milestones:
            if milestone.id == name.lower():
                return milestone
        known = ", ".join(m.id for m in self.milestones)
        raise MilestoneError(f"no milestone is called {name!r}; there are {known}")

    @cached_property
    def stored(self) -> dict[int, dict[str, File]]:
        """Per milestone, the versions kept for it: path in the tree -> file."""
        stored: dict[int, dict[str, File]] = {m.number: {} for m in self.milestones}
        for path, file in self.snapshot.items():
            found = re.fullmatch(r"milestones/m(\d+)/(.+)", path)
            if found and found.group(2) != "milestone.toml":
                stored.setdefault(int(found.group(1)), {})[found.group(2)] = file
        return stored

    @cached_property
    def universe(self) -> list[str]:
        """Every path that is, or has to be, in some milestone."""
        names = {path for files in self.stored.values() for path in files}
        for path in self.snapshot:
            listed = any(matches(p, path) for m in self.milestones for p in m.patterns)
            if (listed or is_managed(path)) and not comes_after(path):
                names.add(path)
        return sorted(names)

    def claims(self, path: str) -> list[Milestone]:
        """The milestones that list `path`; an exact path beats a pattern. Exactly one is right."""
        exact = [m for m in self.milestones if path in m.patterns]
        return exact or [m for m in self.milestones if any(matches(p, path) for p in m.patterns)]

    @cached_property
    def arrival(self) -> dict[str, int]:
        """Path -> the number of the milestone where it arrives (the first, should several claim it)."""
        return {path: claims[0].number for path in self.universe if (claims := self.claims(path))}

    def version(self, path: str, number: int) -> File | None:
        """`path` as milestone `number` has it, were it there: the first found going right, the root last."""
        for later in range(number, len(self.milestones)):
            if path in self.stored[later]:
                return self.stored[later][path]
        return self.snapshot.get(path)

    def tree(self, number: int) -> dict[str, File]:
        """The whole of milestone `number`: path -> file."""
        tree = {}
        for path, arrives in self.arrival.items():
            if arrives <= number and (file := self.version(path, number)) is not None:
                tree[path] = file
        return tree

    def changed(self, number: int) -> list[str]:
        """Paths that were there one milestone before, with another content."""
        if number == 0:
            return []
        before, here = self.tree(number - 1), self.tree(number)
        return [path for path in before if path in here and here[path] != before[path]]

    def arriving(self, number: int) -> list[str]:
        """Paths that are there for the first time."""
        return [path for path in self.tree(number) if self.arrival[path] == number]

    def problems(self) -> list[str]:
        """Everything that breaks the rules of storing, one line each, naming the file."""
        return [
            *self._unclaimed(),
            *self._misstored(),
            *self._unmatched_patterns(),
            *self._wrong_changes(),
        ]

    def _unclaimed(self) -> list[str]:
        found = []
        for path in self.universe:
            claims = self.claims(path)
            if not claims:
                found.append(f"{path}: belongs to no milestone; list it in a milestone.toml")
            if len(claims) > 1:
                found.append(f"{path}: claimed by {' and '.join(m.id for m in claims)}; one has to let go")
        return found

    def _misstored(self) -> list[str]:
        found = []
        for number, files in self.stored.items():
            if number >= len(self.milestones):
                found.append(f"milestones/m{number}/: has files but no milestone.toml")
                continue
            for path, file in files.items():
                where = f"milestones/m{number}/{path}"
                if self.arrival.get(path, 0) > number:
                    found.append(f"{where}: {path} arrives only at m{self.arrival[path]}")
                if file == self.version(path, number + 1):
                    found.append(f"{where}: equal to the next version; delete this copy")
        return found

    def _unmatched_patterns(self) -> list[str]:
        """A pattern that matches nothing is a misspelling, or a file that was moved."""
        return [
            f"milestones/{m.id}/milestone.toml: {pattern!r} matches no file"
            for m in self.milestones
            for pattern in m.patterns
            if not any(matches(pattern, path) for path in self.universe)
        ]

    def _wrong_changes(self) -> list[str]:
        found = []
        for m in self.milestones:
            where, really = f"milestones/{m.id}/milestone.toml", set(self.changed(m.number))
            listed = set(m.changes)
            found += [f"{where}: {p} changes here; add it to `changes`" for p in sorted(really - listed)]
            found += [f"{where}: {p} is in `changes` but does not change" for p in sorted(listed - really)]
        return found


def is_managed(path: str) -> bool:
    return any(matches(p, path) for p in MANAGED) and not any(matches(p, path) for p in NOT_MANAGED)


def comes_after(path: str) -> bool:
    return any(matches(p, path) for p in AFTER)
