"""Draw from a vocabulary that is cut between ranks: by all logits, and by a winner of each part.

python examples/m9_winners.py
"""

import _tree  # noqa: F401 - folovllm is this tree's
import torch

from folovllm.distributed.parallel_state import part
from folovllm.sample.winners import draw_winners, part_winners

ROWS, VOCAB, RANKS = 8, 151_936, 4

logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
noise = torch.empty(ROWS, VOCAB).exponential_(generator=torch.Generator().manual_seed(1))
parts = [part(VOCAB, rank, RANKS) for rank in range(RANKS)]

whole = (logits.double() - noise.double().log()).argmax(dim=1)
winners = [part_winners(logits[:, own.start : own.stop], noise[:, own.start : own.stop], own.start) for own in parts]
drawn = draw_winners(winners)

print("tokens by all logits:", whole.tolist())
print("tokens by winners:   ", drawn.tolist())
print(f"a rank sends {logits[:, : len(parts[1])].nbytes:,} bytes of logits, or {winners[1].nbytes} of winners")
