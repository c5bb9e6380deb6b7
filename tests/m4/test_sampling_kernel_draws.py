"""The sampling kernel draws the winner of two exact races: among stripes of columns, then inside of the winner.

A launch in Triton's interpreter takes some 30 ms a row, far too long for thousands of draws. So the claim is split: the
noise is computed for thousands of positions in one launch and makes races whose winners fit the distribution, and the
kernel draws the winner of its row's races.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from folovllm.sample.draw import NOT_FINITE
from folovllm.sample.kernels import sampler as kernel
from folovllm.sample.kernels.sampler import noise as kernel_noise
from tests.m1.sampling_reference import assert_fits, distribution
from tests.m4.sampling_kernel_support import CUDA, DEVICE, FILTERS, as_filters, kept, normal

pytestmark = pytest.mark.slow
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def _noise_kernel(out_ptr, seed, position_ptr, count, race, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, COLUMNS)
    noise = kernel_noise(seed, tl.load(position_ptr + row)[:, None], column[None, :] + row[:, None] * 0, race)
    tl.store(out_ptr + row[:, None] * count + column[None, :], noise, mask=column[None, :] < count)


def noise(seed: int, positions: torch.Tensor, count: int, race: int) -> torch.Tensor:
    """[len(positions), count], as the sampling kernel computes it row by row."""
    out = torch.empty(len(positions), count, device=DEVICE)
    block = 1024 if CUDA else len(positions)
    grid = (len(positions) // block,)
    _noise_kernel[grid](out, seed, positions.to(DEVICE), count, race, block, triton.next_power_of_2(count))
    return out.cpu()


def winners(weights: torch.Tensor, stripes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Who wins by the definition, [n]: of weights [vocab] or [n, vocab] under the noise of lanes [n, lanes] and of
    tokens [n, vocab], in float64."""
    lanes, vocab_size = stripes.shape[1], tokens.shape[1]
    weights = weights.double().expand(len(stripes), -1)
    sums = torch.nn.functional.pad(weights, (0, -vocab_size % lanes)).unflatten(1, (-1, lanes)).sum(1)
    stripe = (sums / stripes).argmax(dim=1, keepdim=True)
    return (weights / tokens).masked_fill(torch.arange(vocab_size) % lanes != stripe, 0.0).argmax(dim=1)


SEED = 2**62 + 12345
DRAWS = 16_384
LANES = 16


@pytest.fixture(scope="module")
def stripes() -> torch.Tensor:
    """The noise of 16,384 positions for 16 stripes."""
    return noise(SEED, torch.arange(DRAWS), LANES, 0)


@pytest.fixture(scope="module")
def races() -> torch.Tensor:
    """The noise of 16,384 positions for 40 tokens."""
    return noise(SEED, torch.arange(DRAWS), 40, 1)


def test_noise_is_exponential_for_each_position_and_for_each_token(races: torch.Tensor) -> None:
    assert (races > 0).all()
    for one in (races[:, 0], races[:, 39], races[0:400].flatten(), races[-400:].flatten()):
        assert stats.kstest(one.numpy(), "expon").pvalue > 1e-4
    # Small numbers decide races among many: they must be as fine as they are rare.
    smallest = races.flatten().sort().values[:2000]
    assert len(smallest.unique()) == 2000
    assert stats.kstest((smallest / smallest[-1]).numpy(), "uniform").pvalue > 1e-4


def test_noise_differs_between_positions_tokens_seeds_and_races(races: torch.Tensor, stripes: torch.Tensor) -> None:
    far = noise(SEED, torch.arange(1024) + 2**32, 40, 1)  # the upper half of the position counts too
    other = noise(SEED + 2**32, torch.arange(1024), 40, 1)  # and that of the seed
    pairs = [(races[:-1], races[1:]), (races[:, :-1], races[:, 1:]), (races[:1024], far), (races[:1024], other)]
    for a, b in (*pairs, (races[:, :LANES], stripes)):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 4 / a.numel() ** 0.5


