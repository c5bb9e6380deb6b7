"""The text the embedded model learns, drawn endlessly from a seed: conversations, stories and plain definitions.

A document is a list of (text, learn) pieces. What a user or the system says is context and carries no loss; what the
assistant says, its <|im_end|> included, and plain text do. That is how the model learns to answer and to stop.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from workshop.glossary import DATA, LANGS, Lang, Name, ask, load_glossary
from workshop.stories import ask_for_story, load_stories, make_story, story_templates

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
Piece = tuple[str, bool]
Document = list[Piece]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You explain LLM inference.",
    "You are FoloVLLM.",
    "Be concise.",
    "你是一个有用的助手。",
    "你是大模型推理的老师。",
    "请简短地回答。",
)


def documents(seed: int) -> Iterator[Document]:
    rng = random.Random(seed)
    while True:
        yield _document(rng)


def story_documents(seed: int) -> Iterator[Document]:
    rng = random.Random(seed)
    while True:
        yield [(make_story(rng, rng.choice(LANGS))[0] + END_OF_TEXT, True)]


def _document(rng: random.Random) -> Document:
    lang = rng.choice(LANGS)
    draw = rng.random()
    if draw < 0.16:
        return [(make_story(rng, lang)[0] + END_OF_TEXT, True)]
    if draw < 0.20:
        return [(rng.choice(load_glossary().terms).answer(lang) + END_OF_TEXT, True)]
    return _conversation(rng, lang)


def _conversation(rng: random.Random, lang: Lang) -> Document:
    pieces: Document = []
    if rng.random() < 0.12:
        pieces.append((f"{IM_START}system\n{rng.choice(SYSTEMS)}{IM_END}\n", False))
    for _ in range(rng.choices((1, 2, 3, 4, 5, 6), weights=(45, 22, 13, 10, 6, 4))[0]):
        if rng.random() < 0.15:
            lang = "zh" if lang == "en" else "en"
        question, answer = _turn(rng, lang)
        pieces.append((f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n", False))
        pieces.append((f"{answer}{IM_END}", True))
        pieces.append(("\n", False))
    return pieces


def _turn(rng: random.Random, lang: Lang) -> tuple[str, str]:
    draw = rng.random()
    if draw < 0.15:
        story, kind = make_story(rng, lang)
        return _as_typed(rng, ask_for_story(rng, lang, kind), lang), story
    if draw < 0.23:
        group = rng.choice(_small_talk()[lang])
        return _as_typed(rng, rng.choice(group["ask"]), lang), rng.choice(group["say"])
    if draw < 0.25:
        return _as_typed(rng, _question_about_nothing(rng, lang), lang), _small_talk()[lang][-1]["say"][0]
    return question(rng, lang)


def _question_about_nothing(rng: random.Random, lang: Lang) -> str:
    """A term's wording around a word that is none: the model should know what it does not know."""
    data = load_stories()[lang]
    noun = rng.choice(data["kinds"] + data["things"] + data["places"])
    return ask(rng.choice(load_glossary().train[lang]), Name(noun, noun if lang == "zh" else f"a {noun}"))


def question(rng: random.Random, lang: Lang) -> tuple[str, str]:
    """A term asked in a random training wording, roughly typed as people type, and its definition."""
    glossary = load_glossary()
    term = rng.choice(glossary.terms)
    names = term.names(lang)
    name = names[0] if rng.random() < 0.4 else rng.choice(names)
    wording = rng.choice(glossary.train[lang])
    # The bare name says nothing about the language of the answer unless it is written in it.
    while wording == "{t}？" and name.bare.isascii():
        wording = rng.choice(glossary.train[lang])
    text = ask(_with_noise(rng, wording, lang), name)
    if rng.random() < 0.15:
        text = rng.choice(glossary.before[lang]) + text
    if rng.random() < 0.1:
        text += rng.choice(glossary.after[lang])
    return _as_typed(rng, text, lang), term.answer(lang)


def _with_noise(rng: random.Random, wording: str, lang: Lang) -> str:
    """Words that mean nothing here, put between those of a wording: the model is to look for the term, whatever is
    around it. Without them it fails on wordings with characters it never met in a question.
    """
    if rng.random() < 0.6:
        return wording
    pieces = wording.split(" ") if lang == "en" else re.findall(r"\{\w+\}|.", wording)
    for _ in range(rng.randint(1, 3)):
        noise = rng.choice(_english_words()) if lang == "en" else _han_characters(rng)
        pieces.insert(rng.randrange(len(pieces)), noise)
    return (" " if lang == "en" else "").join(pieces)


@cache
def _english_words() -> list[str]:
    texts = " ".join([*(term.answer_en for term in load_glossary().terms), *story_templates("en")])
    in_names = {
        word for term in load_glossary().terms for name in term.en for word in re.split(r"\W", name.phrase.lower())
    }
    return sorted(set(re.findall(r"(?<!\{)\b[a-z]{2,12}\b(?!\})", texts)) - in_names)


def _han_characters(rng: random.Random) -> str:
    """One to three of the 3,755 commonest characters, which GB 2312 keeps in its rows 16 to 55."""
    length = rng.randint(1, 3)
    return b"".join(bytes([rng.randint(0xB0, 0xD6), rng.randint(0xA1, 0xFE)]) for _ in range(length)).decode("gb2312")


def _as_typed(rng: random.Random, text: str, lang: Lang) -> str:
    if rng.random() < 0.2:
        text = text.rstrip(".?。？！!")
    elif lang == "zh" and rng.random() < 0.15:
        text = text.replace("？", "?")
    if lang == "zh" and rng.random() < 0.5:
        text = _close_up(text)
    if rng.random() < 0.15:
        text = text.lower()
    elif lang == "en" and rng.random() < 0.05:
        text = text[0].lower() + text[1:]
    return text


def _close_up(text: str) -> str:
    """Drop the spaces between Chinese and Latin text, keeping those inside an English name."""
    out = ""
    for i, char in enumerate(text):
        beside = text[max(i - 1, 0) : i + 2]
        if char == " " and not beside.isascii():
            continue
        out += char
    return out


@cache
def _small_talk() -> dict[str, Any]:
    return tomllib.loads((DATA / "smalltalk.toml").read_text(encoding="utf-8"))
