import random

from folovllm.mine.eviction import Block, victim
from lab_judge import expect, invariant, measure

SIZE = 64  # blocks of the cache


def load():
    """500 prompts, each a list of block hashes: chats behind four system prompts, and long documents, each once."""
    rng, count, rows = random.Random(5), 0, []

    def fresh(blocks):
        nonlocal count
        count += blocks
        return list(range(count - blocks, count))

    systems, chats = [fresh(6) for _ in range(4)], []
    for _ in range(500):
        kind = rng.random()
        if kind < 0.15:
            rows.append(fresh(12))
            continue
        if kind < 0.6 and chats:
            at = rng.randrange(max(0, len(chats) - 5), len(chats))
            chats[at] = chats[at] + fresh(2)
            if len(chats[at]) <= 20:
                rows.append(chats[at])
                continue
        chats.append(rng.choice(systems) + fresh(2))
        rows.append(chats[-1])
    return rows


def hit_rate(rows):
    """The share of blocks that were found. Only a block without a child may go, and none of the prompt at work."""
    cache, parent, hits = {}, {}, 0
    for now, blocks in enumerate(rows):
        found = True
        for place, name in enumerate(blocks):
            found = found and name in cache
            if found:
                hits += 1
                cache[name].last_used, cache[name].uses = now, cache[name].uses + 1
                continue
            if len(cache) == SIZE:
                parents = {parent[known] for known in cache}
                free = {id(cache[known]): known for known in cache.keys() - parents - set(blocks[:place])}
                candidates = sorted((cache[known] for known in free.values()), key=lambda block: block.born)
                del cache[free[id(victim(candidates, now))]]
            parent[name] = blocks[place - 1] if place else None
            cache[name] = Block(depth=place, born=now, last_used=now, uses=1)
    return hits / sum(map(len, rows))


@invariant(1)
def test_it_is_one_of_the_candidates():
    candidates = [Block(depth=0, born=1, last_used=1, uses=1), Block(depth=3, born=2, last_used=9, uses=4)]
    expect(victim(candidates, now=10) in candidates, True)


@invariant(2)
def test_the_share_that_is_found():
    measure(hit_rate(load()), at_least=0.6)