@pytest.mark.parametrize("name", FILTERS)
def test_winners_of_the_races_fit_the_exact_distribution(name: str, races: torch.Tensor, stripes: torch.Tensor) -> None:
    """40 tokens in 16 stripes: 8 of three tokens and 8 of two."""
    logits = normal(40)
    expected = distribution(logits.tolist(), **FILTERS[name])
    (tokens,) = kept(logits[None], FILTERS[name])
    weights = torch.zeros(40)
    weights[tokens] = (logits[tokens] / FILTERS[name].get("temperature", 1.0)).exp()
    assert_fits(np.bincount(winners(weights, stripes, races), minlength=40), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_draws_the_winner_of_its_rows_races(
    dtype: torch.dtype, races: torch.Tensor, stripes: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties at the threshold of a filter, of which some stay, are in stripes of three that are read one by one."""
    monkeypatch.setattr(kernel, "LANES", LANES)
    monkeypatch.setattr(kernel, "DEEP", 1)
    settings = [*FILTERS.values(), {"top_k": 4}, {"temperature": 5.0}, {"temperature": 2.0, "min_p": 0.3}]
    settings.append({"top_k": 7, "temperature": 3.0})
    logits = normal(len(settings), 40).to(dtype)
    logits[-1, ::3] = logits[-1].amax()
    positions = torch.arange(len(settings)) * 101
    seeds = torch.tensor([SEED], device=DEVICE).expand(len(settings))
    got = kernel.sample(logits.to(DEVICE), as_filters(settings, 40), seeds, positions.to(DEVICE)).tolist()
    weights = torch.from_numpy(np.array([distribution(x.tolist(), **f) for x, f in zip(logits, settings, strict=True)]))
    assert got == winners(weights, stripes[positions], races[positions]).tolist()


@pytest.mark.exhaustive
def test_a_wide_row_is_read_to_its_end_in_tiles_that_come_ahead() -> None:
    """5,000 columns in 2,048 stripes; 20,000 are more than a tile of 8 of each."""
    for vocab_size in (5000, 20_000):
        logits, offsets = normal(4, vocab_size), torch.arange(4) * 77
        seeds = torch.full((4,), SEED, device=DEVICE)
        filters = as_filters([{"temperature": 9.0}, {"temperature": 1.5}, {"top_p": 0.9}, {}], vocab_size)
        got = kernel.sample(logits.to(DEVICE), filters, seeds, offsets.to(DEVICE))
        weights = (logits.double() / filters.temperature.cpu()).exp()
        weights[2] = torch.tensor(distribution(logits[2].tolist(), top_p=0.9))
        want = winners(weights, noise(SEED, offsets, kernel.LANES, 0), noise(SEED, offsets, vocab_size, 1))
        assert got.tolist() == want.tolist()


def test_the_largest_logit_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each place of a row of five tiles, by a greedy row, and by a random one that has nothing else to draw."""
    monkeypatch.setattr(kernel, "LANES", LANES)
    monkeypatch.setattr(kernel, "DEEP", 2)
    places = [0, 1, 15, 16, 31, 32, 127, 128, 149]
    logits = normal(len(places), 150)
    logits[range(len(places)), places] = 300.0
    for settings in ({"temperature": 0.0}, {}):
        got = kernel.sample(logits.to(DEVICE), as_filters([settings] * len(places), 150), *nothing_seeded(len(places)))
        assert got.tolist() == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_temperature_0_is_the_first_of_the_largest(dtype: torch.dtype) -> None:
    """Greedy rows stand among others, and filters change nothing for them."""
    logits = normal(4, 3000).to(dtype)
    logits[1, [5, 2999]] = logits[2, [1023, 1024]] = 50.0
    settings = [{"temperature": 0.0}, {"temperature": 0.0, "top_k": 3}, {"temperature": 0.0, "min_p": 0.2}, {}]
    got = kernel.sample(logits.to(DEVICE), as_filters(settings, 3000), *nothing_seeded(4)).tolist()
    assert got[:3] == [int(logits[0].argmax()), 5, 1023]


@pytest.mark.exhaustive
def test_a_low_temperature_keeps_the_odds() -> None:
    """Logits near 500 and a temperature of 0.01 are 50,000 in units of the noise: float32 has steps of 0.004 there."""
    logits = torch.full((100, 2), 500.0)
    logits[:, 1] += 0.01  # e to 1
    filters = as_filters([{"temperature": 0.01}] * 100, 2)
    seeds = torch.arange(100, device=DEVICE)
    tokens = kernel.sample(logits.to(DEVICE), filters, seeds, seeds)
    assert stats.binomtest(int(tokens.sum()), 100, np.e / (np.e + 1)).pvalue > 1e-4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3}], ids=str)
def test_a_row_that_cannot_be_drawn_from_is_marked(settings: dict) -> None:
    logits = normal(5, 60)
    logits[1, 7], logits[2, 9], logits[3], logits[4, 1:] = torch.nan, torch.inf, -torch.inf, -torch.inf
    tokens = kernel.sample(logits.to(DEVICE), as_filters([settings] * 5, 60), *nothing_seeded(5)).tolist()
    assert 0 <= tokens[0] < 60
    assert tokens[1:] == [NOT_FINITE] * 3 + [0]


@pytest.mark.parametrize("top_k", [9, 5])
def test_draws_of_the_kernel_itself_fit_the_exact_distribution(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """120 rows in one launch, each with an offset of its own: the kernel's races, not a copy of them. Each logit is the
    largest yet of its stripe, and what was summed before it is scaled down."""
    monkeypatch.setattr(kernel, "LANES", 4)
    monkeypatch.setattr(kernel, "DEEP", 1)
    logits = normal(9).sort().values
    filters = as_filters([{"temperature": 1.3, "top_k": top_k}] * 120, 9)
    seeds, offsets = torch.full((120,), 5, device=DEVICE), torch.arange(120, device=DEVICE)
    tokens = kernel.sample(logits.expand(120, -1).to(DEVICE), filters, seeds, offsets)
    assert_fits(np.bincount(tokens.cpu(), minlength=9), distribution(logits.tolist(), temperature=1.3, top_k=top_k))


def nothing_seeded(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(num_rows, dtype=torch.int64, device=DEVICE), torch.arange(num_rows, device=DEVICE)


def test_rows_of_a_wider_tensor_are_read_where_they_lie() -> None:
    wide = normal(2, 80).to(DEVICE)
    view, settings = wide[:, 20:60], as_filters([{"top_k": 1}, {"top_k": 1}], 40)
    assert kernel.sample(view, settings, *nothing_seeded(2)).tolist() == view.argmax(dim=-1).tolist()
    columns = wide[:, :40].T.contiguous().T
    assert kernel.sample(columns, settings, *nothing_seeded(2)).tolist() == columns.argmax(dim=-1).tolist()


def test_float64_logits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^logits must be one of .*float32.*, got torch.float64$"):
        kernel.sample(torch.zeros(1, 4, dtype=torch.float64, device=DEVICE), as_filters([{}], 4), *nothing_seeded(1))
