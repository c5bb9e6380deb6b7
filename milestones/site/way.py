"""The one way through the course: which pages to read, which exercise stands on which, and how long both take.

    way m3                       a milestone's pages and exercises, in order
    way *                        all milestones, a line each
    way open                     the open tasks, with the best known figures
    exercise m3/01-block-pool    the exercise, in the section that explains it

docs/way.toml lists the pages; all others are optional. An exercise has its own title and minutes (milestones/labs).
A page's minutes are counted, on the English page: its words, its blocks of text, its marks and drawings.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import count

from milestones.site.directives import DRAWING, MARK, FenceTracker, parse_directive, written
from milestones.site.errors import DirectiveError
from milestones.spec import Milestone, parse_milestone

Read = Callable[[str], str]
"""The text of a file of the repository, by its path; DirectiveError if there is none."""

WAY = "docs/way.toml"
EXTRA = "optional"
"""The list in it that is on no way."""
WORDS_PER_MINUTE = 150
CHARACTERS_PER_MINUTE = 300  # Chinese ones
LINES_PER_MINUTE = 25  # of a fenced block
MINUTES_PER_MARK = 1.5  # code, a table or a figure
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_ANCHOR = re.compile(r'<a id="(?P<id>[^"]+)"></a>$')
MARKUP = re.compile(r"<!-- =|<!--|-->|</?[a-z][^<>\n]*>")


@dataclass(frozen=True)
class Stop:
    """One page of the way."""

    page: str  # "m3/block-tables.md"
    title: str
    minutes: int
    exercises: list[Exercise]


@dataclass(frozen=True)
class Exercise:
    id: str  # "m3/01-block-pool"
    title: str
    minutes: int
    section: str  # id of the heading that it stands under

    @property
    def number(self) -> int:
        return int(self.id.partition("/")[2][:2])


def way(milestone: str, lang: str, read: Read) -> list[Stop]:
    """The pages of a milestone's way, in order."""
    pages = core_path(read)
    if milestone not in pages:
        raise DirectiveError(f"{WAY}: {milestone} has no list of pages, there are {', '.join(pages)}")
    return [_stop(page, lang, read) for page in pages[milestone]]


def core_path(read: Read) -> dict[str, list[str]]:
    """The lists of docs/way.toml, by their names; each milestone's first page is not in its list."""
    pages: dict[str, list[str]] = tomllib.loads(read(WAY))
    pages.pop(EXTRA, None)
    return pages


def stops(read: Read) -> list[str]:
    """The pages of the core path in the order in which they are read, each milestone's first page among them."""
    lists = core_path(read).items()
    return [page for name, pages in lists for page in ([f"{name}/index.md"] if name[1:].isdigit() else []) + pages]


def extra(milestone: str, lang: str, read: Read) -> list[Stop]:
    """The milestone's optional pages that hold an exercise."""
    pages: list[str] = tomllib.loads(read(WAY)).get(EXTRA, [])
    return [_stop(page, lang, read) for page in pages if page.startswith(f"{milestone}/")]


def render(name: str, lang: str, read: Read) -> str:
    """`way NAME` as Markdown."""
    if name == "open":
        return _open(lang, read)
    return _all(lang, read) if name == "*" else _one(name, lang, read)


def render_exercise(id: str, lang: str, read: Read) -> str:
    """`exercise ID` as Markdown: a box with the exercise's name, its minutes and the command."""
    found = _exercise(id, "", lang, read)
    milestone, number = id.partition("/")[0], found.number
    if lang == "zh":
        head = f"练习 {number}：{found.title}（约 {found.minutes} 分钟）"
        text = f"在[练习目录](index.md#exercises)里运行 `python -m milestones watch {number}`。"
    else:
        head = f"Exercise {number}: {found.title} (about {found.minutes} minutes)"
        folder = f"[{milestone.upper()}'s exercises](index.md#exercises)"
        text = f"In the folder of {folder}: `python -m milestones watch {number}`"
    return f"> [!TIP]\n> **{head}**\n>\n> {text}"


