"""The dashboard that the server brings: each of its queries finds what it asks for in a scrape. Queries are read by
promql-parser, the scrape by prometheus_client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import promql_parser
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.support import running

VARIABLES = {"$__rate_interval": "1m", "$model_name": "embedded", "$engine": ".*"}


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """All in a query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("vector_selector", "expr", "lhs", "rhs"):
        yield from selectors(getattr(node, name)) if hasattr(node, name) else ()
    for each in getattr(node, "args", ()):
        yield from selectors(each)


def test_each_query_finds_its_metrics() -> None:
    guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    with running(engine={"speculative_config": guesses}) as server:
        board = httpx.get(f"{server.url}/assets/grafana.json").json()
        ask = {"prompt": "Once upon a time", "max_tokens": 5, "n": 2}
        httpx.get(f"{server.url}/metrics")  # from here on steps are counted by their tokens
        httpx.post(f"{server.url}/v1/completions", json=ask, timeout=600).raise_for_status()
        text = httpx.get(f"{server.url}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) >= 30
    for target in targets:
        query = target["expr"]
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        asked = list(selectors(promql_parser.parse(query)))
        assert asked, query
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for one in asked:
            found = [
                sample
                for sample in samples
                if sample.name == one.name
                and all(re.fullmatch(each.value, sample.labels.get(each.name, "")) for each in one.matchers.matchers)
            ]
            assert found, query
            assert all(shown <= sample.labels.keys() for sample in found), query
    (steps,) = (each for each in samples if each.name == "vllm:iteration_tokens_total_count")
    assert steps.value > 0
