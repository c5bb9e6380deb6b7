import pytest

from folovllm.core.block_hash import root_of
from lab_judge import expect, invariant

A, B = b"a" * 32, b"b" * 32


def differ(*pairs):
    return len({root_of(*pair) for pair in pairs})


@invariant(1)
def test_another_adapter_has_another_root():
    expect(differ((None, A), (None, B), (None, b"")), 3)


@invariant(1)
def test_one_byte_is_enough():
    others = [A[:at] + b"b" + A[at + 1 :] for at in range(32)]
    expect(differ((None, A), *((None, other) for other in others)), 33)


@invariant(1)
def test_so_many_adapters_need_as_many_bytes():
    expect(len(root_of("s", A)) >= 32, True)


@invariant(1)
def test_another_salt_has_another_root():
    expect(differ(("s", A), ("t", A), (None, A)), 3)


@invariant(1)
def test_every_character_of_a_salt_counts():
    salts = ["s", "S", "s ", " s", "é", r"\xe9", "s" * 1000, "s" * 1000 + "t"]
    expect(differ(*((salt, A) for salt in salts)), len(salts))


@invariant(1)
def test_the_same_have_the_same():
    expect(root_of("s", A) == root_of("s", bytes(bytearray(A))), True)


@invariant(2)
@pytest.mark.parametrize("adapter", [b"", A])
def test_no_salt_is_not_an_empty_one(adapter):
    expect(differ((None, adapter), ("", adapter)), 2)
    expect(differ((None, adapter), ("", adapter), ("None", adapter)), 3)


@invariant(3)
def test_neither_begins_as_ever():
    expect(root_of(None, b""), b"")


@invariant(4)
def test_no_salt_looks_like_an_adapter():
    texts = [
        "a" * 32,
        "lora" + "a" * 32,
        "salt" + "a" * 32,
        "lora" + "a" * 32 + "salts",
        "a" * 32 + "s",
        "a" * 32 + "salts",
    ]
    expect(differ((None, A), ("s", A), *((text, b"") for text in texts)), 2 + len(texts))


@invariant(4)
@pytest.mark.parametrize("word", ["", "lora", "adapter", "-", ":", "\0"])
def test_nor_may_one_that_ends_like_an_adapter(word):
    expect(differ(("s", A), ("s" + word + "a" * 32, b"")), 2)


@invariant(4)
@pytest.mark.parametrize("word", ["salt", "lora", "none"])
def test_an_adapter_may_begin_like_a_word(word):
    adapter, rest = word.encode() + b"a" * 28, "a" * 28
    expect(differ((None, adapter), ("s", adapter), (rest, b""), (rest + "s", b""), (rest + "salts", b"")), 5)


@invariant(4)
@pytest.mark.parametrize("byte", list(b"\0\n ,-/:;_|"))
def test_an_adapter_may_begin_with_any_byte(byte):
    salts = [chr(byte) * length for length in range(24, 33)]
    expect(differ((None, bytes([byte]) * 32), *((salt, b"") for salt in salts)), 1 + len(salts))


@invariant(4)
def test_a_lone_surrogate_is_a_salt_like_any_other():
    expect(differ(("\ud800", A), ("\ud801", A)), 2)
