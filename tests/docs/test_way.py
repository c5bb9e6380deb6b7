"""One order for the course: the sidebar, each milestone's first page, the exercises' boxes and their numbers agree."""

from __future__ import annotations

import re
import tomllib

import pytest

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises
from milestones.site.directives import OPTIONAL, parse_directive, written
from milestones.site.pages import filled
from milestones.site.render import render_directive
from milestones.site.scan import scan
from milestones.site.source import ROOT
from milestones.site.way import core_path, minutes_of, reading_minutes
from milestones.sources import working_tree

COURSE = Course.load(working_tree(ROOT))
NUMBERS = [milestone.number for milestone in COURSE.milestones]
PAGES = core_path(lambda path: (ROOT / path).read_text(encoding="utf-8"))
EXTRA: list[str] = tomllib.loads((ROOT / "docs/way.toml").read_text(encoding="utf-8"))["optional"]
LANGUAGES = ["en", "zh"]
pytestmark = pytest.mark.always


def sidebar(number: int) -> tuple[list[str], list[str]]:
    """The milestone's pages as mkdocs.yml orders them, and its optional ones, which are a group below."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = text.partition(f"      - M{number}:\n")[2].partition("\n      - ")[0]
    core, _, optional = pages.partition("          - Optional:\n")
    return re.findall(r"^ {10}- (\S+)", core, re.MULTILINE), re.findall(r"^ {14}- (\S+)", optional, re.MULTILINE)


def listed(number: int, language: str) -> list[str]:
    """The pages that the first page's list of optional pages links to."""
    text = (ROOT / f"docs/{language}/m{number}/index.md").read_text(encoding="utf-8")
    section = text.partition('<a id="pages">')[2].partition("\n<a id=")[0]
    rows = [line for line in section.splitlines() if re.match(r"\d+\. |\| ", line) and ".md)" in line]
    return [f"m{number}/{page}" for row in rows for page in re.findall(r"\]\(([\w-]+\.md)\)", row)]


def exercises(number: int) -> list[Exercise]:
    return load_exercises(COURSE.snapshot, number)


def boxes(language: str) -> list[tuple[str, str]]:
    """(page, exercise) of every exercise there is."""
    folder = ROOT / "docs" / language
    return [
        (path.relative_to(folder).as_posix(), directive.words[0])
        for path in sorted(folder.rglob("*.md"))
        for _, _, directive in scan(path).directives
        if directive is not None and directive.kind == "exercise"
    ]


