"""The length of the pages: what is counted, and that there is a most."""

from __future__ import annotations

import pytest

from milestones.site import words

WAY = 'start = ["hour.md"]\nm0 = ["m0/requests.md"]\nend = ["last.md"]\n'


@pytest.fixture
def docs(tmp_path):
    pages = {"hour.md": 2, "api.md": 3, "m0/index.md": 5, "m0/requests.md": 7, "m0/more.md": 11, "last.md": 13}
    for page, count in pages.items():
        path = tmp_path / "docs" / "en" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * count)
    (tmp_path / "docs/way.toml").write_text(WAY)
    return tmp_path / "docs"


def test_a_milestones_first_page_is_of_the_core_and_the_rest_is_not(docs):
    start, m0, end = words.parts(docs)
    assert (start.name, start.core, start.words(core=True), start.words(core=False)) == ("start", ["hour.md"], 2, 5)
    assert (m0.core, m0.words(core=True), m0.words(core=False)) == (["m0/index.md", "m0/requests.md"], 12, 23)
    assert (end.words(core=True), end.words(core=False)) == (13, 13)


@pytest.mark.parametrize(
    ("limit", "most", "line"),
    [
        ("CORE_WORDS", 26, "words: the core path (docs/way.toml) must have at most 26 words, got 27"),
        ("ALL_WORDS", 40, "words: docs/en must have at most 40 words, got 41"),
    ],
)
def test_more_than_there_may_be_is_an_error(docs, monkeypatch, capsys, limit, most, line):
    assert words.print_words(docs) == 0
    monkeypatch.setattr(words, limit, most)
    assert words.print_words(docs) == 1
    assert capsys.readouterr().out.splitlines()[-1] == line
