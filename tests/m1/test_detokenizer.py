"""Text comes out whole characters at a time, and all of it."""

from __future__ import annotations

import pytest

from folovllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer
from tests.m1.support import BOS, EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()


def feed(token_ids, prompt=(), skip_special_tokens=True):
    detokenizer = IncrementalDetokenizer(TOKENIZER, list(prompt), skip_special_tokens=skip_special_tokens)
    return [detokenizer.add(token_id) for token_id in token_ids], detokenizer


def test_a_fire_of_four_tokens_appears_with_the_fourth():
    added, _ = feed("🔥".encode())
    assert added == ["", "", "", "🔥"]


def test_chinese_appears_a_character_at_a_time():
    added, detokenizer = feed("汉字".encode())
    assert added == ["", "", "汉", "", "", "字"]
    assert detokenizer.text == "汉字"


@pytest.mark.parametrize(
    "text", ["plain", "naïve café", "分页注意力 is paged attention", "👩‍🚀 a\n\t b", "  two  spaces "]
)
def test_the_pieces_join_to_the_text(text):
    added, detokenizer = feed(text.encode(), prompt=[BOS, *b"prompt "])
    assert "".join(added) == text == detokenizer.text


def test_an_incomplete_end_shows_as_a_replacement_when_nothing_more_comes():
    added, detokenizer = feed([*b"ab", *"🔥".encode()[:2]])
    assert "".join(added) == "ab"
    assert detokenizer.finish() == REPLACEMENT
    assert detokenizer.text == "ab" + REPLACEMENT


def test_a_replacement_character_that_is_meant_comes_out_in_the_end():
    added, detokenizer = feed([*REPLACEMENT.encode(), *b"x"])
    assert "".join(added) + detokenizer.finish() == REPLACEMENT + "x"


def test_special_tokens_are_hidden_unless_asked_for():
    assert "".join(feed([*b"a", EOS])[0]) == "a"
    assert "".join(feed([*b"a", EOS], skip_special_tokens=False)[0]) == "a<eos>"


def test_the_prompts_last_character_is_not_repeated():
    added, _ = feed([*b"!"], prompt="你好".encode())
    assert added == ["!"]
