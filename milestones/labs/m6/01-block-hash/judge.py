from array import array
from hashlib import sha256
from struct import pack

from folovllm.core.block_hash import HashChain
from folovllm.request import SequenceData
from lab_judge import expect, invariant


def bare_chain(prompt, output=()):
    """Blocks of 4, and a digest that changes nothing: a hash is then all that was hashed, one after the other."""
    return HashChain(SequenceData(list(prompt), list(output)), 4, None, digest=lambda data: data)


def hashed(block_hash):
    """The numbers in a hash of a bare chain; its root is empty."""
    return array("q", block_hash).tolist()


@invariant(1)
def test_the_tokens_of_a_block_in_the_prompt():
    chain = bare_chain([1, 2, 3, 4, 5, 6, 7, 8, 9])
    expect(list(chain.tokens(0)), [1, 2, 3, 4])
    expect(list(chain.tokens(1)), [5, 6, 7, 8])


@invariant(1)
def test_the_tokens_of_a_block_in_the_answer():
    chain = bare_chain(prompt=[1, 2, 3, 4], output=[11, 12, 13, 14, 15, 16, 17, 18])
    expect(list(chain.tokens(1)), [11, 12, 13, 14])
    expect(list(chain.tokens(2)), [15, 16, 17, 18])


@invariant(1)
def test_a_block_that_begins_in_the_prompt_and_ends_in_the_answer():
    chain = bare_chain(prompt=[1, 2, 3, 4, 5, 6], output=[11, 12, 13])
    expect(list(chain.tokens(1)), [5, 6, 11, 12])


@invariant(1)
def test_the_lists_stay_as_they_are():
    data = SequenceData([1, 2, 3, 4, 5], [11, 12, 13])
    HashChain(data, 4, None, digest=lambda data: data).tokens(1)
    expect((data.prompt_token_ids, data.output_token_ids), ([1, 2, 3, 4, 5], [11, 12, 13]))


@invariant(2)
def test_the_first_hash_is_over_the_first_tokens():
    chain = bare_chain([1, 2, 3, 4, 5, 6, 7, 8])
    expect(hashed(chain.block_hash(0)), [1, 2, 3, 4])


@invariant(2)
def test_in_front_of_them_stands_the_root():
    chain = HashChain(SequenceData([1, 2, 3, 4]), 4, cache_salt="blue")
    root, ids = sha256(b"saltblue").digest(), pack("=4q", 1, 2, 3, 4)
    expect(chain.block_hash(0).hex()[:8], sha256(root + ids).hexdigest()[:8])


@invariant(2)
def test_a_token_may_be_large():
    expect(hashed(bare_chain([151643, 1, 2, 3]).block_hash(0)), [151643, 1, 2, 3])


@invariant(3)
def test_a_hash_holds_all_that_stands_before():
    chain = bare_chain([1, 2, 3, 4, 5, 6, 7, 8])
    expect(hashed(chain.block_hash(1)), [1, 2, 3, 4, 5, 6, 7, 8])


@invariant(3)
def test_equal_tokens_behind_others_have_another_hash():
    a = HashChain(SequenceData([1, 2, 3, 4, 5, 6, 7, 8]), 4, None)
    c = HashChain(SequenceData([0, 2, 3, 4, 5, 6, 7, 8]), 4, None)
    expect(a.block_hash(1) == c.block_hash(1), False)


@invariant(4)
def test_hashes_may_be_asked_for_in_any_order():
    chain = bare_chain(range(12))
    expect(hashed(chain.block_hash(2)), list(range(12)))
    expect(hashed(chain.block_hash(0)), [0, 1, 2, 3])


@invariant(4)
def test_a_hash_is_computed_once():
    lengths = []
    chain = HashChain(SequenceData(list(range(12))), 4, None, digest=lambda data: lengths.append(len(data)) or b"")
    for place in (2, 2, 1, 0):
        chain.block_hash(place)
    expect(lengths, [0, 32, 32, 32])


@invariant(4)
def test_a_chain_grows_with_its_answer():
    data = SequenceData([1, 2, 3, 4, 5], [])
    chain = HashChain(data, 4, None, digest=lambda data: data)
    chain.block_hash(0)
    data.output_token_ids += [6, 7, 8]
    expect(hashed(chain.block_hash(1)), [1, 2, 3, 4, 5, 6, 7, 8])
