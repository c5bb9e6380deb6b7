"""Into how many splits a decode's sequences are divided.

A decode is one program for each KV head of each split of each sequence. A GPU has places for some of them; the others
start as places come free. At the end places stay empty, and too few programs cannot ask for all of the bandwidth:

    places   ████████████████████████░░░░          4 sequences of 4 lengths, as they come
             █████████░░░░░░░░░░░░░░░░░░░
    time     ──────────────────────────▶

    longest first, in two splits each:             ████████████████░
                                                   ████████████████

So a batch that fills the places is left whole, and its longest sequences start first: the short ones fill the gaps. A
small batch is split until its programs fill the places once. Once and a little more would be twice the time.

vLLM: v1/attention/ops/triton_decode_attention.py, which has a fixed number of splits
"""

from __future__ import annotations

import math

SMS = 132
"""Of an H100 or H200."""
PROGRAMS_PER_SM = 3
"""As 72 KB of shared memory each allow."""
PLACES = SMS * PROGRAMS_PER_SM
"""Programs that run at once there."""
MAX_SPLITS = 64
WAVES = 1.45
"""How often a batch at least fills the places, if its whole sequences fill more than a quarter of them. A last wave
that is half full costs little where programs of many lengths follow one another, longest first."""
POOR_WAVES = (2.0, 2.25)
"""Here two waves of programs of much the same length leave a few for a third. Above, there are enough to fill it."""


def choose_splits(num_seqs: int, num_kv_heads: int, max_len: int, block_n: int, places: int = PLACES) -> int:
    """Programs per sequence and KV head; never more than there are tiles, nor than MAX_SPLITS.

    max_len: the tokens that the block tables have room for. The sequences' own lengths change from step to step, and a
        CUDA graph must not depend on them.
    places: of the GPU.
    """
    whole = num_seqs * num_kv_heads
    if 4 * whole <= places:
        wanted = places // whole
    else:
        wanted = math.ceil(WAVES * places / whole)
        wanted += POOR_WAVES[0] < wanted * whole / places < POOR_WAVES[1]
    return max(1, min(wanted, -(-max_len // block_n), MAX_SPLITS))
