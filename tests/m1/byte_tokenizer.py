"""A tokenizer whose token i is byte i: every character beyond ASCII takes several tokens."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.helpers import add_byte_tokenizer

EOS, BOS = 256, 257
VOCAB_SIZE = 258
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """tests.helpers' tokenizer (token i is byte i, so every multi-byte character is several tokens), plus a BOS that
    it puts before plain text, and a chat template."""
    with TemporaryDirectory() as folder:
        add_byte_tokenizer(Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder, bos_token="<bos>", chat_template=CHAT_TEMPLATE)
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (EOS, BOS)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return tokenizer
