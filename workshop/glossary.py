"""The glossary: terms, their definitions in two languages, and the ways people ask for them.

One data file feeds three readers: the corpus (what the model learns), the judge (whether it learnt it) and the
glossary page (what people read), so the three cannot drift apart.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, Lang] = ("en", "zh")
DATA = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Name:
    """A way to call a term: bare for "Define {t}.", with its article for "What is {np}?"."""

    bare: str
    phrase: str
    plural: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    id: str
    group: str
    en: tuple[Name, ...]  # the first one is the term's name, the others are aliases
    zh: tuple[Name, ...]
    answer_en: str
    answer_zh: str

    def names(self, lang: Lang) -> tuple[Name, ...]:
        return self.en if lang == "en" else self.zh

    def answer(self, lang: Lang) -> str:
        return self.answer_en if lang == "en" else self.answer_zh


@dataclass(frozen=True, slots=True)
class Glossary:
    terms: tuple[Term, ...]  # what the embedded model learns
    later: tuple[Term, ...]  # what came after it was trained: on the page only
    groups: dict[str, tuple[str, str]]
    train: dict[Lang, tuple[str, ...]]
    before: dict[Lang, tuple[str, ...]]
    after: dict[Lang, tuple[str, ...]]
    unseen: dict[Lang, tuple[str, ...]]


@cache
def load_glossary() -> Glossary:
    data = tomllib.loads((DATA / "glossary.toml").read_text(encoding="utf-8"))
    wordings = data["wordings"]
    return Glossary(
        terms=tuple(_term(row) for row in data["term"]),
        later=tuple(_term(row) for row in data["later"]),
        groups={key: (en, zh) for key, (en, zh) in data["groups"].items()},
        **{key: {lang: tuple(wordings[lang][key]) for lang in LANGS} for key in ("train", "before", "after", "unseen")},
    )


def ask(wording: str, name: Name) -> str:
    """The question that a wording becomes for one name of a term."""
    text = wording.format(
        t=name.bare,
        T=name.bare[0].upper() + name.bare[1:],
        np=name.phrase,
        **{"is": "are" if name.plural else "is", "does": "do" if name.plural else "does"},
    )
    return space_out(text)


def space_out(text: str) -> str:
    """Put a space where a Chinese character meets a Latin one, as careful typists do."""
    out = text[:1]
    for before, after in pairwise(text):
        if (_is_han(before) and after.isascii() and after.isalnum()) or (
            before.isascii() and before.isalnum() and _is_han(after)
        ):
            out += " "
        out += after
    return out


def judge_questions(lang: Lang) -> Iterator[tuple[Term, str]]:
    """Every term in every unseen wording: what a trained model has never been asked in these words."""
    glossary = load_glossary()
    for term in glossary.terms:
        for wording in glossary.unseen[lang]:
            yield term, ask(wording, term.names(lang)[0])


def _term(row: dict[str, Any]) -> Term:
    en, zh = str(row["en"]), str(row["zh"])
    aliases, zh_aliases = list(row.get("aliases", [])), list(row.get("zh_aliases", []))
    plural = bool(row.get("plural", False))
    phrase = str(row.get("np", en))
    article = phrase.split()[0] if phrase.startswith(("a ", "an ", "the ")) else ""
    en_names = [Name(en, phrase, plural), *(Name(alias, _with_article(alias, article), plural) for alias in aliases)]
    # Engineers who speak Chinese use the English names in the middle of a Chinese sentence.
    zh_names = [zh, *zh_aliases, en, *aliases]
    return Term(
        id=str(row["id"]),
        group=str(row["group"]),
        en=tuple(en_names),
        zh=tuple(Name(name, name) for name in dict.fromkeys(zh_names)),
        answer_en=str(row["answer_en"]),
        answer_zh=str(row["answer_zh"]),
    )


def _with_article(alias: str, article: str) -> str:
    if not article or alias.startswith("the "):
        return alias
    if article in ("a", "an"):
        article = "an" if alias[0] in "aeiou" else "a"
    return f"{article} {alias}"


def _is_han(char: str) -> bool:
    return "\u4e00" <= char <= "\u9fff"
