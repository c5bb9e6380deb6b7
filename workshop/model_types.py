"""The table of transformers' types that were tried: each computed in our engine, beside generate().

    python -m workshop.model_types --json docs/benchmarks/data/model-types.json

The types, and how they are run, are those of tests/m11/models/tiny_types.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers

from folovllm import ModelLoadError
from folovllm.bench.report import Report
from folovllm.models.transformers_model import transformers_spec
from tests.m11.models.tiny_types import (
    MAX_MODEL_LEN,
    REFUSED,
    TYPES,
    config_of,
    generate,
    logprobs_of,
    make_model,
    make_prompts,
    run_engine,
)


def compare(model_type: str, folder: Path) -> dict[str, Any]:
    """A row of the table."""
    spec = transformers_spec(config_of(model_type), MAX_MODEL_LEN)
    model, prompts = make_model(model_type), make_prompts()
    model.save_pretrained(folder)
    run = run_engine(folder, prompts)
    wanted = [generate(model, prompt) for prompt in prompts]
    worst = 0.0
    for tokens, logprobs in zip(run.tokens, run.logprobs, strict=True):
        for prompt, of_prompt, got in zip(prompts, tokens, logprobs, strict=True):
            exact = logprobs_of(model, prompt, of_prompt)
            worst = max(worst, *(abs(a - b) for a, b in zip(exact, got, strict=True)))
    extras = [layer.extras for layer in spec.layers]
    windows = {each.sliding_window for each in extras} - {None}
    return {
        "model_type": model_type,
        "class": type(model).__name__,
        "computed": "yes",
        "equal": sum(got == wanted[at] for of_turn in run.tokens for at, got in enumerate(of_turn)),
        "answers": 2 * len(prompts),
        "tokens": len({token for each in wanted for token in each}),
        "logprob_off": worst,
        "windows": f"{sum(each.sliding_window is not None for each in extras)} of {len(extras)}" if windows else "",
        "soft_cap": "yes" if any(each.logits_soft_cap for each in extras) else "",
        "sinks": "yes" if any(each.sinks is not None for each in extras) else "",
        "preemptions": run.preemptions,
        "hits": run.hits,
        "refused": "",
    }


def refusal(model_type: str) -> str:
    try:
        transformers_spec(config_of(model_type), MAX_MODEL_LEN)
    except ModelLoadError as error:
        return str(error)
    raise RuntimeError(f"{model_type} was not refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for model_type in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(model_type, Path(folder)))
        print(rows[-1], flush=True)
    for model_type in REFUSED:
        empty = dict.fromkeys(rows[0]) | dict.fromkeys(("windows", "soft_cap", "sinks"), "")
        reason = refusal(model_type).partition(": ")[2]
        rows.append({**empty, "model_type": model_type, "class": "", "computed": "no", "refused": reason})
    report = Report(
        "model-types", "Model types of transformers in our engine, tiny random weights",
        "python -m workshop.model_types " + " ".join(sys.argv[1:]), list(rows[0]), rows,
        ["equal: answers with generate()'s tokens, of all in two rounds. Float32, chunks of 16 tokens."],
    )  # fmt: skip
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
