"""Fixtures of M10's tests: the stand-in for a GPU, and random models with experts, one of each kind."""

from __future__ import annotations

import pytest

from tests.m3.oracle import Oracle
from tests.m4.conftest import fake_cuda, patch_once_a_launch  # noqa: F401
from tests.m6.conftest import fixed_order  # noqa: F401
from tests.m9.ranks_support import rank_threads  # noqa: F401
from tests.m10.support import KINDS


@pytest.fixture(scope="session", params=KINDS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Of Qwen's, the second of three layers has an MLP and no experts."""
    dense = {} if request.param == "mixtral" else {"mlp_only_layers": [1]}
    return Oracle(tmp_path_factory.mktemp(request.param), request.param, num_hidden_layers=3, **dense)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("qwen"), "qwen3_moe", num_attention_heads=2, num_key_value_heads=1)
