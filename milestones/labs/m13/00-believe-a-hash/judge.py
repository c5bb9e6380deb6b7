import pytest

from folovllm.core.kv_offload import HostBlock, OffloadingManager
from lab_judge import expect, invariant

FIRST = HostBlock(3, b"", (1, 2))
SECOND = HostBlock(5, b"one", (7, 8))


def manager():
    made = OffloadingManager(2, 4)
    made.known[b"one"], made.known[b"two"] = FIRST, SECOND
    return made


@invariant(1)
def test_what_is_wanted_is_found():
    expect(manager().find(b"two", b"one", (7, 8)), SECOND)


@invariant(1)
def test_the_first_block_has_no_parent():
    expect(manager().find(b"one", b"", (1, 2)), FIRST)


@invariant(2)
def test_an_unknown_hash():
    expect(manager().find(b"three", b"two", (1, 2)), None)


@invariant(2)
def test_what_another_manager_knows_is_unknown_here():
    manager().find(b"two", b"one", (7, 8))
    expect(OffloadingManager(2, 4).find(b"two", b"one", (7, 8)), None)


@invariant(2)
def test_what_has_made_room_is_unknown():
    made = manager()
    expect([made.find(b"two", b"one", (7, 8)) for _ in range(2)], [SECOND, SECOND])
    del made.known[b"two"]
    expect(made.find(b"two", b"one", (7, 8)), None)


@invariant(3)
@pytest.mark.parametrize("tokens", [(7, 9), (9, 8), (8, 7), (6, 9), (7,), (7, 8, 9), ()])
def test_other_tokens(tokens):
    expect(manager().find(b"two", b"one", tokens), None)


@invariant(3)
@pytest.mark.parametrize("parent", [b"", b"two", b"one ", b"on"])
def test_another_parent(parent):
    expect(manager().find(b"two", parent, (7, 8)), None)


@invariant(3)
def test_the_first_block_stands_behind_no_other():
    expect(manager().find(b"one", b"two", (1, 2)), None)


@invariant(4)
@pytest.mark.parametrize("tokens", [[7, 8], range(7, 9)])
def test_any_sequence_of_tokens(tokens):
    expect(manager().find(b"two", b"one", tokens), SECOND)


@invariant(4)
def test_nothing_is_changed():
    made, tokens = manager(), [1, 2]
    made.find(b"one", b"", tokens)
    expect(tokens, [1, 2])
    made.find(b"three", b"", [1, 2])
    made.find(b"one", b"", [1, 3])
    made.find(b"one", b"two", [1, 2])
    expect(list(made.known.items()), [(b"one", FIRST), (b"two", SECOND)])
