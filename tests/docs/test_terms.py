"""One word for one thing: no page says what docs/terms.toml has another word for."""

from __future__ import annotations

import re
import tomllib

import pytest

from milestones.site.directives import DIRECTIVE, FenceTracker
from milestones.site.source import ROOT

TERMS = tomllib.loads((ROOT / "docs/terms.toml").read_text(encoding="utf-8"))
LEARNT = "glossary.md"  # the embedded model has learnt these answers, with their words
CODE = re.compile(r"`+[^`]*`+|\{\{[^}]*\}\}|\]\([^)]*\)|\{#[^}]*\}")  # code spans, targets of links, ids


def problems(text: str, language: str) -> list[str]:
    """Line, what is written there, and what to write instead."""
    found, fences = [], FenceTracker()
    for number, line in enumerate(text.splitlines(), 1):
        if fences.feed(line) or DIRECTIVE.match(line):
            continue
        prose = CODE.sub(" ", line)
        for pattern, instead in TERMS[language].items():
            found += [f"{number}: {match[0]} ({instead})" for match in re.finditer(pattern, prose)]
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_page_says_it_with_another_word(language):
    folder = ROOT / "docs" / language
    found = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in sorted(folder.rglob("*.md"))
        if path.name != LEARNT
        for problem in problems(path.read_text(encoding="utf-8"), language)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("en", "Nobody waits.", 1),
        ("en", "`nobody` and [it](nobody.md)\n```\nnobody\n```", 0),
        ("en", "A sequence computes the same tokens in any company.", 1),
        ("zh", "首 token 的时间，第一个 token。", 2),
        ("zh", "首个 token、查询头、预填充、`CUDA Graph`", 0),
        ("zh", "预填阶段抽样一个 token，用 CUDA Graph。", 3),
    ],
)
def test_the_gate_finds_what_it_looks_for_in_prose_alone(language, text, count):
    assert len(problems(text, language)) == count
