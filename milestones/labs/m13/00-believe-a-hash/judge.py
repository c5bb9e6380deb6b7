from folovllm.core.kv_offload import HostBlock, OffloadingManager
from lab_judge import expect, invariant

FIRST = HostBlock(3, b"", (1, 2))
SECOND = HostBlock(5, b"one", (7, 8))


def manager():
    made = OffloadingManager(2, 4)
    made._known[b"one"], made._known[b"two"] = FIRST, SECOND
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


@invariant(3)
def test_other_tokens():
    expect(manager().find(b"two", b"one", (7, 9)), None)


@invariant(3)
def test_another_parent():
    expect(manager().find(b"two", b"", (7, 8)), None)


@invariant(4)
def test_a_list_of_tokens():
    expect(manager().find(b"two", b"one", [7, 8]), SECOND)


@invariant(4)
def test_nothing_is_changed():
    made = manager()
    made.find(b"one", b"", [1, 2])
    made.find(b"three", b"", [1, 2])
    expect(list(made._known.items()), [(b"one", FIRST), (b"two", SECOND)])
