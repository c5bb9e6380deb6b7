"""How the embedded model is made: the glossary's data, the corpus, the tokenizer, the training step."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from workshop.corpus import documents, question
from workshop.glossary import LANGS, Lang, Name, ask, judge_questions, load_glossary
from workshop.guesses import tokens_per_step
from workshop.muon import orthogonalise
from workshop.network import TinyQwen3, to_transformers
from workshop.stories import make_story, names_in, sentence_patterns, split_sentences
from workshop.tokenizer import train_tokenizer
from workshop.train import DRAFT, Recipe, Workers, answer_loss, model_config, packed_rows, train


def test_glossary_has_sixty_terms_with_ids_and_names_of_their_own() -> None:
    terms = [*load_glossary().terms, *load_glossary().later]
    assert len(load_glossary().terms) >= 60
    assert len({term.id for term in terms}) == len(terms)
    names = [name.bare.lower() for term in terms for name in term.en]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("term", [*load_glossary().terms, *load_glossary().later], ids=lambda term: term.id)
def test_definitions_are_short_whole_sentences(term) -> None:  # type: ignore[no-untyped-def]
    assert len(term.answer_en.split()) <= 40
    assert len(term.answer_zh) <= 80
    assert term.answer_en.endswith(".")
    assert term.answer_zh.endswith("。")
    assert term.group in load_glossary().groups


@pytest.mark.parametrize("lang", LANGS)
def test_unseen_wordings_do_not_occur_in_training(lang: Lang) -> None:
    rng = random.Random(0)
    trained = {question(rng, lang)[0].lower().rstrip(".?。？") for _ in range(30_000)}
    unseen = {text.lower().rstrip(".?。？") for _, text in judge_questions(lang)}
    assert not trained & unseen
    assert len(load_glossary().unseen[lang]) >= 6


def test_a_question_takes_the_article_and_the_number_of_its_name() -> None:
    assert ask("What {is} {np}?", Name("block table", "a block table")) == "What is a block table?"
    assert ask("What {does} {t} mean?", Name("logits", "logits", plural=True)) == "What do logits mean?"
    assert ask("什么是{t}？", Name("KV 缓存", "KV 缓存")) == "什么是 KV 缓存？"


@pytest.mark.parametrize("lang", LANGS)
def test_every_story_is_made_of_template_sentences_and_two_names(lang: Lang) -> None:
    rng = random.Random(0)
    for _ in range(200):
        story, _kind = make_story(rng, lang)
        assert all(sentence_patterns(lang).fullmatch(s) for s in split_sentences(story, lang)), story
        assert 1 <= len(names_in(story, lang)) <= 2


def test_documents_repeat_from_their_seed() -> None:
    assert list(itertools.islice(documents(3), 50)) == list(itertools.islice(documents(3), 50))


def test_only_answers_and_plain_text_are_learnt() -> None:
    for document in itertools.islice(documents(0), 200):
        for text, learnt in document:
            assert learnt == text.endswith(("<|im_end|>", "<|endoftext|>"))
            assert "<|im_start|>user" not in text or not learnt


SMALL = Recipe(rows=4, length=48, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=8)


@pytest.fixture(scope="module")
def network():  # type: ignore[no-untyped-def]
    tokenizer = train_tokenizer(seed=0, vocab_size=400, num_documents=50)
    torch.manual_seed(0)
    return tokenizer, TinyQwen3(model_config(SMALL, tokenizer))


def test_training_network_computes_what_transformers_computes(network) -> None:  # type: ignore[no-untyped-def]
    _, model = network
    ids, whole = torch.randint(0, 256, (2, 20)), torch.zeros(2, 20, dtype=torch.long)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        ours = model(ids, whole) @ model.embedding.T
        torch.testing.assert_close(ours, to_transformers(model)(ids).logits, rtol=1e-4, atol=1e-4)


def test_packed_documents_do_not_see_each_other(network) -> None:  # type: ignore[no-untyped-def]
    _, model = network
    ids = torch.randint(0, 256, (1, 20))
    numbers = torch.tensor([[0] * 12 + [1] * 8])
    other_ids = torch.cat([torch.randint(0, 256, (1, 12)), ids[:, 12:]], dim=1)
    with torch.no_grad():
        hidden, other_hidden = model(ids, numbers), model(other_ids, numbers)
    torch.testing.assert_close(hidden[:, 12:], other_hidden[:, 12:])
    assert not torch.allclose(hidden[:, :12], other_hidden[:, :12])


def test_shared_out_gradients_are_those_of_the_whole_batch(network) -> None:  # type: ignore[no-untyped-def]
    tokenizer, model = network
    batch = next(packed_rows(tokenizer, SMALL, documents(0)))
    loss = answer_loss(model, batch)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    threads = torch.get_num_threads()
    try:
        assert Workers(model).backward(batch) == pytest.approx(loss.item(), rel=1e-4)
    finally:
        torch.set_num_threads(threads)
    for param, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(param.grad, grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_orthogonalised_update_moves_every_direction_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    before = torch.linalg.svdvals(torch.randn(shape))
    after = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert before.max() / before.min() > 1.5
    assert after.min() > 0.5
    assert after.max() < 1.5


def test_a_draft_is_trained_with_the_tokenizer_of_another_folder(tmp_path: Path) -> None:
    train(replace(DRAFT, steps=1, rows=2, length=32), tmp_path, tokenizer_of=EMBEDDED_FOLDER)
    draft = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert draft.config.vocab_size == Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json")).get_vocab_size()
    assert draft.config.num_hidden_layers == 1
    assert not (tmp_path / "tokenizer.json").exists()


def test_tokens_a_step_are_counted_by_hand() -> None:
    """With 2 guesses: 4 5 6 come at once, 7 alone since its guess is wrong, and 8 is all that is left."""
    guesses = {(1,): [4, 5], (1, 4, 5, 6): [9, 8], (1, 4, 5, 6, 7): [8, 9]}
    answer = (1, [1, 4, 5, 6, 7, 8])
    assert tokens_per_step([answer], lambda text, count: guesses[tuple(text)], 2) == 5 / 3
