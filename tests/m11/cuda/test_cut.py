"""Several programs find what a row's filters keep: the same as passes over the row find, and as the definition says."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import some
from tests.m1.sampling_reference import distribution
from tests.m4.sampling_kernel_support import CUDA, DEVICE, FILTERS, as_filters, kept, normal

pytest.importorskip("triton")
from triton import next_power_of_2

from folovllm.sample.kernels import cut
from folovllm.sample.kernels.sampler import sample

pytestmark = pytest.mark.slow
SETTINGS = [*FILTERS.values(), {"temperature": 0.8, "top_k": 20, "top_p": 0.95}, {"temperature": 0.0, "top_k": 3}]
SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}


def cuts(logits: torch.Tensor, settings: list[dict]) -> list[tuple[float, int]]:
    """(cut, last) of the rows that are filtered."""
    vocab_size, shift = logits.shape[1], SHIFTS[logits.dtype]
    found = cut.find_cuts(
        logits.to(DEVICE), as_filters(settings, vocab_size), shift, min(2048, next_power_of_2(vocab_size)), 8
    )[:2]
    filtered = [bool(row.keys() - {"temperature"}) and row.get("temperature") != 0.0 for row in settings]
    return [pair for pair, is_one in zip(zip(*(each.tolist() for each in found), strict=True), filtered, strict=True)
            if is_one]  # fmt: skip


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32]), ids=str)
@pytest.mark.parametrize("vocab_size", [100, 1500, 20_000])
def test_stripes_of_several_programs_draw_what_those_of_one_draw(dtype: torch.dtype, vocab_size: int) -> None:
    """A filter that drops nothing lets the draw's own program pass over the row."""
    logits, offsets = normal(16, vocab_size).to(dtype).to(DEVICE), torch.arange(16, device=DEVICE)
    drawn = [
        sample(logits, as_filters([row] * 16, vocab_size), offsets * 7, offsets).tolist()
        for row in ({"temperature": 0.7}, {"temperature": 0.7, "min_p": 1e-30})
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 8


class Passes:
    """Stands for find_cut(), and counts the rows that are searched in passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.original, self.rows = cut.find_cut, 0
        monkeypatch.setattr(cut, "find_cut", self)

    def __call__(self, *args):
        self.rows += 1
        return self.original(*args)


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32, torch.float16]), ids=str)
def test_a_sorted_list_keeps_what_passes_over_the_row_keep(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits most of 400 logits are ties, of which a filter keeps some. Half of the other rows are -inf."""
    settings = [*SETTINGS, *SETTINGS]
    logits = normal(len(settings), 400).to(dtype)
    logits[len(SETTINGS) :, ::2] = -torch.inf
    by_list = kept(logits, *settings)
    monkeypatch.setattr(cut, "MOST", 2)
    assert kept(logits, *settings) == by_list


@pytest.mark.skipif(CUDA, reason="counts calls in the interpreter")
def test_no_pass_where_the_likeliest_hundreds_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 logits in 2,048 lanes: some 800 reach the bound. Then: more mass than they have, more tokens than there
    are, and as many equal ones as there are columns."""
    passes, logits = Passes(monkeypatch), normal(3, 5000, scale=3.0)
    cuts(logits, [{"top_p": 0.9}, {"top_k": 512}, {"top_k": 20, "top_p": 0.95, "min_p": 0.01}])
    assert passes.rows == 0
    cuts(torch.cat([logits[:2], torch.zeros(1, 5000)]), [{"top_p": 0.999}, {"top_k": 2000}, {"top_k": 3}])
    assert passes.rows == 3


@pytest.mark.parametrize("tile", [128, 1024])
def test_who_writes_the_list_and_who_is_last_changes_nothing(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles of 128, 12 programs share the columns of a row, or 4 where there are many rows."""
    settings, logits = [{"top_k": 40}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.5}], normal(3, 1500).bfloat16()
    want = cuts(logits, settings)
    monkeypatch.setattr(cut, "TILE", tile)
    assert cuts(logits, settings) == want
    monkeypatch.setattr(cut, "MANY_ROWS", 2)
    assert cuts(logits, settings) == want


def test_nothing_is_expected_of_the_memory_that_programs_count_in() -> None:
    """A graph is replayed over what its last replay left there, and the first one over anything."""
    settings, logits = SETTINGS[1:], normal(len(SETTINGS) - 1, 300)
    want = cuts(logits, settings)
    torch.use_deterministic_algorithms(True)  # fills what is not written: integers with the largest there is
    try:
        assert cuts(logits, settings) == want
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_bound_is_reached_by_enough_lanes_and_by_all_where_there_are_few() -> None:
    """A mask that leaves 3 tokens: all of them are listed, and top-k of more keeps them."""
    logits = torch.full((2, 3000), -torch.inf)
    logits[:, [5, 700, 2999]] = torch.tensor([1.0, 3.0, 2.0])
    assert kept(logits, {"top_k": 10}, {"top_p": 0.7}) == [[5, 700, 2999], [700, 2999]]


def test_a_peaked_row_of_a_whole_vocabulary_keeps_what_the_definition_keeps() -> None:
    """As a language model's: falling with the logarithm of the rank, in any order."""
    ranks = torch.randperm(20_000, generator=torch.Generator().manual_seed(0)) + 1
    logits = (-1.5 * ranks.float().log())[None].bfloat16()
    for filters in ({"top_p": 0.9}, {"top_k": 20, "top_p": 0.95}):
        weights = torch.tensor(distribution(logits[0].tolist(), **filters))
        assert kept(logits, filters) == [weights.nonzero().flatten().tolist()]
