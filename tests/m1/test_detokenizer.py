"""Text comes out whole characters at a time, and all of it."""

from __future__ import annotations

import random

import pytest

from folovllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer
from tests.m1.byte_tokenizer import BOS, EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()


def feed(token_ids, prompt=(), skip_special_tokens=True):
    detokenizer = IncrementalDetokenizer(TOKENIZER, list(prompt), skip_special_tokens=skip_special_tokens)
    return [detokenizer.add(token_id) for token_id in token_ids], detokenizer


def test_a_fire_of_four_tokens_appears_with_the_fourth():
    added, _ = feed("🔥".encode())
    assert added == ["", "", "", "🔥"]


def test_chinese_appears_a_character_at_a_time():
    added, _ = feed("汉字".encode())
    assert added == ["", "", "汉", "", "", "字"]


@pytest.mark.parametrize(
    "text", ["plain", "naïve café", "分页注意力 is paged attention", "👩‍🚀 a\n\t b", "  two  spaces "]
)
def test_the_pieces_join_to_the_text(text):
    added, _ = feed(text.encode(), prompt=[BOS, *b"prompt "])
    assert "".join(added) == text


def test_an_incomplete_end_shows_as_a_replacement_when_nothing_more_comes():
    added, detokenizer = feed([*b"ab", *"🔥".encode()[:2]])
    assert "".join(added) == "ab"
    assert detokenizer.finish() == REPLACEMENT


def test_a_replacement_character_that_is_meant_comes_out_in_the_end():
    added, detokenizer = feed([*REPLACEMENT.encode(), *b"x"])
    assert "".join(added) + detokenizer.finish() == REPLACEMENT + "x"


def test_special_tokens_are_hidden_unless_asked_for():
    assert "".join(feed([*b"a", EOS])[0]) == "a"
    assert "".join(feed([*b"a", EOS], skip_special_tokens=False)[0]) == "a<eos>"


def test_the_prompts_last_character_is_not_repeated():
    added, _ = feed([*b"!"], prompt="你好".encode())
    assert added == ["!"]


class Counting:
    """Bytes as text, as Hugging Face's byte-level tokenizers decode them; counts how many it is asked for."""

    num_ids = 0

    def decode(self, token_ids, *, skip_special_tokens=True):
        self.num_ids += len(token_ids)
        return bytes(token_ids).decode(errors="replace")


def test_bytes_that_are_no_text_are_decoded_in_a_short_window():
    """Each time all that waited, as for a character that may still come, would be half a million for a thousand."""
    decoder = Counting()
    detokenizer = IncrementalDetokenizer(decoder, [], skip_special_tokens=True)
    added = [detokenizer.add(0x80) for _ in range(1000)]
    assert "".join(added) + detokenizer.finish() == REPLACEMENT * 1000
    assert decoder.num_ids <= 14 * 1000
    assert max(map(len, added)) <= 5  # and they come as they are said, not all at the end


@pytest.mark.parametrize("seed", range(40))
def test_text_between_bytes_that_are_none_is_what_decoding_everything_says(seed):
    """Whole characters, their beginnings, their ends and bytes that begin nothing, in any order."""
    rng, token_ids = random.Random(seed), []
    while len(token_ids) < 60:
        character = list(rng.choice("aé汉🔥").encode())
        cut = rng.randrange(len(character) + 1)
        token_ids += rng.choice([character, character[:cut], character[cut:], [0x80] * rng.randrange(9), [0xFF]])
    detokenizer = IncrementalDetokenizer(Counting(), [], skip_special_tokens=True)
    added = "".join(map(detokenizer.add, token_ids)) + detokenizer.finish()
    assert added == bytes(token_ids).decode(errors="replace")
