"""How a sequence ends, and what of its text is shown: EOS, stop ids, stop strings, lengths, half characters."""

from __future__ import annotations

from tests.m1.support import EOS, say, scripted


def test_eos_stops_and_is_not_part_of_the_text(engine):
    completion = say(engine, "done")
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("done", "stop", None)
    assert completion.token_ids == [*b"done", EOS]


def test_ignore_eos_goes_on_to_max_tokens(engine):
    completion = say(engine, "done", ignore_eos=True, max_tokens=9)
    assert (len(completion.token_ids), completion.finish_reason) == (9, "length")


def test_max_tokens_is_a_finish_by_length(engine):
    completion = say(engine, "a long text", max_tokens=6)
    assert (completion.text, completion.finish_reason) == ("a long", "length")


def test_max_tokens_none_goes_on_to_max_model_len(engine):
    completion = say(engine, "x" * 200, max_tokens=None, prompt="1234")
    num_prompt = len(engine.tokenizer("1234")["input_ids"])
    assert len(completion.token_ids) == 64 - num_prompt
    assert completion.finish_reason == "length"


def test_an_eos_in_the_last_place_is_a_stop_not_a_length(engine):
    assert say(engine, "abc", max_tokens=4).finish_reason == "stop"


def test_a_stop_token_id_is_the_stop_reason_and_is_not_part_of_the_text(engine):
    completion = say(engine, "one. two", stop_token_ids=[ord(".")])
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("one", "stop", ord("."))
    assert completion.token_ids == [*b"one."]


def test_a_stop_token_is_part_of_the_text_when_asked_for(engine):
    assert say(engine, "one. two", stop_token_ids=[46], include_stop_str_in_output=True).text == "one."


def test_a_stop_string_is_seen_across_tokens_and_cut(engine):
    completion = say(engine, "story THE END. more", stop="THE END")
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("story ", "stop", "THE END")


def test_a_stop_string_stays_when_asked_for(engine):
    completion = say(engine, "story END. more", stop=["END"], include_stop_str_in_output=True)
    assert completion.text == "story END"


def test_a_stop_string_of_many_bytes_a_character(engine):
    assert say(engine, "你好。再见", stop="。").text == "你好"


def test_the_earliest_of_two_stop_strings_cuts(engine):
    # Both become complete with the same token.
    completion = say(engine, "abcd", stop=["cd", "bcd"])
    assert (completion.text, completion.stop_reason) == ("a", "bcd")


def test_a_stop_string_completed_by_the_last_token_is_a_stop(engine):
    completion = say(engine, "abcEND", stop="END", max_tokens=6)
    assert (completion.text, completion.finish_reason) == ("abc", "stop")


def test_a_stop_string_before_min_tokens_does_not_stop(engine):
    completion = say(engine, "a.b.c", stop=".", min_tokens=3)
    assert completion.text == "a.b"


def test_the_first_token_that_may_complete_a_stop_string_is_the_one_after_min_tokens(engine):
    assert say(engine, "a.b.c", stop=".", min_tokens=1).text == "a"
    assert say(engine, "a.b.c", stop=".", min_tokens=2).text == "a.b"


def test_what_was_held_back_comes_out_when_no_stop_string_follows(engine):
    assert say(engine, "the E", stop="END").text == "the E"


def test_text_is_held_back_while_it_could_become_a_stop_string(engine):
    texts = [out.outputs[0].text for out in engine.generate_stream("x", scripted("ab EN. END", stop="END"))]
    # Token by token; the last two characters wait, as they could be the "EN" of "END".
    assert texts == ["", "", "a", "b", " ", "E", "N", ".", " ", ""]


def test_half_a_character_is_never_streamed(engine):
    assert [out.outputs[0].text for out in engine.generate_stream("x", scripted("火🔥!"))] == [
        "", "", "火", "", "", "", "🔥", "!", "",
    ]  # fmt: skip


def test_a_character_cut_by_max_tokens_shows_as_a_replacement(engine):
    assert say(engine, "a🔥", max_tokens=3).text == "a\ufffd"


def test_detokenize_false_leaves_the_text_empty(engine):
    completion = say(engine, "abc", detokenize=False)
    assert (completion.text, completion.token_ids) == ("", [*b"abc", EOS])
