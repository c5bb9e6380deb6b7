"""The text beside the embedded model, for `folovllm quantize`: documents of its corpus that it was not trained on.

python -m workshop.calibration
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from workshop.corpus import documents

FILE = Path(__file__).parents[1] / "folovllm" / "assets" / "embedded" / "calibration.jsonl"
DOCUMENTS = 320
SEED = 1_000_003
"""Training draws from 0."""


def lines() -> list[str]:
    """A JSON object for each document: of a conversation, the last answer is what counts; of a text, all of it."""
    found = []
    for document in islice(documents(SEED), DOCUMENTS):
        pieces = [text for text, _ in document]
        if len(pieces) == 1:
            found.append({"text": pieces[0]})
        else:  # user, assistant, "\n", user, assistant, "\n"
            found.append({"prompt": "".join(pieces[:-2]), "completion": pieces[-2]})
    return [json.dumps(each, ensure_ascii=False) for each in found]


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{FILE}: {DOCUMENTS} documents, {FILE.stat().st_size:,} bytes")
