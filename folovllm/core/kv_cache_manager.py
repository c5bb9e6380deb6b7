"""Block tables: which blocks hold each sequence's keys and values, and which of them were there before it came.

    sequence A, 10 tokens, block_size 4      block_ids [3, 7, 2]     token 9 is in block 2 at offset 1: slot 2 * 4 + 1
    its fork B, after 1 token more           block_ids [3, 7, 5]     3 and 7 are shared, 5 is B's copy of 2

A table grows block by block as tokens come, so no sequence holds more than block_size - 1 unused slots. A fork names
its parent's blocks. The first sequence that writes into a block which others name as well gets a copy of it
(copy-on-write).

    first request    [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .]    computes 4 blocks, leaves them behind
    second           [S y s t e m  p r o m p t . . . |Q 2 . . . .]        takes 2 of them, computes the rest
    next turn        [S y s t e m  p r o m p t . . . |Q 1 . . A 1 . .|Q 3]    takes all 4: answers are kept like prompts

Prefix caching: only full blocks are cached, since the others still change, and only when the step that filled them is
known to have gone well. The block of a prompt's last token is never taken, even if it is there. At least one token must
be computed, for the logits to draw from, and its keys and values need a block that may be written.

Layers with a window are groups of their own, each with a table (kv_cache_groups.py). All tables of a sequence are
equally long. The beginning of one may be null blocks, since the keys there are out of each further query's window.

Paging: Kwon et al., SOSP 2023. vLLM: v1/core/kv_cache_manager.py (get_computed_blocks, cache_blocks),
v1/core/single_type_kv_cache_manager.py (remove_skipped_blocks); swapping and forks: V0's core/block_manager.py. Chains
of hashes are vLLM's way; a radix tree over tokens is SGLang's (Zheng et al., 2024, arXiv:2312.07104).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from folovllm.core.block_hash import Digest, HashChain, digest_sha256
from folovllm.core.block_pool import NULL_BLOCK, BlockPool
from folovllm.core.group_tables import (
    cache_group,
    check_tables,
    find_prefix,
    free_outside_windows,
    get_block_ids,
    parents_of,
    serves,
)
from folovllm.core.kv_offload import AllTiers, OffloadingManager, PromotingPool
from folovllm.core.scheduler_output import BlockPairs
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.request import Request, Sequence, SequenceStatus


class KVCacheManager:
    """Owns the pool of the device's blocks and that of the swap space's; writes Sequence.block_ids and further_tables.

    A SWAPPED sequence's tables name blocks of the swap pool.

    Args:
        enable_prefix_caching: a sequence begins with the blocks that others have computed of the same tokens.
        digest: hashes blocks; tests give a weak one.
        groups: of the model's layers; None: one, whose layers keep all keys.
        offload: keeps blocks beyond the pool; None: what the pool evicts is gone.

    Attributes:
        num_queries, num_hits: prompt tokens of the requests that were let in, and how many of them were found.
        num_external_hits: of these, how many had left the pool.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        *,
        enable_prefix_caching: bool = False,
        digest: Digest = digest_sha256,
        groups: KVCacheGroups | None = None,
        offload: OffloadingManager | None = None,
    ) -> None:
        self.offload = offload
        self.block_size, self.enable_prefix_caching = block_size, enable_prefix_caching
        self.groups = groups or KVCacheGroups(block_size=block_size)
        self.num_groups, self._have_windows = len(self.groups.windows), self.groups.have_windows
        self._is_one = self.num_groups == 1
        self.num_blocks, self.num_swap_blocks = num_blocks, num_swap_blocks
        self._digest = digest
        self._chains: dict[Sequence, HashChain] = {}
        self._num_cached: dict[Sequence, int] = {}  # leading blocks of its table that can be found
        self._outdated: set[Sequence] = set()  # have blocks from before a reset
        self._first_seqs: dict[Sequence, Request] = {}  # of requests that have not been let in
        self._external: dict[Sequence, int] = {}  # tokens that were not in the pool, of those that were not let in
        self.num_queries = self.num_hits = self.num_external_hits = 0
        self.clear()

    def clear(self, seqs: Iterable[Sequence] = ()) -> None:
        """All blocks are free again, whichever tables name them, and none is found. These sequences have none."""
        store = None if self.offload is None else self.offload.store
        self.pool = BlockPool(self.num_blocks, enable_caching=self.enable_prefix_caching, store=store)
        if self.offload is not None:
            self.offload.clear()
        self.swap_pool = BlockPool(self.num_swap_blocks)
        self._num_cached.clear()
        self._outdated.clear()
        for seq in seqs:
            self._clear_table(seq)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def has_slot(self, seq: Sequence) -> bool:
        """Whether the next token's keys and values go into a block that is begun, and that no other table names."""
        num_tokens = seq.num_computed_tokens
        return (
            num_tokens % self.block_size > 0
            and self.pool.may_write(seq.block_ids[num_tokens // self.block_size])
            and (self._is_one or self._may_write_further(seq))
        )

    def _may_write_further(self, seq: Sequence) -> bool:
        place = seq.num_computed_tokens // self.block_size
        return all(self.pool.may_write(table[place]) for table in seq.further_tables)

    def allocate_slots(self, seq_tokens: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        """Make room for the tokens that each sequence computes next, (sequence, how many): for all of them or for none.

        Returns the copies that must be made before they are written, or None when fewer than keep_free blocks would
        stay free. A request counts as a query when its first sequence is let in; later ones, and those that come back,
        do not count.
        """
        if self._have_windows:
            for seq, _ in seq_tokens:
                free_outside_windows(self.pool, self.groups, seq)
        if self._blocks_needed(seq_tokens) + keep_free > self.pool.num_free:
            return None
        pairs: BlockPairs = []
        for seq, num_tokens in seq_tokens:
            start = seq.num_computed_tokens
            first = start // self.block_size  # the first block that is written to
            tables = (seq.block_ids,) if self._is_one else seq.tables
            if first < len(seq.block_ids):
                for table in tables:
                    if not self.pool.may_write(table[first]):
                        shared = table[first]
                        table[first] = self.pool.get_new_blocks(1, after=shared)[0]
                        self.pool.free_blocks([shared])
                        pairs.append((shared, table[first]))
            num_new = self.blocks_for(start + num_tokens) - len(seq.block_ids)
            if num_new > 0:
                for table in tables:
                    table += self.pool.get_new_blocks(num_new, after=table[-1] if table else 0)
            if self._first_seqs and (request := self._first_seqs.pop(seq, None)) is not None:
                request.num_cached_tokens = start
                self.num_queries += seq.get_prompt_len()
                self.num_hits += start
                self.num_external_hits += min(start, self._external.pop(seq, 0))  # some may be gone again
        return pairs

    def _blocks_needed(self, seq_tokens: list[tuple[Sequence, int]]) -> int:
        """How many new blocks that takes, for growing tables and for copies (BlockPool.copies_needed)."""
        needed = 0
        writers: dict[int, int] = {}
        for seq, num_tokens in seq_tokens:
            start = seq.num_computed_tokens
            needed += max(0, self.blocks_for(start + num_tokens) - len(seq.block_ids))
            first = start // self.block_size
            if first < len(seq.block_ids):
                for table in seq.tables:
                    if not self.pool.may_write(table[first]):
                        writers[table[first]] = writers.get(table[first], 0) + 1
        return needed * self.num_groups + sum(self.pool.copies_needed(block, count) for block, count in writers.items())

    def blocks_to_come(self, seq: Sequence, num_held: int, num_tokens: int) -> int:
        """KVCacheGroups.blocks_to_come, for a sequence whose tables have num_held entries."""
        if self._is_one and not self._have_windows:
            return max(0, self.blocks_for(num_tokens) - num_held)
        return self.groups.blocks_to_come(seq.num_computed_tokens, num_held, num_tokens)

    def allocate_lookahead(self, seq: Sequence, num_tokens: int, keep_free: int) -> int:
        """Make room for draft tokens behind all tokens of a running sequence. Returns for how many: less than
        `num_tokens` where fewer than keep_free blocks would stay free."""
        free_outside_windows(self.pool, self.groups, seq)
        num_new = self.blocks_for(seq.get_len() + num_tokens) - len(seq.block_ids)
        if num_new > 0:
            if self.pool.num_free - num_new * self.num_groups < keep_free:
                return min(num_tokens, len(seq.block_ids) * self.block_size - seq.get_len())
            for table in seq.tables:
                table += self.pool.get_new_blocks(num_new, after=table[-1])
        return num_tokens

    def accept_draft_tokens(self, seq: Sequence, num_accepted: int) -> None:
        """A step is over that had draft tokens of a running sequence, whose new tokens are appended: so many of the
        draft tokens count as computed. Blocks behind the sequence's last token are freed, the last one first."""
        seq.num_computed_tokens += num_accepted
        num_needed = self.blocks_for(seq.get_len())
        for table in seq.tables:
            self.pool.free_blocks(reversed(table[num_needed:]))
            del table[num_needed:]

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """`child`, which has no blocks, gets the first `num_tokens` tokens of `parent`: shared, not copied."""
        child.block_ids, *child.further_tables = (table[: self.blocks_for(num_tokens)] for table in parent.tables)
        child.num_computed_tokens = num_tokens
        self.pool.touch(get_block_ids(child))
        if self.enable_prefix_caching:
            num_full = num_tokens // self.block_size
            self._chains[child] = self._chains[parent].fork(child.data, num_full)
            self._num_cached[child] = min(self._num_cached.get(parent, 0), num_full)
            if parent in self._outdated:
                self._outdated.add(child)

    def get_computed_blocks(self, request: Request, seq: Sequence) -> bool:
        """Give `seq`, which has no blocks, those that hold its first tokens already: the ones that a running sequence
        of the same `request` has computed, else cached ones. Returns whether it shares blocks of such a sequence.
        """
        seq.further_tables = [[] for _ in range(self.num_groups - 1)]
        if self.enable_prefix_caching:
            self._begin_chain(request, seq)
        shared, donor = 0, seq
        for sibling in request.get_seqs(SequenceStatus.RUNNING):
            common = min(common_prefix(sibling, seq), sibling.num_computed_tokens)
            if common > shared and serves(self.groups, sibling.tables, min(common, seq.get_len() - 1)):
                shared, donor = common, sibling
        if shared:
            self.fork(donor, seq, min(shared, seq.get_len() - 1))  # the last token is computed, for its logits
            return True
        if self.enable_prefix_caching:
            if request.num_cached_tokens is None:
                self._first_seqs[seq] = request
            if not _needs_every_row(seq):
                self._take_cached(seq)
        return False

    def _begin_chain(self, request: Request, seq: Sequence) -> HashChain:
        if seq not in self._chains:  # a sequence that comes back keeps its hashes
            adapter = b"" if request.lora is None else request.lora.digest
            self._chains[seq] = HashChain(seq.data, self.block_size, request.cache_salt, self._digest, adapter)
        return self._chains[seq]

    def prefetch(self, request: Request) -> None:
        """A request has come. What the tier behind host memory alone has of its prompt is read meanwhile."""
        seq = request.get_seqs()[0]
        if self.offload is None or self.offload.secondary is None or _needs_every_row(seq):
            return
        tiers, chain = AllTiers(self.pool, self.offload), self._begin_chain(request, seq)
        find_prefix(tiers.get_cached_block, self.groups, chain, (seq.get_len() - 1) // self.block_size)
        self.offload.prefetch(request, tiers.found)

    def _take_cached(self, seq: Sequence) -> None:
        """Give `seq`, which has no blocks, the longest cached prefix that leaves one token to compute."""
        most = (seq.get_len() - 1) // self.block_size
        tiers = self.pool if self.offload is None else PromotingPool(self.pool, self.offload)
        seq.block_ids, *seq.further_tables = find_prefix(tiers.get_cached_block, self.groups, self._chains[seq], most)
        self.pool.touch(get_block_ids(seq))
        if isinstance(tiers, PromotingPool):
            tiers.release()
            external = sum(not tiers.promoted.isdisjoint(blocks) for blocks in zip(*seq.tables, strict=True))
            self._external[seq] = max(self._external.get(seq, 0), external * self.block_size)
        self._num_cached[seq] = len(seq.block_ids)
        seq.num_computed_tokens = len(seq.block_ids) * self.block_size

    def cache_blocks(self, seq: Sequence) -> list[Sequence]:
        """A running sequence has computed the last token of a block: its full blocks are kept for others. If another
        block holds the same already (equal prompts in one step), the sequence takes that one and gives its own back,
        and so do its forks. Returns the sequences whose tables have changed by it.
        """
        if not self.enable_prefix_caching or seq in self._outdated:
            return []
        before = list(seq.block_ids)
        chain, start, end = self._chains[seq], self._num_cached.get(seq, 0), seq.num_computed_tokens // self.block_size
        whole, changed = self.groups.windows[0] is None, False
        if whole:
            end, changed = self.pool.cache_full_blocks(chain, seq.block_ids, start, end)
        for group in range(whole, self.num_groups):
            changed |= cache_group(self.pool, chain, seq.tables, group, range(start, end))
        self._num_cached[seq] = max(start, end)
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
        """A sequence has ended, and its blocks are freed: its hashes are not needed any more."""
        self._chains.pop(seq, None)
        self._external.pop(seq, None)

    def set_chain(self, seq: Sequence, chain: HashChain) -> None:
        """The hashes of a sequence, which is new: those of a simulated prompt, which has no tokens."""
        self._chains[seq] = chain

    def reset_prefix_cache(self) -> None:
        """Nothing that has been computed so far is found any more, nor what will be computed behind it."""
        self.pool.reset_prefix_cache()
        if self.offload is not None:
            self.offload.reset_prefix_cache()
        self._outdated.update(seq for seq in self._chains if seq.block_ids)

    def free(self, seq: Sequence) -> None:
        """Free the blocks of a sequence on the device, the last one first: it is then the first to be handed out."""
        self.pool.free_blocks(reversed(get_block_ids(seq)))
        self._clear_table(seq)

    def free_swapped(self, seq: Sequence) -> None:
        """Free the blocks of a swapped sequence."""
        self.swap_pool.free_blocks(get_block_ids(seq))
        self._clear_table(seq)

    def _clear_table(self, seq: Sequence) -> None:
        seq.block_ids, seq.further_tables = [], [[] for _ in range(self.num_groups - 1)]
        seq.num_computed_tokens = 0
        self._num_cached.pop(seq, None)
        self._outdated.discard(seq)
        self._first_seqs.pop(seq, None)

    def swap_out(self, seqs: list[Sequence]) -> BlockPairs | None:
        """Move these sequences' blocks to the swap pool; blocks that they share stay shared there. None: no room."""
        for seq in seqs:
            free_outside_windows(self.pool, self.groups, seq)
        if len(_distinct(seqs)) > self.swap_pool.num_free:
            return None
        for seq in seqs:
            self._num_cached.pop(seq, None)  # it will come back into other blocks
        return self._move(seqs, self.pool, self.swap_pool)

    def swap_in(self, seqs: list[Sequence], keep_free: int = 0) -> BlockPairs | None:
        """Move them back, if there is room for them and for the tokens that they compute next."""
        full: set[int] = set()
        own = 0  # blocks that no other sequence shares: each needs them from the first block that it writes to
        for seq in seqs:
            num_full = seq.num_computed_tokens // self.block_size
            for table in seq.tables:
                full.update(table[:num_full])
            own += self.blocks_to_come(seq, num_full, seq.get_len())
        full.discard(NULL_BLOCK)
        if len(full) + own + keep_free > self.pool.num_free:
            return None
        return self._move(seqs, self.swap_pool, self.pool)

    def _move(self, seqs: list[Sequence], source: BlockPool, target: BlockPool) -> BlockPairs:
        old = _distinct(seqs)
        moved = dict(zip(old, target.get_new_blocks(len(old)), strict=True))
        seen: set[int] = set()
        for seq in seqs:
            held = get_block_ids(seq)
            target.touch(moved[block] for block in held if block in seen)  # get_new_blocks() counted the first
            seen.update(held)
            source.free_blocks(reversed(held))
            for table in seq.tables:
                table[:] = [moved.get(block, NULL_BLOCK) for block in table]
        return list(moved.items())

    def check_invariants(self, running: Iterable[Sequence], swapped: Iterable[Sequence]) -> None:
        """Check both pools, that each table is exactly as long as its sequence's tokens need, and that what it lacks is
        what windows have left."""
        running, swapped = list(running), list(swapped)
        self.pool.check_invariants([], [pair for seq in running for pair in parents_of(self.groups, seq)])
        self.swap_pool.check_invariants([get_block_ids(seq) for seq in swapped])
        if self.offload is not None:
            self.offload.check_invariants()
        for seq in [*running, *swapped]:
            if not self.blocks_for(seq.num_computed_tokens) <= len(seq.block_ids) <= self.blocks_for(seq.get_len()):
                raise RuntimeError(
                    f"sequence {seq.seq_id} has {len(seq.block_ids)} blocks for {seq.num_computed_tokens} of "
                    f"{seq.get_len()} tokens"
                )
            check_tables(self.groups, seq)


def _distinct(seqs: list[Sequence]) -> list[int]:
    """The blocks that these sequences name, each once, in the order of the tables."""
    return list(dict.fromkeys(block for seq in seqs for block in get_block_ids(seq)))


def common_prefix(a: Sequence, b: Sequence) -> int:
    """How many tokens two sequences of one request have in common: the prompt, and what they drew alike."""
    outputs = zip(a.data.output_token_ids, b.data.output_token_ids, strict=False)
    return a.get_prompt_len() + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], outputs))


def _needs_every_row(seq: Sequence) -> bool:
    """Log-probabilities of prompt tokens come from the logits of all of them, and a mean is over all their rows: then
    none may be skipped."""
    if seq.pooling_params is not None:
        return seq.pooling_params.skip_reading_prefix_cache
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0
