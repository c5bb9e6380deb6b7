"""Text comes out whole characters at a time, and all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from folovllm.engine import output_processor
from folovllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer
from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from tests.m1.byte_tokenizer import byte_tokenizer

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


def test_an_incomplete_end_shows_as_a_replacement_when_nothing_more_comes():
    added, detokenizer = feed([*b"ab", *"🔥".encode()[:2]])
    assert "".join(added) == "ab"
    assert detokenizer.finish() == REPLACEMENT


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


def with_byte_fallback() -> Tokenizer:
    """Llama 2's kind: words with the space in front, and <0x00> to <0xFF> for what has no token. A run of bytes that is
    no UTF-8 is a U+FFFD for each, whole characters too."""
    vocab = {word: place for place, word in enumerate(["<unk>", "\u2581", "a", "\u2581b", "d", "e"])}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def with_byte_level() -> Tokenizer:
    """GPT-2's kind: any bytes are a token, also an end with a beginning."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = ["".join(piece for piece, _ in cut.pre_tokenize_str(text)) for text in ("中文", "🌶", "ab")]
    merged = [piece[at : at + 2] for piece in pieces for at in range(len(piece) - 1)]
    vocab = {token: place for place, token in enumerate(dict.fromkeys(alphabet + merged))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def with_words() -> Tokenizer:
    """SentencePiece's kind without bytes: the first space of a text is dropped."""
    words = ["<unk>", "\u2581", "\u2581once", "\u2581upon", "a", "\ufffd", "中"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


KINDS = {"byte fallback": with_byte_fallback(), "byte level": with_byte_level(), "words": with_words()}
for each in KINDS.values():
    each.add_special_tokens([AddedToken("<hidden>", special=True)])
FALLBACK = KINDS["byte fallback"]


def ids_of(*pieces: str | bytes) -> list[int]:
    names = [[piece] if isinstance(piece, str) else [f"<0x{byte:02X}>" for byte in piece] for piece in pieces]
    return [FALLBACK.token_to_id(name) for each in names for name in each]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_was_given_out_is_one_decode_of_all(kind, data):
    tokenizer = KINDS[kind]
    ids = st.integers(0, tokenizer.get_vocab_size())  # the last is no token at all
    lumps = [tokenizer.encode(text).ids for text in ("中文", "🌶", "ab")] if kind == "byte level" else []
    lumps += [ids_of("中".encode()), ids_of("🌶".encode()[:2]), ids_of(b"\n")] if kind == "byte fallback" else []
    lumps += [[tokenizer.token_to_id("<hidden>")]]
    pieces = data.draw(st.lists(st.sampled_from(lumps) | st.lists(ids, max_size=3), max_size=12))
    token_ids = [token_id for piece in pieces for token_id in piece]
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=data.draw(st.booleans()))
    added = "".join(map(detokenizer.add, token_ids)) + detokenizer.finish()
    assert added == tokenizer.decode(token_ids, skip_special_tokens=detokenizer.skip_special_tokens)


@pytest.mark.parametrize(
    "prompt, output, added",
    [
        (ids_of("a", b"\xf0\x9f"), ids_of(b"\x8c\xb6", "d", "e"), ["", "", "🌶d", "e"]),
        ([], ids_of(b"\xff", "中文地".encode(), "d"), [*[""] * 10, REPLACEMENT * 10 + "d"]),
        (ids_of("中文".encode()), ids_of("地".encode(), "d"), ["", "", "", "地d"]),
        (ids_of(b"\n"), ids_of("\u2581b", b"\n", "a"), [" b", "", "\na"]),
    ],
    ids=["a character begun by the prompt", "one wrong byte", "behind several characters", "a newline is a byte"],
)
def test_a_run_of_bytes_is_given_out_as_a_whole(prompt, output, added):
    detokenizer = IncrementalDetokenizer(FALLBACK, prompt, skip_special_tokens=True)
    assert [detokenizer.add(token_id) for token_id in output] == added


def test_what_a_run_would_come_to_is_known_before_its_end():
    detokenizer = IncrementalDetokenizer(FALLBACK, ids_of("a"), skip_special_tokens=True)
    assert [(detokenizer.add(token_id), detokenizer.finish()) for token_id in ids_of(b"\n", b"\n", "d")] == [
        ("", "\n"),
        ("", "\n\n"),
        ("\n\nd", ""),
    ]


def test_a_stop_string_of_a_byte_stops_at_that_token():
    """Else each request to Llama 2 that stops at a newline would compute a token more."""
    params, ids = SamplingParams(stop="\n", max_tokens=9), [ids_of("d"), ids_of(b"\n")]
    if hasattr(output_processor, "SequenceState"):  # since M11 it is the client's, which knows no Sequence
        text = output_processor.SequenceState(ids_of("a"), params, FALLBACK)
        ended = [(text.add(each, None), text.finish_reason)[1] for each in ids]
    else:
        seq = Sequence("0", "r", SequenceData(ids_of("a")), params)
        text, ended = output_processor.SequenceOutput(seq, FALLBACK), []
        for (token_id,) in ids:
            seq.data.add_token_id(token_id)
            ended.append(text.add_token(token_id, None) and "stop")
    assert (ended, text.text) == ([None, "stop"], "d")
