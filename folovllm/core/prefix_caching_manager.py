"""Prefix caching: a sequence begins with the blocks that others have computed of the same tokens.

    first request    [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .]    computes 4 blocks, leaves them behind
    second           [S y s t e m  p r o m p t . . . |Q 2 . . . .]        takes 2 of them, computes the rest
    next turn        [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .|Q 3]    takes all 4: answers are kept like prompts

Only full blocks are cached, since the others still change. The block of a prompt's last token is never taken, even if
it is there. At least one token must be computed, for the logits to draw from, and its keys and values need a block that
may be written.

A block is cached when the step that filled it is known to have gone well. If another block holds the same already
(equal prompts in one step), the sequence takes that one and gives its own back, and so do its forks.

vLLM: v1/core/kv_cache_manager.py (get_computed_blocks, cache_blocks). Chains of hashes are vLLM's way; a radix tree
over tokens is SGLang's (Zheng et al., 2024, arXiv:2312.07104).
"""

from __future__ import annotations

from folovllm.core.block_hash import Digest, HashChain, digest_sha256
from folovllm.core.block_pool import NULL_BLOCK, BlockPool
from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.core.kv_cache_manager import BlockPairs, KVCacheManager
from folovllm.request import Request, Sequence, SequenceStatus


class PrefixCachingManager(KVCacheManager):
    """A KVCacheManager whose blocks are found again.

    Args:
        digest: hashes blocks; tests give a weak one.

    Attributes:
        num_queries, num_hits: prompt tokens of the requests that were let in, and how many of them were found.
    """

    pool: CachedBlockPool

    def __init__(
        self, num_blocks: int, block_size: int, num_swap_blocks: int = 0, digest: Digest = digest_sha256
    ) -> None:
        self._digest = digest
        self._chains: dict[Sequence, HashChain] = {}
        self._num_cached: dict[Sequence, int] = {}  # leading blocks of its table that can be found
        self._outdated: set[Sequence] = set()  # have blocks from before a reset
        self._first_seqs: dict[Sequence, Request] = {}  # of requests that have not been let in
        self.num_queries = self.num_hits = 0
        super().__init__(num_blocks, block_size, num_swap_blocks)

    def clear(self) -> None:
        self.pool = CachedBlockPool(self.num_blocks)
        self.swap_pool = BlockPool(self.num_swap_blocks)
        self._num_cached.clear()
        self._outdated.clear()

    def get_computed_blocks(self, request: Request, seq: Sequence) -> bool:
        """What a sibling has computed, else the cached blocks that hold its first tokens."""
        if seq not in self._chains:  # a sequence that comes back keeps its hashes
            self._chains[seq] = HashChain(seq.data, self.block_size, request.cache_salt, self._digest)
        if super().get_computed_blocks(request, seq):
            return True
        if request.num_cached_tokens is None:
            self._first_seqs[seq] = request
        if not _needs_every_logit(seq):
            self._take_cached(seq)
        return False

    def _take_cached(self, seq: Sequence) -> None:
        """Give `seq`, which has no blocks, the longest cached prefix that leaves one token to compute."""
        chain, block_ids, parent = self._chains[seq], list[int](), NULL_BLOCK
        for place in range((seq.get_len() - 1) // self.block_size):
            found = self.pool.get_cached_block(chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt)
            if found is None:
                break
            block_ids.append(found)
            parent = found
        self.pool.touch(block_ids)
        seq.block_ids = block_ids
        self._num_cached[seq] = len(block_ids)
        seq.num_computed_tokens = len(block_ids) * self.block_size

    def allocate_slots(self, wants: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        """A request counts as a query when its first sequence is let in. Later ones, and those that come back, do not
        count."""
        pairs = super().allocate_slots(wants, keep_free)
        if pairs is not None and self._first_seqs:
            for seq, _ in wants:
                if (request := self._first_seqs.pop(seq, None)) is not None:
                    request.num_cached_tokens = seq.num_computed_tokens
                    self.num_queries += seq.get_prompt_len()
                    self.num_hits += seq.num_computed_tokens
        return pairs

    def cache_blocks(self, seq: Sequence) -> list[Sequence]:
        num_full = seq.num_computed_tokens // self.block_size
        if seq in self._outdated:
            return []
        before = list(seq.block_ids)
        self._num_cached[seq], changed = self.pool.cache_full_blocks(
            self._chains[seq], seq.block_ids, self._num_cached.get(seq, 0), num_full
        )
        return [seq, *self._let_siblings_follow(seq, before)] if changed else []

    def _let_siblings_follow(self, seq: Sequence, before: list[int]) -> list[Sequence]:
        """The table of `seq` was `before`. Its forks name the blocks that it gave back, and must take the ones that it
        took, too. Else a block of theirs might be found behind a block to which they hold no reference."""
        followers = []
        swapped = [place for place, block_id in enumerate(before) if block_id != seq.block_ids[place]]
        for other in self._chains:
            if other is seq or other.request_id != seq.request_id or other.status is not SequenceStatus.RUNNING:
                continue
            table = other.block_ids
            places = [place for place in swapped if place < len(table) and table[place] == before[place]]
            for place in places:
                self.pool.touch([seq.block_ids[place]])
                self.pool.free_blocks([table[place]])
                table[place] = seq.block_ids[place]
            if places:
                followers.append(other)
        return followers

    def forget(self, seq: Sequence) -> None:
        self._chains.pop(seq, None)

    def reset_prefix_cache(self) -> None:
        """Nothing that has been computed so far is found any more, nor what will be computed behind it."""
        self.pool.reset_prefix_cache()
        self._outdated.update(seq for seq in self._chains if seq.block_ids)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        super().fork(parent, child, num_tokens)
        num_full = num_tokens // self.block_size
        self._chains[child] = self._chains[parent].fork(child.data, num_full)
        self._num_cached[child] = min(self._num_cached.get(parent, 0), num_full)
        if parent in self._outdated:
            self._outdated.add(child)

    def swap_out(self, seqs: list[Sequence]) -> BlockPairs | None:
        moves = super().swap_out(seqs)
        if moves is not None:
            for seq in seqs:
                self._num_cached.pop(seq, None)  # it will come back into other blocks
        return moves

    def _clear_table(self, seq: Sequence) -> None:
        super()._clear_table(seq)
        self._num_cached.pop(seq, None)
        self._outdated.discard(seq)
        self._first_seqs.pop(seq, None)


def _needs_every_logit(seq: Sequence) -> bool:
    """Log-probabilities of prompt tokens come from the logits of all of them, so none may be skipped."""
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0
