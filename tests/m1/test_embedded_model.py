"""The embedded model as people meet it: a folder that transformers loads, which answers, stops and tells stories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from folovllm.tiny.glossary import LANGS, Lang, load_glossary
from folovllm.tiny.judge import EMBEDDED, Judge, Verdict
from folovllm.tiny.stories import sentence_patterns, split_sentences


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(EMBEDDED)


@pytest.fixture(scope="module", params=LANGS)
def verdict(request: pytest.FixtureRequest, judge: Judge) -> tuple[Lang, Verdict]:
    return request.param, judge.judge(request.param, wordings=2, stories=12)


def test_folder_is_two_to_six_megabytes() -> None:
    size = sum(path.stat().st_size for path in EMBEDDED.iterdir())
    assert 2e6 < size < 6e6


def test_weights_are_bfloat16_and_load_as_they_are() -> None:
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config.num_attention_heads % model.config.num_key_value_heads == 0


def test_vocabulary_is_as_large_as_the_tokenizer_says() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    assert json.loads((EMBEDDED / "config.json").read_text())["vocab_size"] == len(tokenizer)


def test_both_ends_of_text_stop_generation() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    ends = json.loads((EMBEDDED / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("text", ["KV cache", "分页注意力与块表。", "naïve 🔥 龘", " a\n\n  b\t", "<|im_start|>"])
def test_every_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_chat_template_writes_the_form_it_was_trained_on() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_at_least_forty_terms_are_answered_in_unseen_wordings(verdict: tuple[Lang, Verdict]) -> None:
    _, figures = verdict
    assert figures.terms_right >= 40
    assert figures.terms_right >= 0.9 * figures.terms, figures.wrong


@pytest.mark.parametrize("lang", LANGS)
def test_every_term_is_answered_in_its_plainest_wording(judge: Judge, lang: Lang) -> None:
    from folovllm.tiny.glossary import ask

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
    ("lang", "ask"),
    [("en", "Tell me a story about a rabbit."), ("zh", "讲一个小兔子的故事")],
)
def test_a_story_asked_for_is_told(judge: Judge, lang: Lang, ask: str) -> None:
    (story,) = judge.chat([ask])
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
    from folovllm.tiny.card import card

    verdicts = json.loads(Path(EMBEDDED / "judge.json").read_text())
    assert (EMBEDDED / "README.md").read_text(encoding="utf-8") == card(EMBEDDED, verdicts)
