import enum
import math

import pytest

from folovllm.utils.checks import FLOAT32_MAX, check_float, check_int, describe
from lab_judge import expect, invariant, raises


@invariant(1)
def test_an_int_that_is_large_enough_is_taken():
    expect(check_int("n", 1, minimum=1), None)
    expect(check_int("priority", -5), None)


@invariant(1)
def test_a_float_and_a_string_are_no_ints():
    with raises(ValueError):
        check_int("n", 3.0)
    with raises(ValueError):
        check_int("n", "3")


@invariant(1, likely="takes-bools")
def test_a_bool_is_no_int():
    with raises(ValueError):
        check_int("n", True, minimum=1)


@invariant(1, likely="asks-for-the-exact-type")
def test_an_int_of_a_type_of_its_own_is_one():
    level = enum.IntEnum("Level", ["LOW", "HIGH"])
    expect(check_int("n", level.HIGH, minimum=1), None)


@invariant(2)
def test_the_message_has_the_value_and_its_type():
    with raises(ValueError, says="n must be an integer, got 3.0 (float)"):
        check_int("n", 3.0, minimum=1)


@invariant(2)
def test_a_long_value_is_shown_as_describe_shows_it():
    long = "3" * 1000
    with raises(ValueError, says=f"n must be an integer, got {describe(long)} (str)"):
        check_int("n", long)


@invariant(3)
def test_a_limit_has_words_of_its_own():
    with raises(ValueError, says="seed must be non-negative, got -1"):
        check_int("seed", -1, minimum=0)
    with raises(ValueError, says="block_size must be positive, got 0"):
        check_int("block_size", 0, minimum=1)
    with raises(ValueError, says="width must be at least 2, got 1"):
        check_int("width", 1, minimum=2)


@invariant(3)
def test_the_caller_may_word_it_and_say_the_way_out():
    with raises(ValueError, says="max_tokens must be at least 1, got 0; use None"):
        check_int("max_tokens", 0, 1, must="be at least 1", way_out="use None")


@invariant(4)
def test_a_number_comes_back_as_it_was():
    expect(check_float("top_p", 0.25), 0.25)
    number = check_float("temperature", 2)
    expect((number, type(number)), (2, int))


@invariant(4, likely="asks-for-the-exact-type")
def test_a_number_of_a_type_of_its_own_is_one():
    share = type("Share", (float,), {})(0.25)  # as numpy's float64 is
    expect(check_float("top_p", share), 0.25)


@invariant(4)
def test_a_string_is_no_number():
    with raises(ValueError, says="top_p must be a number, got '0.9' (str)"):
        check_float("top_p", "0.9")
    long = "0" * 1000
    with raises(ValueError, says=f"top_p must be a number, got {describe(long)} (str)"):
        check_float("top_p", long)


@invariant(4, likely="takes-bools")
def test_a_bool_is_no_number():
    with raises(ValueError, says="top_p must be a number, got True (bool)"):
        check_float("top_p", True)


@invariant(5, likely="lets-nan-through")
def test_nan_is_refused():
    with raises(ValueError, says="top_p must be a finite number, got nan"):
        check_float("top_p", math.nan)


@invariant(5)
def test_infinity_is_refused():
    with raises(ValueError, says="temperature must be a finite number, got inf"):
        check_float("temperature", math.inf)
    with raises(ValueError, says="temperature must be a finite number, got -inf"):
        check_float("temperature", -math.inf)


@invariant(6)
@pytest.mark.parametrize("value", [1e39, -1e39])
def test_what_float32_cannot_hold_is_refused(value):
    with raises(ValueError, says=f"logit_bias must be at most 3.4e+38 in size, what float32 can hold, got {value}"):
        check_float("logit_bias", value)


@invariant(6, likely="isfinite-of-an-int")
def test_so_is_an_int_of_400_digits():
    with raises(ValueError, says="logit_bias must be at most 3.4e+38 in size, what float32 can hold, got 1000"):
        check_float("logit_bias", 10**400)


@invariant(6)
def test_the_largest_that_may_be_given_is_let_in():
    expect(check_float("logit_bias", FLOAT32_MAX), FLOAT32_MAX)
