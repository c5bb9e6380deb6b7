"""The embedded model as people meet it: it answers in wordings it has never seen, it stops, it tells stories."""

from __future__ import annotations

import json

import pytest

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from workshop.card import card
from workshop.glossary import LANGS, Lang, ask, load_glossary
from workshop.judge import Judge, Verdict
from workshop.stories import sentence_patterns, split_sentences


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(EMBEDDED_FOLDER)


@pytest.fixture(scope="module", params=LANGS)
def verdict(request: pytest.FixtureRequest, judge: Judge) -> tuple[Lang, Verdict]:
    return request.param, judge.judge(request.param, wordings=2, stories=12)


def test_at_least_forty_terms_are_answered_in_unseen_wordings(verdict: tuple[Lang, Verdict]) -> None:
    _, figures = verdict
    assert figures.terms_right >= 40
    assert figures.terms_right >= 0.9 * figures.terms, figures.wrong


@pytest.mark.parametrize("lang", LANGS)
def test_every_term_is_answered_in_its_plainest_wording(judge: Judge, lang: Lang) -> None:
    glossary = load_glossary()
    questions = [ask(glossary.train[lang][0], term.names(lang)[0]) for term in glossary.terms]
    replies = judge.chat(questions)
    wrong = [
        (question, reply.text)
        for question, reply, term in zip(questions, replies, glossary.terms, strict=True)
        if reply.text != term.answer(lang)
    ]
    assert len(wrong) <= 3, wrong


def test_stories_end_and_are_made_of_known_sentences(verdict: tuple[Lang, Verdict]) -> None:
    _, figures = verdict
    assert figures.stories_ended >= figures.stories - 1
    assert figures.sentences_known >= 0.85 * figures.sentences


@pytest.mark.parametrize(
    ("lang", "question"),
    [("en", "Tell me a story about a rabbit."), ("zh", "讲一个小兔子的故事")],
)
def test_a_story_asked_for_is_told(judge: Judge, lang: Lang, question: str) -> None:
    (story,) = judge.chat([question])
    assert story.ended
    known = [bool(sentence_patterns(lang).fullmatch(s)) for s in split_sentences(story.text, lang)]
    assert len(known) >= 5
    assert sum(known) >= 0.8 * len(known)


@pytest.mark.parametrize("opening", ["Once upon a time", "从前"])
def test_a_plain_opening_is_continued_to_its_end(judge: Judge, opening: str) -> None:
    (story,) = judge.complete([opening], max_new_tokens=300)
    assert story.ended
    assert len(story.text) > 60


def test_history_does_not_disturb_the_next_answer(judge: Judge) -> None:
    terms = {term.id: term for term in load_glossary().terms}
    messages = [
        {"role": "user", "content": "What is the KV cache?"},
        {"role": "assistant", "content": terms["kv-cache"].answer_en},
        {"role": "user", "content": "What is prefix caching?"},
        {"role": "assistant", "content": terms["prefix-caching"].answer_en},
        {"role": "user", "content": "什么是分页注意力？"},
    ]
    (reply,) = judge.answer([messages])
    assert reply.text == terms["paged-attention"].answer_zh


def test_a_system_message_is_tolerated(judge: Judge) -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is continuous batching?"},
    ]
    (reply,) = judge.answer([messages])
    assert reply.text == {t.id: t for t in load_glossary().terms}["continuous-batching"].answer_en


def test_the_card_reports_what_was_measured() -> None:
    verdicts = json.loads((EMBEDDED_FOLDER / "judge.json").read_text())
    assert (EMBEDDED_FOLDER / "README.md").read_text(encoding="utf-8") == card(EMBEDDED_FOLDER, verdicts)
