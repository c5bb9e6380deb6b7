from array import array

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


class Shelf:
    """In the pool's place: {block: all tokens up to its end}, of 4 tokens each as a rule. It notes the blocks that are
    touched, and the tokens it is asked for."""

    def __init__(self, contents, cache_salt=None, size=4):
        self.size = size
        self.contents, self.cache_salt, self.touched, self.asked = contents, cache_salt, [], []

    def get_cached_block(self, block_hash, parent, token_ids, cache_salt):
        self.asked.append(list(token_ids))
        for block, tokens in self.contents.items():
            parents = [b for b, before in self.contents.items() if before == tokens[: -self.size]] or [0]
            salt = b"" if self.cache_salt is None else b"salt" + self.cache_salt.encode()
            wanted = (salt + array("q", tokens).tobytes(), parents[0], tokens[-self.size :], self.cache_salt)
            if (block_hash, parent, list(token_ids), cache_salt) == wanted:
                return block
        return None

    def touch(self, block_ids):
        self.touched += block_ids


def take(prompt, shelf, output=(), cache_salt=None):
    """A sequence without blocks, and its manager. Hashes are the bytes of all tokens, as the shelf wants them."""
    kv = KVCacheManager(num_blocks=9, block_size=shelf.size, enable_prefix_caching=True, digest=lambda data: data)
    kv.pool = shelf
    request = Request("r", None, prompt, SamplingParams(), cache_salt=cache_salt)
    request.get_seqs()[0].data.output_token_ids += output
    kv.get_computed_blocks(request, request.get_seqs()[0])
    return request.get_seqs()[0], kv


ONE = list(range(1, 5))
TWO = list(range(1, 9))
THREE = list(range(1, 13))


@invariant(1)
def test_blocks_are_found_one_behind_the_other():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, _ = take([*THREE, 20, 21], shelf)
    expect(seq.block_ids, [4, 7, 2])


@invariant(1)
def test_another_beginning_finds_nothing():
    shelf = Shelf({4: ONE, 7: TWO})
    seq, _ = take([0, 2, 3, 4, 5, 6, 7, 8, 9], shelf)
    expect(seq.block_ids, [])


@invariant(1)
def test_the_pool_is_asked_for_the_sequences_salt():
    shelf = Shelf({4: ONE, 7: TWO}, cache_salt="mine")
    expect(take([*TWO, 9], shelf, cache_salt="mine")[0].block_ids, [4, 7])


@invariant(2)
def test_the_search_ends_where_the_prompts_part():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, _ = take([*ONE, 50, 51, 52, 53, 9, 10, 11, 12, 13], shelf)
    expect(seq.block_ids, [4])


@invariant(2)
def test_nothing_behind_it_is_asked_for():
    shelf = Shelf({4: ONE})
    take([*THREE, 13], shelf)
    expect(shelf.asked, [[1, 2, 3, 4], [5, 6, 7, 8]])


@invariant(3)
def test_the_block_of_the_last_token_is_not_taken():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, _ = take(THREE, shelf)
    expect(seq.block_ids, [4, 7])


@invariant(3)
def test_with_one_token_more_all_three_are():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, _ = take([*THREE, 13], shelf)
    expect(seq.block_ids, [4, 7, 2])


@invariant(3)
def test_a_sequence_that_comes_back_finds_its_answer_too():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, _ = take(ONE, shelf, output=[*THREE[4:], 13])
    expect(seq.block_ids, [4, 7, 2])


@invariant(3)
def test_neither_is_the_only_block():
    expect(take(ONE, Shelf({4: ONE}))[0].block_ids, [])


@invariant(4)
def test_what_is_taken_is_touched():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    take([*TWO, 60, 61], shelf)
    expect(sorted(shelf.touched), [4, 7])


@invariant(4)
def test_what_is_not_taken_is_not_touched():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    take(THREE, shelf)
    expect(sorted(shelf.touched), [4, 7])


@invariant(5)
def test_their_tokens_count_as_computed():
    shelf = Shelf({4: ONE, 7: TWO, 2: THREE})
    seq, kv = take([*TWO, 60, 61], shelf)
    expect((seq.num_computed_tokens, kv._num_cached[seq]), (8, 2))


@invariant(5)
def test_where_nothing_is_found_nothing_is_computed():
    shelf = Shelf({})
    seq, kv = take(THREE, shelf)
    expect((seq.block_ids, seq.num_computed_tokens, kv._num_cached[seq]), ([], 0, 0))


@invariant(5)
def test_blocks_of_two_tokens():
    shelf = Shelf({4: [1, 2], 7: [1, 2, 3, 4]}, size=2)
    seq, _ = take([1, 2, 3, 4, 5], shelf)
    expect((seq.block_ids, seq.num_computed_tokens), ([4, 7], 4))


@invariant(5)
def test_other_sequences_keep_their_count():
    shelf = Shelf({4: ONE, 7: TWO})
    seq, kv = take([*TWO, 60], shelf)
    other = Request("s", None, [*ONE, 70], SamplingParams())
    kv.get_computed_blocks(other, other.get_seqs()[0])
    expect((kv._num_cached[seq], kv._num_cached[other.get_seqs()[0]]), (2, 1))
