"""The hash of a block: over its tokens, and over all that comes before them.

    block 0   h0 = sha256(root, tokens 0..15)            root = sha256(cache_salt)
    block 1   h1 = sha256(h0,   tokens 16..31)
    block 2   h2 = sha256(h1,   tokens 32..47)           the same 16 tokens elsewhere have another hash

A token's keys and values depend on every token before it, and through rotary embedding on its position, so tokens alone
do not say what a block holds. The chain does: equal hashes mean equal tokens from the very first on, and one salt.

The hash must be one that cannot be aimed. With a weak one, an attacker who finds two prompts of one hash could make one
read the other's keys and values. vLLM: v1/core/kv_cache_utils.py (hash_block_tokens), utils/hashing.py
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256

from folovllm.request import SequenceData

Digest = Callable[[bytes], bytes]


def digest_sha256(data: bytes) -> bytes:
    return sha256(data).digest()


class HashChain:
    """The hashes of a sequence's full blocks, computed when they are asked for, and kept.

    Args:
        cache_salt: sequences with another salt have no hash in common with this one.
    """

    def __init__(
        self, data: SequenceData, block_size: int, cache_salt: str | None, digest: Digest = digest_sha256
    ) -> None:
        self.data, self.block_size, self.cache_salt = data, block_size, cache_salt
        self.digest = digest
        # None and "" must differ as well. A lone surrogate is no text, but a salt like any other.
        salt = b"" if cache_salt is None else b"salt" + cache_salt.encode(errors="surrogatepass")
        self._hashes = [digest(salt)]

    def block_hash(self, place: int) -> bytes:
        """Of the block at `place` of the sequence's table; all its tokens must be known."""
        while len(self._hashes) <= place + 1:
            token_ids = self.tokens(len(self._hashes) - 1)
            self._hashes.append(self.digest(self._hashes[-1] + array("q", token_ids).tobytes()))
        return self._hashes[place + 1]

    def tokens(self, place: int) -> Sequence[int]:
        """The token ids of that block."""
        start, end = place * self.block_size, (place + 1) * self.block_size
        num_prompt = len(self.data.prompt_token_ids)
        if end <= num_prompt:
            return self.data.prompt_token_ids[start:end]
        output = self.data.output_token_ids
        if start >= num_prompt:
            return output[start - num_prompt : end - num_prompt]
        return self.data.prompt_token_ids[start:] + output[: end - num_prompt]

    def fork(self, data: SequenceData, num_blocks: int) -> HashChain:
        """For a sequence that has its first blocks in common with this one."""
        child = HashChain(data, self.block_size, self.cache_salt, self.digest)
        child._hashes = self._hashes[: num_blocks + 1]
        return child
