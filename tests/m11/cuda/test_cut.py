"""Several programs find what a row's filters keep: the same as passes over the row find, and as the definition says.
From few tokens the last of them draws what a pass over the row would."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.helpers import some
from tests.m1.sampling_reference import distribution
from tests.m4.sampling_kernel_support import CUDA, DEVICE, FILTERS, as_filters, kept, normal

pytest.importorskip("triton")
from folovllm.sample.draw import NOT_FINITE
from folovllm.sample.kernels import cut
from folovllm.sample.kernels import sampler as kernel
from folovllm.sample.kernels.sampler import sample

pytestmark = pytest.mark.slow
QWEN = {"temperature": 0.8, "top_k": 20, "top_p": 0.95}
SETTINGS = [*FILTERS.values(), QWEN, {"temperature": 0.0, "top_k": 3}]


def drawn(logits: torch.Tensor, settings: list[dict], seed: int = 0) -> list[int]:
    """Row by row, each at a position of its own."""
    positions = torch.arange(len(logits), device=DEVICE) * 101
    return sample(logits.to(DEVICE), as_filters(settings, logits.shape[1]), positions + seed, positions).tolist()


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


class Calls:
    """Stands for a function of a kernel, and counts its calls."""

    def __init__(self, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.original, self.count = getattr(module, name), 0
        if not CUDA:
            monkeypatch.setattr(module, name, self)

    def __call__(self, *args):
        self.count += 1
        return self.original(*args)


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32, torch.float16]), ids=str)
def test_a_sorted_list_keeps_what_passes_over_the_row_keep(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits most of 400 logits are ties, of which a filter keeps some. Half of the other rows are -inf."""
    settings = [*SETTINGS, *SETTINGS]
    logits = normal(len(settings), 400).to(dtype)
    logits[len(SETTINGS) :, ::2] = -torch.inf
    by_list = kept(logits, *settings)
    monkeypatch.setattr(kernel, "MOST", 2)
    assert kept(logits, *settings) == by_list


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.parametrize("lanes", [16, 2048])
def test_what_is_drawn_of_few_is_what_is_drawn_of_the_whole_row(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 tokens in 16 stripes most of those that stay share one; in 16 bits they are ties, of which some stay. And
    where nothing can be drawn: NaN, +inf, nothing but -inf."""
    monkeypatch.setattr(kernel, "LANES", lanes)
    settings = [QWEN, {"top_k": 64}, {"temperature": 2.0, "top_p": 0.5}, {"top_k": 1}, {"top_k": 30, "min_p": 0.1}]
    logits = normal(8, 100).bfloat16()
    logits[1] = logits[1].round()
    logits[5, 30], logits[6, 40], logits[7] = torch.nan, torch.inf, -torch.inf
    settings += [QWEN] * 3
    calls = Calls(kernel, "_draw_of_few", monkeypatch)
    of_few = [drawn(logits, settings, seed) for seed in range(3)]
    assert CUDA or calls.count == 3 * 5
    monkeypatch.setattr(kernel, "FEW", 1)
    assert of_few == [drawn(logits, settings, seed) for seed in range(3)]
    assert all(row[5:] == [NOT_FINITE] * 3 for row in of_few)
    assert len({row[0] for row in of_few}) > 1


@pytest.mark.skipif(CUDA, reason="counts calls in the interpreter")
def test_the_row_is_passed_over_again_only_where_more_than_a_few_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """65 of equal tokens are one too many."""
    few, sums = (Calls(kernel, name, monkeypatch) for name in ("_draw_of_few", "sum_stripes"))
    drawn(torch.zeros(3, 100), [{"top_k": 64}, {"top_k": 65}, {"min_p": 0.5}])
    assert (few.count, sums.count) == (1, 3 + 2)


@pytest.mark.skipif(CUDA, reason="counts calls in the interpreter")
def test_no_pass_where_the_likeliest_hundreds_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 logits in 2,048 lanes: some 800 reach the bound. Then: more mass than they have, more tokens than there
    are, and as many equal ones as there are columns."""
    passes, logits = Calls(cut, "find_cut", monkeypatch), normal(3, 5000, scale=3.0)
    kept(logits, {"top_p": 0.9}, {"top_k": 512}, {"top_k": 20, "top_p": 0.95, "min_p": 0.01})
    assert passes.count == 0
    kept(torch.cat([logits[:2], torch.zeros(1, 5000)]), {"top_p": 0.999}, {"top_k": 2000}, {"top_k": 3})
    assert passes.count == 3


@pytest.mark.parametrize("tile", [128, 1024])
def test_who_writes_the_list_and_who_is_last_changes_nothing(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles of 128, 12 programs share the columns of a row, or 4 where there are many rows."""
    settings, logits = [{"top_k": 40}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.5}], normal(3, 1500).bfloat16()
    want = kept(logits, *settings), drawn(logits, settings)
    monkeypatch.setattr(kernel, "TILE", tile)
    assert (kept(logits, *settings), drawn(logits, settings)) == want
    monkeypatch.setattr(kernel, "MANY_ROWS", 2)
    assert (kept(logits, *settings), drawn(logits, settings)) == want


def test_nothing_is_expected_of_the_memory_that_programs_count_in() -> None:
    """A graph is replayed over what its last replay left there, and the first one over anything."""
    settings, logits = SETTINGS[1:], normal(len(SETTINGS) - 1, 300)
    want = kept(logits, *settings), drawn(logits, settings)
    torch.use_deterministic_algorithms(True)  # fills what is not written: integers with the largest there is
    try:
        assert (kept(logits, *settings), drawn(logits, settings)) == want
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
