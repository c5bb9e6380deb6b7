"""The core's block pool, with each of its loops in one piece.

    of the core      for each block: _choose() ─▶ _evict() ─▶ _unlink() ─▶ refs          four calls a block
    here             for each block: the same assignments, in the same order             none

A simulation does little but take, find and free blocks, a hundred and more a request. The rules are those of
CachedBlockPool: which block is handed out, what is evicted, where a block goes in the free list. A test plays random
calls on both pools, and compares all that they have.

Blocks are found by the names of prompts.py. A name stands for the tokens, so none are compared.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from folovllm.core.block_hash import HashChain
from folovllm.core.block_pool import NULL_BLOCK
from folovllm.core.cached_block_pool import CachedBlock, CachedBlockPool
from folovllm.request import SequenceData
from folovllm.simulator.load import Job

_new = tuple.__new__
"""Of a CachedBlock: a third of the time of calling the class."""


@lru_cache(maxsize=1024)
def prefix_names(group: str, count: int) -> list[bytes]:
    """Of the first `count` blocks that all jobs of a group share: made once, since each of its jobs asks for them."""
    return [b"group " + group.encode() + b" %d" % place for place in range(count)]


class NamedBlocks(HashChain):
    """The chain of a job without tokens."""

    def __init__(self, data: SequenceData, request_id: str, job: Job, block_size: int) -> None:
        self.data, self.block_size, self.cache_salt = data, block_size, None
        self.prefix = prefix_names(job.group or "", job.prefix_tokens // block_size)
        # A request's number begins with a digit, so that it is no chat's name.
        own = request_id if job.chat is None else f"chat {job.chat}"
        self._own = own.encode().replace(b"%", b"%%") + b" %d"

    def names(self, start: int, stop: int) -> list[bytes]:
        """Of the blocks from place `start` up to `stop`."""
        shared = len(self.prefix)
        own = [self._own % place for place in range(max(start, shared), stop)]
        return self.prefix[start:stop] + own if start < shared else own

    def block_hash(self, place: int) -> bytes:
        return self.names(place, place + 1)[0]

    def tokens(self, place: int) -> Sequence[int]:
        return ()


class NamedBlockPool(CachedBlockPool):
    """Also for chains that have tokens: these go the core's way."""

    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        if count > self.num_free:
            return super().get_new_blocks(count, after)  # which says what is wrong
        refs, behind, before, cached = self._refs, self._next, self._prev, self._cached
        by_name, most, taken = self._by_hash, self.num_blocks, list[int]()
        for _ in range(count):
            neighbour = after + 1
            if after == NULL_BLOCK or neighbour > most or refs[neighbour] or neighbour in cached:
                after = behind[NULL_BLOCK]
                if after in cached:
                    del by_name[cached.pop(after).block_hash]
                    self.num_evicted += 1
            else:
                after = neighbour
            left, right = before[after], behind[after]
            behind[left], before[right] = right, left
            refs[after] = 1
            taken.append(after)
        self.num_free -= count
        return taken

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        refs, behind, before, cached = self._refs, self._next, self._prev, self._cached
        for block_id in block_ids:
            left = refs[block_id] - 1
            if left > 0:
                refs[block_id] = left
                self.num_shared -= left == 1
            elif left < 0:
                super().free_blocks([block_id])  # which says what is wrong
            else:
                refs[block_id] = 0
                self.num_free += 1
                if block_id in cached:
                    last = before[NULL_BLOCK]
                    before[block_id], behind[block_id] = last, NULL_BLOCK
                    behind[last] = before[NULL_BLOCK] = block_id
                else:
                    first = behind[NULL_BLOCK]
                    before[block_id], behind[block_id] = NULL_BLOCK, first
                    behind[NULL_BLOCK] = before[first] = block_id

    def touch(self, block_ids: Iterable[int]) -> None:
        refs, behind, before, cached = self._refs, self._next, self._prev, self._cached
        for block_id in block_ids:
            count = refs[block_id]
            if count:
                refs[block_id] = count + 1
                self.num_shared += count == 1
            elif block_id in cached:
                left, right = before[block_id], behind[block_id]
                behind[left], before[right] = right, left
                refs[block_id] = 1
                self.num_free -= 1
            else:
                super().touch([block_id])  # which says what is wrong

    def find(self, names: NamedBlocks, most: int) -> list[int]:
        """The first blocks that are there, up to `most`. Of a group's names each has the one before it as its parent;
        a chat's may stand behind another prefix, and then it is not the block that is wanted."""
        found: list[int] = []
        for block_id in map(self._by_hash.get, names.prefix[:most]):
            if block_id is None:
                return found
            found.append(block_id)
        for place in range(len(found), most):
            block_id = self._by_hash.get(names.block_hash(place))
            if block_id is None or self._cached[block_id].parent != (found[-1] if found else NULL_BLOCK):
                break
            found.append(block_id)
        return found

    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        if not isinstance(chain, NamedBlocks):
            return super().cache_full_blocks(chain, table, num_cached, num_full)
        by_name, cached, changed = self._by_hash, self._cached, False
        parent = table[num_cached - 1] if num_cached else NULL_BLOCK
        for place, name in enumerate(chain.names(num_cached, num_full), num_cached):
            block_id = table[place]
            found = by_name.get(name)
            if found is None:
                if place and parent not in cached:
                    return place, changed
                by_name[name] = block_id
                cached[block_id] = _new(CachedBlock, (name, parent, (), None))
            elif cached[found].parent != parent:
                return place, changed
            elif found != block_id:
                self.touch((found,))
                self.free_blocks((block_id,))
                block_id = table[place] = found
                changed = True
            parent = block_id
        return max(num_cached, num_full), changed
