"""Four engines behind a router: which share of the prompts is found in a cache, by the rule that the router follows.

Each engine's cache is a KVCacheManager; no model is run. Run it: python examples/m6_routing.py
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm.core.block_hash import HashChain
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.request import Request, SequenceData
from folovllm.sampling_params import SamplingParams

ENGINES, BLOCKS, BLOCK_SIZE = 4, 400, 16
# (hashes of the prompt's full blocks, those that each engine should have, requests sent to each) -> an engine
Choose = Callable[[list[bytes], list[set[bytes]], list[int]], int]


def prompts(seed: int = 0) -> list[list[int]]:
    """300 requests, each the next turn of one of 24 chats; two chats in three begin with the same system prompt."""
    random = Random(seed)
    systems = [[random.randrange(1000) for _ in range(400)] for _ in range(9)]
    chats = [list(systems[0] if chat % 3 else systems[1 + chat // 3]) for chat in range(24)]
    turns = []
    for _ in range(300):
        chat = random.choice(chats)
        chat += [random.randrange(1000) for _ in range(50)]  # what the user typed, and the answer before it
        turns.append(list(chat))
        if len(chat) > 1000:
            del chat[400:]  # a chat ends, and another begins with its system prompt
    return turns


def hashes(tokens: list[int]) -> list[bytes]:
    chain = HashChain(SequenceData(tokens, []), BLOCK_SIZE, None)
    return [chain.block_hash(place) for place in range(len(tokens) // BLOCK_SIZE)]


TURNS = [(tokens, hashes(tokens)) for tokens in prompts()]


def round_robin(wanted: list[bytes], known: list[set[bytes]], sent: list[int]) -> int:
    return sum(sent) % ENGINES


def sticky(wanted: list[bytes], known: list[set[bytes]], sent: list[int]) -> int:
    """The engine that a hash of the first block names: needs no state at all."""
    return wanted[0][0] % ENGINES


def longest_prefix(wanted: list[bytes], known: list[set[bytes]], sent: list[int]) -> int:
    """The engine with the most blocks of this prompt; among equals the one that got the least."""
    matches = [next((place for place, one in enumerate(wanted) if one not in seen), len(wanted)) for seen in known]
    return min(range(ENGINES), key=lambda engine: (-matches[engine], sent[engine]))


def balanced(wanted: list[bytes], known: list[set[bytes]], sent: list[int]) -> int:
    """As longest_prefix, but not to an engine that is more than ten requests ahead of the least busy one."""
    busy = [engine for engine in range(ENGINES) if sent[engine] > min(sent) + 10]
    masked = [set() if engine in busy else seen for engine, seen in enumerate(known)]
    choice = longest_prefix(wanted, masked, sent)
    return sent.index(min(sent)) if choice in busy else choice


def run(choose: Choose) -> tuple[float, list[int]]:
    """(share of prompt tokens that were found, requests of each engine)."""
    engines = [KVCacheManager(BLOCKS, BLOCK_SIZE, enable_prefix_caching=True) for _ in range(ENGINES)]
    known: list[set[bytes]] = [set() for _ in engines]  # what the router believes; it hears of no eviction
    sent, found, total = [0] * ENGINES, 0, 0
    for number, (tokens, wanted) in enumerate(TURNS):
        engine = choose(wanted, known, sent)
        sent[engine] += 1
        known[engine].update(wanted)
        kv, request = engines[engine], Request(str(number), None, tokens, SamplingParams())
        seq = request.get_seqs()[0]
        kv.get_computed_blocks(request, seq)
        found, total = found + seq.num_computed_tokens, total + len(tokens)
        kv.allocate_slots([(seq, len(tokens) - seq.num_computed_tokens)])
        seq.num_computed_tokens = len(tokens)
        kv.cache_blocks(seq)
        kv.free(seq)
    return found / total, sent


if __name__ == "__main__":
    for choose in (round_robin, sticky, longest_prefix, balanced):
        share, sent = run(choose)
        print(f"{choose.__name__:14} {share:4.0%} found, requests of each engine: {sent}")
