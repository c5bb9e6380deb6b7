"""How a sequence ends, and what of its text is shown: EOS, stop ids, stop strings, lengths, half characters."""

from __future__ import annotations

from tests.m1.support import EOS, ScriptedRunner, params, say


def test_eos_stops_and_is_not_part_of_the_text(engine):
    completion = say(engine, "done", params())
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("done", "stop", None)
    assert completion.token_ids == [*b"done", EOS]


def test_ignore_eos_goes_on_to_max_tokens(engine):
    completion = say(engine, "done", params(ignore_eos=True, max_tokens=9))
    assert (len(completion.token_ids), completion.finish_reason) == (9, "length")


def test_max_tokens_is_a_finish_by_length(engine):
    completion = say(engine, "a long text", params(max_tokens=6))
    assert (completion.text, completion.finish_reason) == ("a long", "length")


def test_max_tokens_none_goes_on_to_max_model_len(engine):
    completion = say(engine, "x" * 200, params(max_tokens=None), prompt="1234")
    num_prompt = len(engine.tokenizer("1234")["input_ids"])
    assert len(completion.token_ids) == 64 - num_prompt
    assert completion.finish_reason == "length"


def test_an_eos_in_the_last_place_is_a_stop_not_a_length(engine):
    assert say(engine, "abc", params(max_tokens=4)).finish_reason == "stop"


def test_a_stop_token_id_is_the_stop_reason_and_is_not_part_of_the_text(engine):
    completion = say(engine, "one. two", params(stop_token_ids=[ord(".")]))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("one", "stop", ord("."))
    assert completion.token_ids == [*b"one."]


def test_a_stop_token_is_part_of_the_text_when_asked_for(engine):
    assert say(engine, "one. two", params(stop_token_ids=[46], include_stop_str_in_output=True)).text == "one."


def test_a_stop_string_is_seen_across_tokens_and_cut(engine):
    completion = say(engine, "story THE END. more", params(stop="THE END"))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("story ", "stop", "THE END")


def test_a_stop_string_stays_when_asked_for(engine):
    completion = say(engine, "story END. more", params(stop=["END"], include_stop_str_in_output=True))
    assert completion.text == "story END"


def test_a_stop_string_of_many_bytes_a_character(engine):
    assert say(engine, "你好。再见", params(stop="。")).text == "你好"


def test_the_earliest_of_two_stop_strings_cuts(engine):
    # Both become complete with the same token.
    completion = say(engine, "abcd", params(stop=["cd", "bcd"]))
    assert (completion.text, completion.stop_reason) == ("a", "bcd")


def test_a_stop_string_completed_by_the_last_token_is_a_stop(engine):
    completion = say(engine, "abcEND", params(stop="END", max_tokens=6))
    assert (completion.text, completion.finish_reason) == ("abc", "stop")


def test_a_stop_string_before_min_tokens_does_not_stop(engine):
    completion = say(engine, "a.b.c", params(stop=".", min_tokens=3))
    assert completion.text == "a.b"


def test_what_was_held_back_comes_out_when_no_stop_string_follows(engine):
    assert say(engine, "the E", params(stop="END")).text == "the E"


def test_text_is_held_back_while_it_could_become_a_stop_string(engine):
    ScriptedRunner(engine, "ab EN. END")
    texts = [out.outputs[0].text for out in engine.generate_stream("x", params(stop="END"))]
    # Token by token; the last two characters wait, as they could be the "EN" of "END".
    assert texts == ["", "", "a", "b", " ", "E", "N", ".", " ", ""]


def test_half_a_character_is_never_streamed(engine):
    ScriptedRunner(engine, "火🔥!")
    assert [out.outputs[0].text for out in engine.generate_stream("x", params())] == [
        "", "", "火", "", "", "", "🔥", "!", "",
    ]  # fmt: skip


def test_a_character_cut_by_max_tokens_shows_as_a_replacement(engine):
    assert say(engine, "a🔥", params(max_tokens=3)).text == "a\ufffd"


def test_detokenize_false_leaves_the_text_empty(engine):
    completion = say(engine, "abc", params(detokenize=False))
    assert (completion.text, completion.token_ids) == ("", [*b"abc", EOS])
