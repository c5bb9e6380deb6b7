"""Template stories in two languages: an opening, the beats of one plot, an ending, the same few entities throughout.

The text is random in its choices and fixed in its grammar, so a sentence the model writes can be checked against the
templates: `sentence_patterns` is what the judge reads stories with.
"""

from __future__ import annotations

import random
import re
import tomllib
from functools import cache
from typing import Any

from workshop.glossary import DATA, Lang


@cache
def load_stories() -> dict[str, Any]:
    return tomllib.loads((DATA / "stories.toml").read_text(encoding="utf-8"))


def make_story(rng: random.Random, lang: Lang) -> tuple[str, str]:
    """A story and what its hero is."""
    data = load_stories()[lang]
    slots = _draw_entities(rng, lang, data)
    plot = rng.choice(data["plots"])
    parts = [
        rng.choice(data["openings"]),
        *(rng.choice(beat) for beat in plot["beats"]),
        rng.choice(data["endings"]),
    ]
    glue = " " if lang == "en" else ""
    return glue.join(part.format(**slots) for part in parts), slots["a"]


def story_templates(lang: Lang) -> list[str]:
    data = load_stories()[lang]
    return [*data["openings"], *data["endings"], *(t for plot in data["plots"] for beat in plot["beats"] for t in beat)]


def ask_for_story(rng: random.Random, lang: Lang, kind: str) -> str:
    data = load_stories()[lang]
    if rng.random() < 0.2:
        return str(rng.choice(data["asks_any"]))
    return str(rng.choice(data["asks"])).format(a=kind)


def _draw_entities(rng: random.Random, lang: Lang, data: dict[str, Any]) -> dict[str, str]:
    kind, friend = rng.sample(data["kinds"], 2)
    place, other_place = rng.sample(data["places"], 2)
    female = _is_female(rng, kind, data)
    name = rng.choice(data["she"] if female else data["he"])
    friend_name = rng.choice(data["she"] if _is_female(rng, friend, data) else data["he"])
    while friend_name == name:
        friend_name = rng.choice(data["she"] + data["he"])
    slots = {
        "n": name, "a": kind, "m": friend_name, "b": friend, "p": place, "q": other_place,
        "o": rng.choice(data["things"]), "c": rng.choice(data["qualities"]),
    }  # fmt: skip
    if lang == "en":
        he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
        return slots | {"he": he, "him": him, "his": his, "He": he.title(), "His": his.title()}
    person = kind in data["female"] + data["male"]
    he = ("她" if female else "他") if person else "它"
    return slots | {"he": he, "him": he, "his": he + "的", "l": data["measure"].get(kind, "只")}


def _is_female(rng: random.Random, kind: str, data: dict[str, Any]) -> bool:
    if kind in data["female"] or kind in data["male"]:
        return kind in data["female"]
    return rng.random() < 0.5


def split_sentences(text: str, lang: Lang) -> list[str]:
    """Sentences, a closing quotation mark kept with the sentence it closes."""
    if lang == "en":
        return [part for part in re.split(r'(?<=[.!?])\s+|(?<=[.!?]")\s+', text.strip()) if part]
    return [part for part in re.findall(r"[^。！？]*[。！？]+”?", text.strip()) if part]


@cache
def sentence_patterns(lang: Lang) -> re.Pattern[str]:
    """One pattern that matches exactly the sentences our templates can make."""
    data = load_stories()[lang]
    names = data["she"] + data["he"]
    if lang == "en":
        pronouns = {
            "he": ["he", "she"],
            "him": ["him", "her"],
            "his": ["his", "her"],
            "He": ["He", "She"],
            "His": ["His", "Her"],
        }
    else:
        pronouns = {"he": ["他", "她", "它"], "him": ["他", "她", "它"], "his": ["他的", "她的", "它的"]}
        pronouns["l"] = sorted({"只", *data["measure"].values()})
    choices = pronouns | {
        "n": names, "m": names, "a": data["kinds"], "b": data["kinds"], "p": data["places"], "q": data["places"],
        "o": data["things"], "c": data["qualities"],
    }  # fmt: skip
    sentences = {s for source in story_templates(lang) for s in split_sentences(source, lang)}
    alternatives = []
    for sentence in sorted(sentences):
        pieces = re.split(r"\{(\w+)\}", sentence)
        alternatives.append(
            "".join(
                re.escape(piece) if i % 2 == 0 else "(?:" + "|".join(map(re.escape, choices[piece])) + ")"
                for i, piece in enumerate(pieces)
            )
        )
    return re.compile("|".join(f"(?:{a})" for a in alternatives))


def names_in(text: str, lang: Lang) -> set[str]:
    data = load_stories()[lang]
    for phrase in ("快快乐乐", "石头后面", "甜甜的果子"):  # names elsewhere, ordinary words here
        text = text.replace(phrase, "")
    found = {name for name in data["she"] + data["he"] if name in text}
    if lang == "en":
        found = {name for name in found if re.search(rf"\b{name}\b", text)}
    return found
