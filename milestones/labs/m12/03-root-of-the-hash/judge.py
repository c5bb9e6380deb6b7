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
def test_another_salt_has_another_root():
    expect(differ(("s", A), ("t", A), (None, A)), 3)


@invariant(1)
def test_the_same_have_the_same():
    expect(root_of("s", A) == root_of("s", bytes(A)), True)


@invariant(2)
@pytest.mark.parametrize("adapter", [b"", A])
def test_no_salt_is_not_an_empty_one(adapter):
    expect(differ((None, adapter), ("", adapter)), 2)


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
def test_a_lone_surrogate_is_a_salt_like_any_other():
    expect(differ(("\ud800", A), ("\ud801", A)), 2)
