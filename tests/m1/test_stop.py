"""How a sequence ends, and what of its text is shown: EOS, stop ids, stop strings, lengths, half characters."""

from __future__ import annotations

import pytest

from tests.m1.support import EOS, say, scripted

# What would be said, the settings, and what comes of it: the text, why it ended, and by what.
KEEP = {"include_stop_str_in_output": True}
ENDS = {
    "EOS is not part of the text": ("done", {}, "done", "stop", None),
    "ignore_eos goes on": ("done", {"ignore_eos": True, "max_tokens": 4}, "done", "length", None),
    "max_tokens": ("a long text", {"max_tokens": 6}, "a long", "length", None),
    "an EOS in the last place is a stop": ("abc", {"max_tokens": 4}, "abc", "stop", None),
    "a stop token is not part of the text": ("one. two", {"stop_token_ids": [46]}, "one", "stop", 46),
    "but where it is asked for": ("one. two", {"stop_token_ids": [46], **KEEP}, "one.", "stop", 46),
    "a stop string across tokens is cut": ("story THE END. more", {"stop": "THE END"}, "story ", "stop", "THE END"),
    "it stays where that is asked for": ("story END. more", {"stop": ["END"], **KEEP}, "story END", "stop", "END"),
    "many bytes a character": ("你好。再见", {"stop": "。"}, "你好", "stop", "。"),
    "of two that are complete at once the earlier": ("abcd", {"stop": ["cd", "bcd"]}, "a", "stop", "bcd"),
    "completed by the last token": ("abcEND", {"stop": "END", "max_tokens": 6}, "abc", "stop", "END"),
    "not before min_tokens": ("a.b.c", {"stop": ".", "min_tokens": 3}, "a.b", "stop", "."),
    "the token after those may complete it": ("a.b.c", {"stop": ".", "min_tokens": 1}, "a", "stop", "."),
    "and the last of them not": ("a.b.c", {"stop": ".", "min_tokens": 2}, "a.b", "stop", "."),
    "what was held back comes out": ("the E", {"stop": "END"}, "the E", "stop", None),
    "half a character that max_tokens cuts": ("a🔥", {"max_tokens": 3}, "a\ufffd", "length", None),
    "no text": ("abc", {"detokenize": False}, "", "stop", None),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_sequence_ends(engine, name):
    said, settings, *expected = ENDS[name]
    completion = say(engine, said, **settings)
    assert [completion.text, completion.finish_reason, completion.stop_reason] == expected


def test_what_ends_a_sequence_is_among_its_tokens(engine):
    assert say(engine, "done").token_ids == [*b"done", EOS]
    assert say(engine, "one. two", stop_token_ids=[ord(".")]).token_ids == [*b"one."]
    assert say(engine, "abc", detokenize=False).token_ids == [*b"abc", EOS]


def test_max_tokens_none_goes_on_to_max_model_len(engine):
    completion = say(engine, "x" * 200, max_tokens=None, prompt="1234")
    assert len(completion.token_ids) == 64 - len(engine.tokenizer("1234")["input_ids"])
    assert completion.finish_reason == "length"


def test_text_is_held_back_while_it_could_become_a_stop_string(engine):
    texts = [out.outputs[0].text for out in engine.generate_stream("x", scripted("ab EN. END", stop="END"))]
    # Token by token; the last two characters wait, as they could be the "EN" of "END".
    assert texts == ["", "", "a", "b", " ", "E", "N", ".", " ", ""]


def test_half_a_character_is_never_streamed(engine):
    assert [out.outputs[0].text for out in engine.generate_stream("x", scripted("火🔥!"))] == [
        "", "", "火", "", "", "", "🔥", "!", "",
    ]  # fmt: skip
