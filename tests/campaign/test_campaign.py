"""The campaign finds what is wrong: faults are planted into the engine, found within a few cases, and made small."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from folovllm.attention.backend import Attention
from folovllm.core import block_hash, kv_cache_manager
from folovllm.core.block_pool import BlockPool
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.kv_offload import OffloadingManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.sample.row import TokenCounts
from folovllm.worker.input_batch import InputBatch
from folovllm.worker.kv_cache import KVCache
from tests.campaign import campaign
from tests.campaign.campaign import Campaign, replay
from tests.campaign.case import Case, Wrong
from tests.campaign.drawing import draw_case
from tests.campaign.models import Models
from tests.campaign.play import examine
from tests.campaign.shrinking import Shrinker


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def lose_a_block(patch: pytest.MonkeyPatch) -> None:
    """A sequence that is aborted keeps its last block."""
    free = KVCacheManager.free

    def losing(self: KVCacheManager, seq: Any) -> None:
        if seq.status.name == "FINISHED_ABORTED":
            del seq.block_ids[-1:]
        free(self, seq)

    patch.setattr(KVCacheManager, "free", losing)


def ignore_what_was_said(patch: pytest.MonkeyPatch) -> None:
    """Penalties look at the prompt only."""
    patch.setattr(TokenCounts, "catch_up", lambda self, output_token_ids: None)


def write_one_slot_too_far(patch: pytest.MonkeyPatch) -> None:
    """A decode's keys and values go into the slot behind their own, unless that is another block's."""
    prepare = InputBatch.prepare

    def misplacing(self: InputBatch, *args: Any, **kwargs: Any) -> Any:
        inputs = prepare(self, *args, **kwargs)
        slots, starts = inputs.metadata.slot_mapping, inputs.metadata.query_start_loc[:-1].long()
        decodes = torch.zeros(len(slots), dtype=torch.bool)
        decodes[starts] = torch.from_numpy(inputs.num_new == 1)
        inputs.metadata.slot_mapping = slots + (decodes & ((slots + 1) % self.block_size != 0)).long()
        return inputs

    patch.setattr(InputBatch, "prepare", misplacing)
    clear_caches(patch)


def clear_caches(patch: pytest.MonkeyPatch) -> None:
    """What a slot holds that was never written differs from run to run, and with it how a fault shows itself."""
    build = KVCache.__init__

    def cleared(self: KVCache, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        for tensor in self.tensors:
            tensor.zero_()

    patch.setattr(KVCache, "__init__", cleared)


def see_beyond_windows(patch: pytest.MonkeyPatch) -> None:
    """A layer with a window, a soft-cap or sinks computes as if it had none of them."""
    patch.setattr(Attention, "make_backend", lambda self, kind: kind(
        self.num_heads, self.num_kv_heads, self.head_size, self.scale))  # fmt: skip
    clear_caches(patch)


def load_what_came_too_late(patch: pytest.MonkeyPatch) -> None:
    """A block comes in from host memory though it has been handed out again."""
    add_moves = OffloadingManager.add_moves

    def moving(self: OffloadingManager, output: SchedulerOutput, pool: BlockPool) -> None:
        add_moves(self, output, SimpleNamespace(hash_of=lambda block: self.loads[block][1]))  # type: ignore[arg-type]

    patch.setattr(OffloadingManager, "add_moves", moving)


def forget_whose_keys_they_are(patch: pytest.MonkeyPatch) -> None:
    """A block's hash does not know the adapter."""
    root = block_hash.root_of
    patch.setattr(block_hash, "root_of", lambda cache_salt, adapter: root(cache_salt, b""))


def leave_cached_rows_out(patch: pytest.MonkeyPatch) -> None:
    """A mean is over the rows that were computed for it."""
    patch.setattr(kv_cache_manager, "_needs_every_row", lambda seq: False)


def forget_to_forget(patch: pytest.MonkeyPatch) -> None:
    """A reset does not reach the tiers behind the pool."""
    patch.setattr(OffloadingManager, "reset_prefix_cache", lambda self: None)


WRONG_TOKENS = {"token", "impossible token", "beams", "logprobs", "best_of"}
# By what they may be found.
FAULTS: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    lose_a_block: {"blocks"},
    ignore_what_was_said: WRONG_TOKENS,
    write_one_slot_too_far: WRONG_TOKENS,
    see_beyond_windows: WRONG_TOKENS,
}
# And in which cases.
RARE_FAULTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[set[str], Callable[[Case], bool]]] = {
    load_what_came_too_late: ({"cache", *WRONG_TOKENS}, lambda case: case.host_blocks > 0),
    forget_whose_keys_they_are: ({"cached tokens", "vector", *WRONG_TOKENS}, lambda case: "enable_lora" in case.engine),
    leave_cached_rows_out: ({"cached tokens", "vector"}, lambda case: case.model.pooling == "MEAN"),
    forget_to_forget: ({"cached tokens"}, lambda case: bool(case.resets) and case.host_blocks > 0),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_made_small(
    models: Models, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        case, wrong = first_failing(models)
        assert wrong.kind in FAULTS[plant], wrong
        shrinker = Shrinker(case, lambda candidate: examine(candidate, models), wrong.kind)
        small = shrinker.run(seconds=600)
        assert len(small.requests) == 1, small.to_json()
        assert len(small.requests[0].params) <= 4
        path = tmp_path / "case.json"
        path.write_text(small.to_json())
        assert replay(path) == 1
    assert Case.read(path) == small
    assert replay(path) == 0, "without the fault nothing is wrong"


@pytest.mark.parametrize("plant", RARE_FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_of_tiers_adapters_and_vectors_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    kinds, may_show = RARE_FAULTS[plant]
    with monkeypatch.context() as patch:
        plant(patch)
        case, wrong = first_failing(models, may_show)
    assert wrong.kind in kinds, wrong
    examine(case, models)


def first_failing(models: Models, may_show: Callable[[Case], bool] = lambda case: True) -> tuple[Case, Wrong]:
    for case in filter(may_show, (draw_case(2, number) for number in range(400))):
        try:
            examine(case, models)
        except Wrong as wrong:
            return case, wrong
    raise AssertionError("nothing was found")


def test_the_campaign_runs_and_finds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=count().__next__))  # a second for each case
    four = Campaign(4.5 / 60, 0, tmp_path, 1.0)
    assert four.run() == 0
    assert four.tally.engines == 4
    assert four.tally.tokens > 0
    assert "tokens compared with Hugging Face" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_campaign_writes_a_failing_case_and_says_how_to_see_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_a_block(monkeypatch)
    assert Campaign(1.0, 2, tmp_path, 2.0).run() == 1
    (path,) = tmp_path.iterdir()
    said = capsys.readouterr().out
    assert f"python -m tests.campaign --replay {path}" in said
    assert "blocks" in said
    assert replay(path) == 1


def test_engines_draw_with_seeds_of_their_own() -> None:
    """Engines of one seed draw with the same noise: many right draws, taken together, would then look wrong."""
    seeds = [draw_case(0, number).engine["seed"] for number in range(50)]
    assert len(set(seeds)) == 50
    assert seeds == [draw_case(0, number).engine["seed"] for number in range(50)]
