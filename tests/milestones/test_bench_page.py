"""The benchmarks page is the one that the stored measurements make, and its drawings say what the numbers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milestones.site import bench_page as page
from milestones.site.figures import drawing
from milestones.site.peers_chart import Dot, peer_lines


def test_a_measurement_that_no_machine_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs/benchmarks/data").mkdir(parents=True)
    (tmp_path / "docs/benchmarks/machines.toml").write_text('[[machine]]\nid = "x"\ndata = []\n')
    (tmp_path / "docs/benchmarks/data/throughput-peers-new.json").write_text("{}")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    with pytest.raises(
        ValueError, match=r"must name each throughput-peers-\*\.json once, look at throughput-peers-new"
    ):
        page.machines()


def report(**samples: list[float]) -> dict[str, Any]:
    rows = [
        {"engine": name, "dtype": "float32", "requests": 8, "batch": batch, "decode_tokens_per_s": rate,
         "prefill_tokens_per_s": 10 * rate}
        for name, batch, rate in (("folovllm", None, 100.0), ("hf", 1, 10.0), ("vllm", None, 50.0))
    ]  # fmt: skip
    details = (
        {"samples": [{"decode_tokens_per_s": samples[name]} for name in ("ours", "hf", "vllm")]} if samples else {}
    )
    return {"rows": rows, "details": details}


def test_rounds_become_an_interval_where_there_are_enough() -> None:
    six = {"ours": [100.0] * 6, "hf": [10.0] * 6, "vllm": [40.0, 50.0, 50.0, 50.0, 50.0, 80.0]}
    assert peer_lines([report(**six)])[0].first == Dot(2.0, 1.25, 2.5)
    three = {name: values[:3] for name, values in six.items()}
    assert peer_lines([report(**three)])[0].first == Dot(2.0)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_drawings_are_ones_that_a_page_can_show(lang: str) -> None:
    for path, text in page.files().items():
        if path.suffix == ".svg":
            svg, title, width = drawing(path.stem, text, lang)
            assert title
            assert width == 860
            assert ("个请求" in svg or "前缀缓存" in svg) == (lang == "zh")
