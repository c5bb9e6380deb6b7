"""Whatever comes, however small the cache and however alike the prompts: every sequence names blocks that hold its own
tokens, behind its own beginning, under its own salt, and none from before a reset that it came after. All come to their
end, and all blocks come back.

The past is checked in a shadow of the KV cache at every step (support.py), with good names and with names so short that
many contents share one.
"""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from folovllm.core.block_hash import digest_sha256
from tests.m3.desk_machine import SETTINGS, DeskMachine, is_busy, play_random_load
from tests.m6.support import CachingDesk


def one_byte(data: bytes) -> bytes:
    return sha256(data).digest()[:1]


def two_names(data: bytes) -> bytes:
    return bytes([sha256(data).digest()[0] % 2])


DIGESTS = {"sha256": digest_sha256, "one byte": one_byte, "two names": two_names}


class CachingSchedulerMachine(DeskMachine):
    @initialize(
        num_blocks=st.sampled_from([3, 5, 7, 9, 12, 16, 120]),
        block_size=st.sampled_from([1, 2, 4]),
        num_swap_blocks=st.sampled_from([0, 4, 200]),
        max_num_seqs=st.sampled_from([1, 3, 5, 12]),
        budget=st.integers(1, 8) | st.integers(9, 40),
        threshold=st.sampled_from([None, None, 0, 1, 3, 5]),
        partial=st.integers(1, 3),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        policy=st.sampled_from(["fcfs", "priority"]),
        digest=st.sampled_from(["sha256", "sha256", "one byte", "two names"]),
        seed=st.integers(0, 2**32),
    )
    def begin(self, num_blocks, block_size, num_swap_blocks, digest, seed, **kwargs):
        self.max_model_len = min(24, num_blocks * block_size)
        self.desk = CachingDesk(
            num_blocks,
            block_size,
            num_swap_blocks,
            max_model_len=self.max_model_len,
            digest=DIGESTS[digest],
            seed=seed,
            **kwargs,
        )
        self.rng = random.Random(seed)
        self.prefixes = [[self.rng.choice([1, 2]) for _ in range(24)] for _ in range(2)]

    @rule(
        count=st.integers(1, 4),
        n=st.sampled_from([1, 1, 2, 3, 5]),
        beams=st.booleans(),
        prefix=st.integers(0, 1),
        shared=st.integers(0, 20),
        num_tokens=st.integers(1, 8),
        max_tokens=st.integers(1, 20),
        salt=st.sampled_from([None, None, "a", "b"]),
    )
    def arrive(self, count, n, beams, prefix, shared, num_tokens, max_tokens, salt):
        """Some that begin alike."""
        for _ in range(count):
            own = [self.rng.choice([1, 2]) for _ in range(num_tokens)]
            kwargs = {"n": n, "max_tokens": max_tokens, "beams": n if beams else 0, "salt": salt}
            self.add([*self.prefixes[prefix][:shared], *own], priority=self.rng.randrange(-1, 2), **kwargs)

    @rule(cut=st.booleans(), max_tokens=st.integers(1, 8))
    def next_turn(self, cut, max_tokens):
        """A user's prompt and what has been said so far come back, with a question more."""
        if self.desk.requests:
            requests = list(self.desk.requests.values())
            request = self.rng.choice([request for request in requests if not request.is_finished()] or requests)
            said = request.get_seqs()[0].get_token_ids()
            prompt = [*said[: self.rng.randrange(len(said)) if cut else None], 1][: self.max_model_len - 1]
            name = str(len(self.desk.requests))
            self.desk.add(name, prompt, salt=request.cache_salt, max_tokens=max_tokens)

    @precondition(is_busy)
    @rule(abort=st.booleans(), stop=st.booleans(), reset=st.booleans())
    def eventful_step(self, abort, stop, reset):
        """A user aborts while the step runs; stop strings end sequences; the cache is reset, and asked at once."""
        output = self.desk.schedule()
        if abort:
            self.desk.abort(self.rng.choice(list(self.desk.requests)))
        if reset:
            self.desk.reset()
            self.next_turn(cut=False, max_tokens=2)
        self.end_step(output, stop)

    @precondition(is_busy)
    @rule()
    def interrupted_step(self):
        self.desk.interrupted_step()
        assert self.desk.kv.pool.num_cached == 0


TestCachingScheduler = CachingSchedulerMachine.TestCase
TestCachingScheduler.settings = settings(SETTINGS, max_examples=40)


@pytest.mark.exhaustive
class TestCachingSchedulerAtLength(CachingSchedulerMachine.TestCase):
    settings = settings(SETTINGS, max_examples=120)


@pytest.mark.parametrize("seed", range(24))
def test_nobody_waits_for_ever_under_a_random_load(seed):
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 3]), rng.randrange(6, 26)
    longest = min(30, num_blocks * block_size)
    desk = CachingDesk(
        num_blocks,
        block_size,
        rng.choice([0, 2, 5, 9, 200]),
        max_num_seqs=rng.choice([4, 6, 12]),
        budget=rng.choice([1, 3, 6, 20, 60]),
        threshold=rng.choice([None, 0, 1, 4]),
        partial=rng.choice([1, 1, 2, 4]),
        max_model_len=longest,
        mode=rng.choice(["auto", "recompute", "swap"]),
        policy=rng.choice(["fcfs", "priority", "priority"]),
        digest=rng.choice(list(DIGESTS.values())),
        seed=seed,
    )
    prefix = [rng.choice([1, 2]) for _ in range(longest)]

    def prompt() -> list[int]:
        own = [rng.choice([1, 2]) for _ in range(rng.randrange(1, longest - 1))]
        return [*prefix[: rng.randrange(longest)], *own][: longest - 1]

    play_random_load(desk, rng, longest, count=20, prompt=prompt, salt=lambda: rng.choice([None, None, "a"]))
    assert desk.kv.num_queries > 0