def test_the_list_has_the_first_hour_each_milestone_and_the_end():
    assert list(PAGES) == ["start", *(milestone.id for milestone in COURSE.milestones), "end"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_milestones_other_pages_say_that_they_are_optional(language):
    core = {page for pages in PAGES.values() for page in pages}
    folder = ROOT / "docs" / language
    for path in sorted(folder.glob("m[0-9]*/*.md")):
        page = path.relative_to(folder).as_posix()
        lines = written(path.read_text(encoding="utf-8"))
        assert lines.count(OPTIONAL[language]) == (page not in core and path.name != "index.md"), page


@pytest.mark.parametrize("number", NUMBERS)
def test_the_sidebar_has_the_way_behind_the_first_page(number):
    assert PAGES[f"m{number}"]
    assert sidebar(number)[0] == [f"m{number}/index.md", *PAGES[f"m{number}"]]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_page_lists_the_sidebars_optional_pages(number, language):
    """Those to read are in the table of the way."""
    assert listed(number, language) == sidebar(number)[1]


def test_the_hours_and_exercises_that_are_said_are_those_of_the_way():
    read = lambda path: (ROOT / path).read_text(encoding="utf-8")  # noqa: E731
    ways = [minutes_of(f"m{number}", read) for number in NUMBERS]
    reading, writing = (sum(part) / 60 for part in zip(*ways, strict=True))
    hours = 1 + round(reading) + round(writing)
    said = {
        "README.md": f"about {hours} hours: one for the first file, {reading:.0f} of reading, {writing:.0f} of writing",
        "README.zh.md": f"约 {hours} 小时：第一个文件 1 小时，阅读 {reading:.0f} 小时，写代码 {writing:.0f} 小时",
        **{f"docs/en/{page}.md": f"about {hours} hours" for page in ("index", "course")},
        **{f"docs/zh/{page}.md": f"约 {hours} 小时" for page in ("index", "course")},
    }
    assert [path for path, text in said.items() if text not in read(path)] == []
    count = sum(len(exercises(number)) for number in NUMBERS)
    assert f"with {count} exercises" in read("README.md")
    assert f"共 {count} 道练习" in read("README.zh.md")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_page_shows_the_way(number, language):
    text = (ROOT / f"docs/{language}/m{number}/index.md").read_text(encoding="utf-8")
    assert text.count(f"\n<!-- way m{number} -->\n") == 1


@pytest.mark.parametrize("number", NUMBERS)
def test_the_exercises_numbers_follow_the_pages(number):
    for pages in (PAGES[f"m{number}"], EXTRA):
        places = [pages.index(exercise.note) for exercise in exercises(number) if exercise.note in pages]
        assert places == sorted(places)


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_exercise_stands_on_its_page_and_nowhere_else(language):
    expected = [(exercise.note, exercise.id) for number in NUMBERS for exercise in exercises(number)]
    assert sorted(boxes(language)) == sorted(expected)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_exercises_of_a_page_stand_on_it_in_the_order_of_their_numbers(language):
    found = boxes(language)
    for page in {page for page, _ in found}:
        on_it = [exercise for place, exercise in found if place == page]
        assert on_it == sorted(on_it), page


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_table_has_each_exercise_once_with_its_minutes_the_optional_ones_last(number, language):
    table = render_directive(parse_directive(f"way m{number}"), f"docs/{language}/m{number}/index.md")
    listed = sorted(exercises(number), key=lambda e: e.note in EXTRA)
    found = re.findall(r"(\d+)\. \[([^\]]+)\]\([\w-]+\.md#", table)
    assert found == [(str(int(e.folder[:2])), e.pages[language].title) for e in listed]
    minutes = [cell for row in table.splitlines()[4:] for cell in row.split("|")[4].strip().split("<br>") if cell]
    assert minutes == [str(e.minutes) for e in listed]


def test_the_course_names_every_milestone_and_the_sum():
    rows = render_directive(parse_directive("way *"), "docs/en/course.md").splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows[:-1]] == [
        f"[M{m.number} {m.title['en']}]({m.id}/index.md)" for m in COURSE.milestones
    ]
    numbers = [[int(cell) for cell in row.split("|")[2:4]] for row in rows]
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    assert numbers[-1][1] == sum(e.note not in EXTRA for number in NUMBERS for e in exercises(number))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("# A\n" + "word " * 740, 5),  # 742 words at 150 a minute
        ("# A\n" + "word " * 800, 10),
        ("```text\n" + "line\n" * 123 + "```\n", 5),  # 125 lines at 25 a minute
        (
            "<!-- code a.py -->\n" + "word " * 700 + "\n<!-- end -->\n" + "![A B](../figures/a.svg)\n" * 3,
            10,
        ),  # 6 minutes
        ("<!-- exercise m0/01-x -->\n<!-- end -->\n" + "word " * 700, 5),
        ("# 中\n" + "字" * 1490 + " word", 5),  # 1,491 characters at 300 a minute, two marks or words
        ("# 中\n" + "字" * 1510, 10),
    ],
)
def test_minutes_of_a_page_are_counted_and_rounded_up_to_five(text, minutes):
    assert reading_minutes(text) == minutes


@pytest.mark.parametrize(
    ("language", "line"), [("en", "*Optional, about 10 minutes.*"), ("zh", "*选读，约 10 分钟。*")]
)
def test_the_minutes_of_an_optional_page_are_written(language, line):
    page = "# A\n\n{}\n\n" + "word " * 800 + "\n"
    for before in (OPTIONAL[language], line.replace("10", "25")):
        assert filled(f"docs/{language}/m0/a.md", page.format(before)).text == page.format(line)
