from math import exp

import torch

from folovllm.sample.filters import Filters, keep_prefix
from lab_judge import expect, expect_close, invariant

OFF = {"temperature": 1.0, "top_k": 100, "top_p": torch.inf, "min_p": 0.0}
SIX = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]


def row(**settings):
    """Filters of one row; what is not given is off."""
    values = {**OFF, **settings}
    dtypes = {name: torch.int64 if name == "top_k" else torch.float64 for name in values}
    return Filters(**{name: torch.tensor([[value]], dtype=dtypes[name]) for name, value in values.items()})


def logits(*rows):
    return torch.tensor(rows).log()


@invariant(1)
def test_the_likeliest_weighs_one_and_the_order_falls():
    found = keep_prefix(logits([0.1, 0.4, 0.2, 0.3]), row(), 4)
    expect(found.ids, [[1, 3, 2, 0]])
    expect_close(found.weights, [[1.0, 0.75, 0.5, 0.25]])


@invariant(1)
def test_the_temperature_is_in_the_weights():
    found = keep_prefix(logits([0.1, 0.4, 0.2, 0.3]), row(temperature=0.5), 3)
    expect_close(
        found.weights,
        [[1.0, 0.5625, 0.25]],
    )
    expect(found.weights.dtype, torch.float64)


@invariant(1)
def test_large_logits_do_not_overflow():
    found = keep_prefix(torch.tensor([[1000.0, 999.0]]), row(temperature=0.5), 2)
    expect_close(found.weights, [[1.0, exp(-2)]])


@invariant(1)
def test_the_difference_is_taken_in_float64():
    low = torch.tensor(0.1)  # float32: 0.10000000149
    found = keep_prefix(torch.stack([torch.tensor(2.0), low])[None], row(), 2)
    error = abs(found.weights[0, 1].item() - exp(low.item() - 2.0))
    expect(error < 1e-12, True)


@invariant(1)
def test_what_is_not_kept_has_its_weight_too():
    found = keep_prefix(logits([0.1, 0.4, 0.2, 0.3]), row(top_k=2), 4)
    expect_close(found.weights, [[1.0, 0.75, 0.5, 0.25]])


@invariant(2)
def test_the_token_that_crosses_the_line_is_kept():
    found = keep_prefix(logits(SIX), row(top_p=0.75), 6)  # .40 .65 .80
    expect(found.keep, [[3]])


@invariant(2)
def test_no_token_is_kept_behind_a_sum_that_is_the_line():
    found = keep_prefix(logits([0.25, 0.25, 0.25, 0.25]), row(top_p=0.5), 4)  # .25 .50: reached
    expect(found.keep, [[2]])


@invariant(3)
def test_top_k_comes_first():
    found = keep_prefix(logits([0.4, 0.3, 0.2, 0.1]), row(top_k=2, top_p=0.5), 4)  # .4 of .7
    expect(found.keep, [[1]])


@invariant(3)
def test_the_mass_is_that_of_all_k():
    found = keep_prefix(logits(SIX), row(top_k=3, top_p=0.9), 6)  # .9 of .80 is .72: .40 .65 .80
    expect(found.keep, [[3]])


@invariant(4)
def test_min_p_is_a_ratio_to_the_likeliest():
    found = keep_prefix(logits(SIX), row(min_p=0.3), 6)  # at least .12
    expect(found.keep, [[3]])


@invariant(4)
def test_a_weight_of_min_p_itself_is_kept():
    found = keep_prefix(logits([0.4, 0.4, 0.2]), row(min_p=1.0), 3)
    expect(found.keep, [[2]])


@invariant(5)
def test_the_strictest_counts():
    found = keep_prefix(logits(SIX), row(top_k=5, top_p=0.95, min_p=0.2), 6)
    expect(found.keep, [[4]])  # 5, of .96 the line .912 is crossed by the fifth: 5, at least .08: 4


@invariant(5)
def test_one_is_always_kept():
    found = keep_prefix(logits(SIX), row(top_p=1e-9), 6)
    expect(found.keep, [[1]])


@invariant(5)
def test_one_is_kept_of_a_row_of_nan():
    found = keep_prefix(torch.full((1, 6), torch.nan), row(top_p=0.9, min_p=0.1), 6)
    at_least_one = found.keep.item() >= 1
    expect(at_least_one, True)


@invariant(6)
def test_all_are_kept_where_nothing_is_asked_for():
    found = keep_prefix(logits(SIX), row(), 6)
    expect(found.keep, [[6]])


@invariant(6)
def test_each_row_goes_by_its_own_settings():
    filters = Filters(
        temperature=torch.ones(3, 1).double(),
        top_k=torch.tensor([[4], [100], [2]]),
        top_p=torch.tensor([[torch.inf], [0.75], [0.5]]).double(),
        min_p=torch.zeros(3, 1).double(),
    )
    found = keep_prefix(logits(SIX, SIX, SIX), filters, 6)
    expect(found.keep, [[4], [3], [1]])


@invariant(6)
def test_each_rows_mass_is_that_of_its_own_k():
    filters = Filters(
        temperature=torch.ones(2, 1).double(),
        top_k=torch.tensor([[2], [6]]),
        top_p=torch.full((2, 1), 0.9).double(),
        min_p=torch.zeros(2, 1).double(),
    )
    found = keep_prefix(logits(SIX, SIX), filters, 6)  # .9 of .65 is .585, .9 of 1.0: .40 .65 .80 .90
    expect(found.keep, [[2], [4]])


@invariant(6)
def test_each_row_has_its_temperature_and_its_min_p():
    filters = Filters(
        temperature=torch.tensor([[1.0], [0.5]]).double(),
        top_k=torch.tensor([[100], [100]]),
        top_p=torch.full((2, 1), torch.inf).double(),
        min_p=torch.tensor([[0.0], [0.5]]).double(),
    )
    found = keep_prefix(logits([0.4, 0.3, 0.2], [0.4, 0.3, 0.2]), filters, 3)
    expect_close(found.weights, [[1.0, 0.75, 0.5], [1.0, 0.5625, 0.25]])
    expect(found.keep, [[3], [2]])


@invariant(6)
def test_logits_and_settings_are_only_read():
    asked, settings = logits(SIX), row(temperature=0.5, top_k=100, top_p=0.9, min_p=0.1)
    before = [asked.tolist(), settings.top_k.tolist(), settings.top_p.tolist(), settings.min_p.tolist()]
    keep_prefix(asked, settings, 6)
    after = [asked.tolist(), settings.top_k.tolist(), settings.top_p.tolist(), settings.min_p.tolist()]
    expect(after, before)