def solutions(milestone: str, read: Read) -> dict[tuple[str, str], int]:
    """(file, function) of all that the milestone's exercises ask for -> the exercise's number."""
    found: dict[tuple[str, str], int] = {}
    for stop in [*way(milestone, "en", read), *extra(milestone, "en", read)]:
        for exercise in stop.exercises:
            table = tomllib.loads(read(f"milestones/labs/{exercise.id}/exercise.toml"))
            found |= {(table["file"], function): exercise.number for function in table["functions"]}
    return found


def folded(path: str, names: list[str], lang: str, asked: dict[tuple[str, str], int]) -> str:
    """What code that an exercise asks for is folded under; "" where `names` of `path` have none. asked: solutions()."""
    numbers = {
        number
        for (file, function), number in asked.items()
        if file == path and (not names or any(function == name or function.startswith(f"{name}.") for name in names))
    }
    if not numbers:
        return ""
    if lang == "zh":
        return f"练习 {'、'.join(map(str, sorted(numbers)))} 的答案"
    many = "answers to exercises" if len(numbers) > 1 else "answer to exercise"
    return f"The {many} {' and '.join(map(str, sorted(numbers)))}"


def reading_minutes(text: str) -> int:
    """Of a page, rounded up to 5."""
    words = characters = lines = marks = 0
    fences = FenceTracker()
    for line in written(text):
        if fences.feed(line):
            lines += 1
        elif (mark := MARK.match(line)) or DRAWING.match(line):
            marks += mark is None or not mark["body"].startswith("exercise ")
        else:
            rest, chinese = _CHINESE.subn(" ", MARKUP.sub(" ", line))
            words, characters = words + len(rest.split()), characters + chinese
    minutes = words / WORDS_PER_MINUTE + characters / CHARACTERS_PER_MINUTE
    minutes += lines / LINES_PER_MINUTE + marks * MINUTES_PER_MARK
    return 5 * -int(-minutes // 5)


def optional(text: str, lang: str) -> str:
    """What an optional page with this text says under its title."""
    minutes = reading_minutes(text)
    return f"*选读，约 {minutes} 分钟。*" if lang == "zh" else f"*Optional, about {minutes} minutes.*"


def _one(milestone: str, lang: str, read: Read) -> str:
    stops = way(milestone, lang, read)
    number, told = sum(len(stop.exercises) for stop in stops), hours(sum(minutes_of(milestone, read)), lang)
    command = f"`python -m milestones read {milestone}`"
    if lang == "zh":
        head = f"这一页之外要读 {len(stops)} 页，做 {number} 道练习，约 {told}。其余各页都可选读。"
        head += f"代码也可以一个提交一个提交地读，每个提交一个想法，附有改动和看到它的命令：{command}。"
        rows = ["| 读 | 分钟 | 写 | 分钟 |", "|---|---|---|---|"]
    else:
        head = f"This page, {len(stops)} more and {number} exercises: about {told}. All other pages are optional. "
        head += f"{command} shows the code commit by commit, one idea each, with its diff and a command that shows it."
        rows = ["| read | minutes | write | minutes |", "|---|---|---|---|"]
    more = extra(milestone, lang, read)
    for stop in [*stops, *more]:
        page = posixpath.basename(stop.page)
        titles = "<br>".join(f"{e.number}. [{e.title}]({page}#{e.section})" for e in stop.exercises)
        minutes = "<br>".join(str(e.minutes) for e in stop.exercises)
        mark = ("（选读）" if lang == "zh" else " *(optional)*") if stop in more else ""
        rows.append(f"| [{stop.title}]({page}){mark} | {stop.minutes} | {titles} | {minutes} |")
    return "\n".join([head, "", *rows])


def _all(lang: str, read: Read) -> str:
    head = "| | 页 | 练习 | 约 |" if lang == "zh" else "| | pages | exercises | about |"
    rows, total = [head, "|---|---|---|---|"], [0, 0, 0]
    for milestone in _milestones(read):
        stops = way(milestone.id, lang, read)
        exercises = sum(len(stop.exercises) for stop in stops)
        counts = [1 + len(stops), exercises, sum(minutes_of(milestone.id, read))]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        name = f"[M{milestone.number} {milestone.title[lang]}]({milestone.id}/index.md)"
        rows.append(f"| {name} | {counts[0]} | {counts[1]} | {hours(counts[2], lang)} |")
    rows.append(f"| {'合计' if lang == 'zh' else 'all'} | {total[0]} | {total[1]} | {hours(total[2], lang)} |")
    return "\n".join(rows)


def _open(lang: str, read: Read) -> str:
    head = "| 开放题 | 更好 | 我们的 | 已知最好 |" if lang == "zh" else "| open task | better | ours | best known |"
    rows = [head, "|---|---|---:|---:|"]
    for milestone in _milestones(read):
        for stop in [*way(milestone.id, lang, read), *extra(milestone.id, lang, read)]:
            for e in stop.exercises:
                if figure := tomllib.loads(read(f"milestones/labs/{e.id}/exercise.toml")).get("figure"):
                    ours, best = figure["ours"], figure["best"]
                    better = ("更小", "更大") if lang == "zh" else ("lower", "higher")
                    title = f"[{milestone.id.upper()}/{e.number} {e.title}]({stop.page}#{e.section})"
                    rows.append(f"| {title} | {better[best > ours]} | {ours:g} | **{best:g}** |")
    return "\n".join(rows)


def _milestones(read: Read) -> Iterator[Milestone]:
    for number in count():
        try:
            text = read(f"milestones/m{number}/milestone.toml")
        except DirectiveError:
            return
        yield parse_milestone(number, text)


def minutes_of(milestone: str, read: Read, solved: Container[str] = ()) -> tuple[int, int]:
    """Of reading, the first page too, and of writing; without the exercises that are `solved`, and without the pages
    that have no other, or none, once all are."""
    stops = way(milestone, "en", read)
    writing = [e.minutes for stop in stops for e in stop.exercises if e.id not in solved]
    if not writing:
        return 0, 0
    done = [stop for stop in stops if stop.exercises and all(e.id in solved for e in stop.exercises)]
    first = reading_minutes(read(f"docs/en/{milestone}/index.md"))
    return first + sum(stop.minutes for stop in stops if stop not in done), sum(writing)


def hours(minutes: int, lang: str) -> str:
    """Rounded to half an hour, where it is one or more."""
    if minutes < 60:
        return f"{minutes} 分钟" if lang == "zh" else f"{minutes} minutes"
    halves = round(minutes / 30)
    number = f"{halves / 2:g}"
    return f"{number} 小时" if lang == "zh" else f"{number} hour{'s' * (halves != 2)}"


def _stop(page: str, lang: str, read: Read) -> Stop:
    title, section = "", ""
    exercises: list[Exercise] = []
    fences = FenceTracker()
    for line in written(read(f"docs/{lang}/{page}")):
        if fences.feed(line):
            continue
        if anchor := _ANCHOR.match(line):
            section = anchor["id"]
        elif line.startswith("# "):
            title = title or line.removeprefix("# ").strip()
        elif mark := MARK.match(line):
            directive = parse_directive(mark["body"])
            if directive.kind == "exercise":
                exercises.append(_exercise(directive.words[0], section, lang, read))
    minutes = reading_minutes(read(f"docs/en/{page}"))
    return Stop(page, title, minutes, sorted(exercises, key=lambda e: e.id))


def _exercise(id: str, section: str, lang: str, read: Read) -> Exercise:
    table = tomllib.loads(read(f"milestones/labs/{id}/exercise.toml"))
    title = read(f"milestones/labs/{id}/{lang}.md").partition("\n")[0].removeprefix("# ").strip()
    return Exercise(id, title, table["minutes"], section)
