"""What would be wrong without a word: a fault in the cut or in a sum. Each is planted, and changes the tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLMEngine
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.layers import parallel
from folovllm.layers.linear import Linear
from folovllm.layers.parallel import RowParallelMethod, VocabParallelEmbedding
from folovllm.models.shard import Shard
from tests.helpers import make_hf_folder
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import Asked, asked_greedily
from tests.m9.support import RankThread

Plant = Callable[[pytest.MonkeyPatch], None]


def no_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCoordinator, "all_reduce", lambda self, x: x)


def a_bias_added_twice(patch: pytest.MonkeyPatch) -> None:
    def create(self: RowParallelMethod, layer: Linear, *, bias: bool) -> None:
        self.inner.create_weights(layer, bias=bias)
        if layer.bias is not None:
            layer.bias.data.fill_(0.3)

    def slots(self: RowParallelMethod, layer: Linear) -> list[tuple[str, torch.Tensor]]:
        """Rank 0 alone reads a checkpoint's bias."""
        found = self.inner.checkpoint_slots(layer)
        return [(name, view) for name, view in found if self.group.rank == 0 or not name.endswith("bias")]

    patch.setattr(RowParallelMethod, "create_weights", create)
    patch.setattr(RowParallelMethod, "checkpoint_slots", slots)


def a_vocabulary_off_by_one(patch: pytest.MonkeyPatch) -> None:
    init = VocabParallelEmbedding.__init__

    def off(self: VocabParallelEmbedding, vocab: int, hidden: int, group: GroupCoordinator) -> None:
        init(self, vocab, hidden, group)
        self.tokens = range(self.tokens.start + 1, self.tokens.stop + 1)

    patch.setattr(VocabParallelEmbedding, "__init__", off)


def logits_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    forward = parallel.ParallelLMHead.forward
    patch.setattr(parallel.ParallelLMHead, "forward", lambda self, x: forward(self, x).roll(self.widths[0], 1))


def heads_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    cut = Shard.cut

    def swapped(self: Shard, layer: str, *block: str) -> tuple[range, int]:
        mine, count = cut(self, layer, *block)
        if layer == "o_proj":
            return range((mine.start + count // 2) % count, (mine.start + count // 2) % count + len(mine)), count
        return mine, count

    patch.setattr(Shard, "cut", swapped)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("planted"), "llama", attention_bias=True, mlp_bias=True)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[int]]]:
    return token_ids(serve(caching_engine(folder, max_model_len=64), asked()))


def asked() -> Asked:
    return asked_greedily()[:3]


def two_ranks(folder: Path) -> LLMEngine:
    """Operator by operator: all layers in one call would not come by what is planted."""
    return caching_engine(folder, max_model_len=64, tensor_parallel_size=2, enforce_eager=True)


def test_without_a_fault(folder: Path, expected: Any, rank_threads: list[RankThread]) -> None:
    assert token_ids(serve(two_ranks(folder), asked())) == expected


@pytest.mark.parametrize(
    "plant",
    [no_sum, a_bias_added_twice, a_vocabulary_off_by_one, logits_in_the_wrong_order, heads_in_the_wrong_order],
)
def test_a_planted_fault_changes_the_tokens(
    plant: Plant, folder: Path, expected: Any, rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    torch.manual_seed(0)
    assert token_ids(serve(two_ranks(folder), asked())) != expected
