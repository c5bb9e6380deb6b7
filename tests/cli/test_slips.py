"""A slip is named before anything is loaded."""

from __future__ import annotations

import copy
import pickle

import pytest

from folovllm.config import EngineConfig
from folovllm.sampling_params import SamplingParams


def test_a_misspelt_keyword_of_sampling_names_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"^unknown keyword 'max_token'; did you mean 'max_tokens'\?$"):
        SamplingParams(max_token=3)
    params = SamplingParams(max_tokens=3)
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(("name", "meant"), [("fp16", "float16"), ("fp32", "float32"), ("bf16", "bfloat16")])
def test_a_short_name_of_a_dtype_names_the_whole_one(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"^dtype must be .*got '{name}'; did you mean '{meant}'\?$"):
        EngineConfig.from_kwargs(dtype=name)


def test_a_method_that_is_none_is_refused_before_its_number_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"^method must be one of .*got 'medusa'"):
        EngineConfig.from_kwargs(speculative_config={"method": "medusa"})
