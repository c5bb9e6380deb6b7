"""What a learner gets of a milestone: its tree with the notes as plain Markdown, as a folder and a git repository.

The site's pages hold directives that only its builder knows. In a handed-out tree the code, the tables and the figures
stand in the page; a link leads to a page of the tree, or is its text. A page comes out the same in every tree that has
it: it knows its own milestone and those before.
"""

from __future__ import annotations

import json
from pathlib import Path

from milestones.chain import Course
from milestones.site import figures
from milestones.site.errors import DirectiveError
from milestones.site.plain import Pages
from milestones.sources import File, Snapshot
from milestones.spec import Milestone, MilestoneError, matches
from milestones.trees import build_tree, write_repository

PAGES = "docs/*/**/*.md"
FIGURES = f"{figures.FOLDER}/**/*.svg"


def hand_out(course: Course, milestone: Milestone) -> dict[str, File]:
    """All files of a checked-out milestone."""
    return with_plain_pages(course, build_tree(course, milestone))


def checkout(course: Course, milestone: Milestone, folder: Path) -> int:
    """Write `milestone` into a new or empty `folder` and commit it there; returns the number of files."""
    tree = hand_out(course, milestone)
    write_repository(tree, folder, milestone.label)
    return len(tree)


def with_plain_pages(course: Course, tree: Snapshot, emptied: dict[bytes, File] | None = None) -> dict[str, File]:
    """`tree` with its notes rendered. `emptied`: what the notes show in place of a file of that very text, where its
    exercises are blanked. What a file was at an earlier milestone stays as it is."""
    rendered = _Rendered(course, emptied) if emptied else _Rendered.of(course)
    plain = {path: rendered.page(path, file) if matches(PAGES, path) else file for path, file in tree.items()}
    for path in [path for path in tree if matches(FIGURES, path)]:
        name = path.removeprefix(f"{figures.FOLDER}/").removesuffix(".svg")
        plain[figures.file_in("zh", name)] = rendered.chinese(name, tree[path])
    return plain


class _Rendered:
    """The rendered pages of one course: each is rendered once, however many trees have it."""

    def __init__(self, course: Course, emptied: dict[bytes, File] | None = None) -> None:
        self.course, self.emptied = course, emptied or {}
        self.pages = Pages(self._read)
        self.done: dict[tuple[str, bytes], File] = {}

    @staticmethod
    def of(course: Course) -> _Rendered:
        found = course.__dict__.get("_rendered")
        if found is None:
            found = course.__dict__["_rendered"] = _Rendered(course)
        return found

    def page(self, path: str, file: File) -> File:
        key = path, file.data
        if key not in self.done:
            arrival = self.course.arrival
            there = {other for other, number in arrival.items() if number <= arrival.get(path, 0)}
            there |= {f"{other.removesuffix('.svg')}.zh.svg" for other in there if matches(FIGURES, other)}
            try:
                text = self.pages.render(path, file.data.decode("utf-8"), path.split("/")[1], there)
            except (DirectiveError, KeyError, json.JSONDecodeError) as error:
                raise MilestoneError(f"{path} cannot be rendered: {error}") from error
            self.done[key] = File(text.encode("utf-8"))
        return self.done[key]

    def chinese(self, name: str, file: File) -> File:
        """A drawing's Chinese version, which its source holds beside the English."""
        key = name, file.data
        if key not in self.done:
            svg, _, _ = figures.drawing(name, file.data.decode("utf-8"), "zh")
            self.done[key] = File(svg.encode("utf-8"))
        return self.done[key]

    def _read(self, path: str, milestone: str | None) -> str:
        file: File | None
        if milestone is None:
            file = self.course.snapshot.get(path)
        else:
            file = self.course.version(path, self.course.get(milestone).number)
        if file is None:
            raise DirectiveError(f"{path} does not exist" + (f" at {milestone}" if milestone else ""))
        return self.emptied.get(file.data, file).data.decode("utf-8")
