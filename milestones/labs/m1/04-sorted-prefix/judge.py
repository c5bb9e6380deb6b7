import torch

from folovllm.sample.filters import Filters, _among_likeliest
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
    found = _among_likeliest(logits([0.1, 0.4, 0.2, 0.3]), row(), 4, None)
    expect(found.ids, [[1, 3, 2, 0]])
    expect_close(found.weights, [[1.0, 0.75, 0.5, 0.25]])
    expect_close(found.cumulative, [[1.0, 1.75, 2.25, 2.5]])


@invariant(1)
def test_the_temperature_is_in_the_weights():
    found = _among_likeliest(logits([0.1, 0.4, 0.2, 0.3]), row(temperature=0.5), 3, None)
    expect_close(
        found.weights,
        [[1.0, 0.5625, 0.25]],
        mistakes={"forgets-the-temperature": [[1.0, 0.75, 0.5]]},
    )
    expect(found.weights.dtype, torch.float64)


@invariant(2)
def test_the_token_that_crosses_the_line_is_kept():
    found = _among_likeliest(logits(SIX), row(top_p=0.75), 6, None)  # .40 .65 .80
    expect(found.keep, [[3]], mistakes={"drops-the-boundary": [[2]]})


@invariant(3)
def test_top_k_comes_first():
    found = _among_likeliest(logits([0.4, 0.3, 0.2, 0.1]), row(top_k=2, top_p=0.5), 4, None)  # .4 of .7
    expect(found.keep, [[1]], mistakes={"mass-of-the-row": [[2]]})


@invariant(3)
def test_a_given_mass_counts():
    mass = torch.tensor([[2.5]])  # the whole row: 1 / .4
    found = _among_likeliest(logits([0.4, 0.3, 0.2, 0.1]), row(top_p=0.5), 3, mass)
    expect(found.keep, [[2]])


@invariant(4)
def test_min_p_is_a_ratio_to_the_likeliest():
    found = _among_likeliest(logits(SIX), row(min_p=0.3), 6, None)  # at least .12
    expect(found.keep, [[3]])


@invariant(5)
def test_the_strictest_counts():
    found = _among_likeliest(logits(SIX), row(top_k=5, top_p=0.95, min_p=0.2), 6, None)
    expect(found.keep, [[4]])  # 5, of .96 the line .912 is crossed by the fifth: 5, at least .08: 4


@invariant(5)
def test_one_is_always_kept():
    found = _among_likeliest(logits(SIX), row(top_p=1e-9), 6, None)
    expect(found.keep, [[1]])


@invariant(6)
def test_all_are_kept_where_nothing_is_asked_for():
    found = _among_likeliest(logits(SIX), row(), 6, None)
    expect(found.keep, [[6]])


@invariant(6)
def test_each_row_goes_by_its_own_settings():
    filters = Filters(
        temperature=torch.ones(3, 1).double(),
        top_k=torch.tensor([[4], [100], [2]]),
        top_p=torch.tensor([[torch.inf], [0.75], [0.5]]).double(),
        min_p=torch.zeros(3, 1).double(),
    )
    found = _among_likeliest(logits(SIX, SIX, SIX), filters, 6, None)
    expect(found.keep, [[4], [3], [1]])
