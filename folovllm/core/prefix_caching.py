"""Prefix caching: a sequence begins with the blocks that others have computed of the same tokens.

    first request    [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .]    computes 4 blocks, leaves them behind
    second           [S y s t e m  p r o m p t . . . |Q 2 . . . .]        takes 2 of them, computes the rest
    next turn        [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .|Q 3]    takes all 4: answers are kept like prompts

Only full blocks have a name, since the others still change. The block of a prompt's last token is never taken, even if
it is there: at least one token must be computed, for the logits to draw from, and its keys and values must have a block
that may be written.

Blocks get their names when their tokens have been computed. If there is one of that name already (equal prompts in one
step), the sequence takes that one and gives its own back.

vLLM: v1/core/kv_cache_manager.py (get_computed_blocks, cache_blocks). Chains of hashes are vLLM's way; a radix tree
over tokens is SGLang's (Zheng et al., 2024, arXiv:2312.07104).
"""

from __future__ import annotations

from folovllm.core.block_hash import Digest, HashChain, digest_sha256
from folovllm.core.block_pool import NULL_BLOCK, BlockPool
from folovllm.core.kv_cache_manager import BlockPairs, KVCacheManager
from folovllm.core.prefix_cache import CachedBlockPool
from folovllm.request import Sequence


class PrefixCachingManager(KVCacheManager):
    """A KVCacheManager whose blocks are found again.

    Args:
        digest: names blocks; tests give a weak one.
    """

    pool: CachedBlockPool

    def __init__(
        self, num_blocks: int, block_size: int, num_swap_blocks: int = 0, digest: Digest = digest_sha256
    ) -> None:
        self._digest = digest
        self._chains: dict[Sequence, HashChain] = {}
        self._num_named: dict[Sequence, int] = {}  # leading blocks of its table that can be found
        self._outdated: set[Sequence] = set()  # have blocks from before a reset
        self.num_queries = self.num_hits = 0  # tokens
        super().__init__(num_blocks, block_size, num_swap_blocks)

    def clear(self) -> None:
        self.pool = CachedBlockPool(self.num_blocks)
        self.swap_pool = BlockPool(self.num_swap_blocks)
        self._num_named.clear()
        self._outdated.clear()

    def begin(self, seq: Sequence, cache_salt: str | None) -> None:
        """A sequence is about to get its first block. One that comes back keeps the names it has."""
        if seq not in self._chains:
            self._chains[seq] = HashChain(seq.data, self.block_size, cache_salt, self._digest)

    def end(self, seq: Sequence) -> None:
        """A sequence has ended."""
        self._chains.pop(seq, None)

    def take_cached(self, seq: Sequence) -> int:
        """Give `seq`, which has no blocks, those that hold its first tokens. Returns how many tokens that are."""
        chain, block_ids, parent = self._chains[seq], list[int](), NULL_BLOCK
        for place in range((seq.get_len() - 1) // self.block_size):
            found = self.pool.find(chain.name(place), parent, chain.tokens(place), chain.cache_salt)
            if found is None:
                break
            block_ids.append(found)
            parent = found
        self.pool.share(block_ids)
        seq.block_ids = block_ids
        self._num_named[seq] = len(block_ids)
        seq.num_computed_tokens = len(block_ids) * self.block_size
        return seq.num_computed_tokens

    def cache_blocks(self, seq: Sequence) -> bool:
        """Name the blocks of a running sequence that have become full. True when its table has changed."""
        named, num_full = self._num_named.get(seq, 0), seq.num_computed_tokens // self.block_size
        if named >= num_full or seq in self._outdated:
            return False
        chain, table, changed = self._chains[seq], seq.block_ids, False
        for place in range(named, num_full):
            name, token_ids = chain.name(place), chain.tokens(place)
            parent = table[place - 1] if place else NULL_BLOCK
            found = self.pool.find(name, parent, token_ids, chain.cache_salt)
            if found is None:
                if not self.pool.keep(table[place], name, parent, token_ids, chain.cache_salt):
                    return changed  # nor can be what comes behind it
            elif found != table[place]:
                self.pool.share([found])
                self.pool.free([table[place]])
                table[place] = found
                changed = True
            self._num_named[seq] = place + 1
        return changed

    def reset(self) -> None:
        """Nothing that has been computed so far is found any more, nor what will be computed behind it."""
        self.pool.forget_all()
        self._outdated.update(seq for seq in self._chains if seq.block_ids)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        super().fork(parent, child, num_tokens)
        num_full = num_tokens // self.block_size
        self._chains[child] = self._chains[parent].fork(child.data, num_full)
        self._num_named[child] = min(self._num_named.get(parent, 0), num_full)
        if parent in self._outdated:
            self._outdated.add(child)

    def swap_out(self, seqs: list[Sequence]) -> BlockPairs | None:
        moves = super().swap_out(seqs)
        if moves is not None:
            for seq in seqs:
                self._num_named.pop(seq, None)  # it will come back into other blocks
        return moves

    def _forget(self, seq: Sequence) -> None:
        super()._forget(seq)
        self._num_named.pop(seq, None)
        self._outdated.discard(seq)
