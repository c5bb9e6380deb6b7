from folovllm.engine.detokenizer import IncrementalDetokenizer
from lab_judge import expect, invariant

HALF = "\ufffd"


class Bytes:
    """A token is a byte. Remembers how many tokens it has been given at most."""

    most = 0

    def decode(self, token_ids, *, skip_special_tokens=True):
        self.most = max(self.most, len(token_ids))
        return bytes(token_ids).decode("utf-8", errors="replace")


class ByBytes:
    """A token is a byte, and each byte of an incomplete character at the end is a mark of its own."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        text = bytes(token_ids).decode("utf-8", errors="ignore")
        return text + HALF * (len(token_ids) - len(text.encode()))


class Words:
    """A token is a word with a space before it, and 4 has no text. As SentencePiece does, a text's first space is
    dropped."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join([" once", " upon", " a", " time", ""][token_id] for token_id in token_ids).removeprefix(" ")


def detokenizer(tokenizer, prompt):
    return IncrementalDetokenizer(tokenizer, list(prompt), skip_special_tokens=True)


@invariant(1)
def test_each_token_gives_what_it_adds():
    text = detokenizer(Bytes(), b"ab")
    expect([text.add(byte) for byte in b"cde"], ["c", "d", "e"])


@invariant(1)
def test_so_it_does_behind_a_prompt_without_text():
    text = detokenizer(Bytes(), b"")
    expect([text.add(byte) for byte in b"cde"], ["c", "d", "e"])


@invariant(2)
def test_a_word_keeps_its_space():
    text = detokenizer(Words(), [0])
    expect([text.add(word) for word in (1, 2, 3)], [" upon", " a", " time"])


@invariant(3)
def test_half_a_character_waits():
    text = detokenizer(Bytes(), b"a")
    expect([text.add(byte) for byte in "🔥".encode()], ["", "", "", "🔥"])


@invariant(3)
def test_characters_behind_each_other():
    text = detokenizer(Bytes(), b"a")
    expect([text.add(byte) for byte in "é好!".encode()], ["", "é", "", "", "好", "!"])


@invariant(4)
def test_the_window_stays_short():
    tokenizer = Bytes()
    text = detokenizer(tokenizer, b"a")
    for _ in range(100):
        text.add(ord("x"))
    most = tokenizer.most
    expect(most <= 10, True)


@invariant(4)
def test_the_window_begins_where_the_text_before_ended():
    text = detokenizer(Bytes(), b"a")
    for byte in "🔥".encode():
        text.add(byte)
    expect((text.prefix_offset, text.read_offset), (1, 5))


@invariant(4)
def test_a_token_without_text_does_not_take_the_space_of_the_next():
    text = detokenizer(Words(), [0])
    expect([text.add(word) for word in (4, 1)], ["", " upon"])


@invariant(5)
def test_the_end_tells_what_waits():
    text = detokenizer(Bytes(), b"a")
    text.add(0xF0)
    text.add(0x9F)
    expect(text.finish(), HALF)


@invariant(5)
def test_it_may_be_asked_on_the_way():
    text = detokenizer(Bytes(), b"a")
    text.add(0xF0)
    expect([text.finish(), text.finish()], [HALF, HALF])
    expect(text.add(ord("!")), HALF + "!")


@invariant(5)
def test_nothing_is_taken_off_it():
    text = detokenizer(Bytes(), b"a")
    text.ids += b" b"
    expect(text._advance(final=True), " b")


@invariant(6)
def test_what_is_no_character_is_given_out_but_for_the_last():
    text = detokenizer(Bytes(), b"a")
    added = [text.add(0xFF) for _ in range(4)]
    expect(added, ["", HALF, HALF, HALF])


@invariant(6)
def test_the_last_of_them_comes_with_what_is_behind_it():
    text = detokenizer(Bytes(), b"a")
    for _ in range(5):
        text.add(0xFF)
    expect([text.add(byte) for byte in b"bc"], [HALF + "b", "c"])


@invariant(6)
def test_so_it_does_if_the_end_was_asked_for_on_the_way():
    text = detokenizer(Bytes(), b"a")
    for _ in range(5):
        text.add(0xFF)
    expect([text.finish(), text.num_held, text.add(ord("b"))], [HALF, 1, HALF + "b"])


@invariant(6)
def test_a_character_behind_it_is_whole():
    text = detokenizer(Bytes(), b"a")
    for byte in [0xFF] * 5 + list("é".encode()):
        text.add(byte)
    expect(text.add(ord("!")), "!")


@invariant(7)
def test_a_character_that_the_prompt_begins_is_given_out():
    text = detokenizer(Bytes(), b"a" + "🔥".encode()[:2])
    expect([text.add(byte) for byte in "🔥".encode()[2:]], ["", "🔥"])


@invariant(7)
def test_half_a_character_may_be_more_than_one_mark():
    text = detokenizer(ByBytes(), b"a" + "中".encode()[:2])  # decoded: a and two marks
    expect(text.add("中".encode()[2]), "中")


@invariant(7)
def test_what_the_prompt_left_incomplete_is_not_repeated():
    text = detokenizer(Bytes(), b"a" + "🔥".encode()[:2])
    expect(text.add(ord("!")), "!")
