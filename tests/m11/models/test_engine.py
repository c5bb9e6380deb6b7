"""A model of transformers with the rest of the engine: drafts, swapping, caches of 8 bits, text; what is refused."""

from __future__ import annotations

import pytest
import torch
import transformers

from folovllm import LLM, ModelLoadError, SamplingParams
from folovllm.config import EngineConfig
from folovllm.core.draft_length import DraftLength
from folovllm.engine.builder.components import choose_components
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import model_spec
from folovllm.models.transformers_model import Product, TransformersForCausalLM
from tests.helpers import add_byte_tokenizer, hf_greedy
from tests.m4.cpu_target import NEEDS_KERNELS
from tests.m11.models.tiny_types import NO_ENDS, config_of, generate, make_model, make_prompts

PROMPTS = make_prompts()
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def make(folder, **options):
    settings = {"dtype": "float32", "device": "cpu", "max_model_len": 128, "skip_tokenizer_init": True}
    return LLM(str(folder), **{**settings, **options})


def tokens(llm, prompts, params=GREEDY):
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """GPT-2 with one embedding for both ends and a token for each byte: (model, folder)."""
    values = {**NO_ENDS, "vocab_size": 257, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**values)).eval()
    model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    add_byte_tokenizer(folder)
    return model, folder


def test_auto_takes_our_decoder_where_it_knows_the_architecture(gpt2, tmp_path):
    llama = make_model("llama")
    llama.save_pretrained(tmp_path)
    found = [
        type(make(folder, model_impl=impl).engine.runner.model)
        for folder, impl in ((gpt2[1], "auto"), (tmp_path, "auto"), (tmp_path, "vllm"), (tmp_path, "transformers"))
    ]
    ours, theirs = DecoderForCausalLM, TransformersForCausalLM
    assert found == [theirs, ours, ours, theirs]
    with pytest.raises(ModelLoadError, match=r"^architectures \['GPT2LMHeadModel'\] of model_type 'gpt2' are not supp"):
        make(gpt2[1], model_impl="folovllm")
    with pytest.raises(ValueError, match="^model_impl must be one of 'auto', 'folovllm', 'transformers', got 'hf'"):
        make(gpt2[1], model_impl="hf")


def test_drafts_of_the_prompt_change_no_token(gpt2):
    """A random model repeats itself, so that what came before is often right."""
    model, folder = gpt2
    prompts = [PROMPTS[0], [5, 6, 7, 8] * 6]
    llm = make(folder, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    llm.engine.scheduler.drafts.length = DraftLength(3, None)  # always three: no clock decides
    assert tokens(llm, prompts) == [hf_greedy(model, prompt, 24) for prompt in prompts]
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) > 0


def test_swapped_sequences_come_back(tmp_path):
    """DeepSeek's keys and values have two sizes."""
    model = make_model("deepseek_v3")
    model.save_pretrained(tmp_path)
    options = {"num_kv_blocks": 24, "block_size": 4, "preemption_mode": "swap", "swap_space": 0.01}
    llm = make(tmp_path, model_impl="transformers", **options)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert tokens(llm, PROMPTS, params) == [generate(model, prompt) for prompt in PROMPTS]
    assert llm.engine.scheduler.preempter.num_swapped > 0


def test_text_goes_in_and_comes_out(gpt2):
    llm = make(gpt2[1], skip_tokenizer_init=False)
    ids = list(b"Hello")
    assert tokens(llm, "Hello") == tokens(llm, [ids]) == [hf_greedy(gpt2[0], ids, 24)]
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    answer = llm.chat([{"role": "user", "content": "Hello"}], GREEDY, chat_template=template, use_tqdm=False)
    assert list(answer[0].outputs[0].token_ids) == tokens(llm, [ids])[0]


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_a_cache_of_8_bits_is_read_with_windows(dtype, tmp_path):
    """Near the exact one: tokens of a random model may differ, log-probabilities by little."""
    make_model("gemma2").save_pretrained(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    exact, rounded = (
        make(tmp_path, kv_cache_dtype=kind).generate([PROMPTS[1]], params, use_tqdm=False)[0].outputs[0].logprobs[0]
        for kind in ("auto", dtype)
    )
    token = next(iter(exact))
    assert token in rounded
    assert 0 < abs(exact[token].logprob - rounded[token].logprob) < 0.1


def test_bfloat16_and_random_weights_run(tmp_path):
    config_of("gpt_oss").save_pretrained(tmp_path)
    llm = make(tmp_path, dtype="bfloat16", load_format="dummy")
    assert len(tokens(llm, [PROMPTS[0]])[0]) == 24


@pytest.mark.parametrize("option", [{"batch_invariant": True}, {"quantization": "w8a8"}])
def test_what_our_layers_do_is_refused(option, gpt2):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"^{name}={value!r} needs our own layers, and this model is computed by"):
        make(gpt2[1], **option)


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_a_head_is_refused(method, gpt2):
    with pytest.raises(ValueError, match=f"^speculative_config's {method!r} needs our own layers, and this model is"):
        make(gpt2[1], speculative_config={"method": method, "num_speculative_tokens": 2})


def test_it_is_not_cut_between_ranks(gpt2):
    config = EngineConfig.from_kwargs(model=str(gpt2[1]), tensor_parallel_size=2, max_model_len=128)
    spec = model_spec("auto", gpt2[0].config, 128)
    with pytest.raises(ValueError, match="^tensor_parallel_size=2 needs our own layers, and this model is computed by"):
        choose_components(config, gpt2[0].config, torch.float32, torch.device("cpu"), spec)


def test_a_quantised_checkpoint_is_refused_as_what_it_is(gpt2):
    config = EngineConfig.from_kwargs(model=str(gpt2[1]), max_model_len=128)
    hf_config = type(gpt2[0].config)(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    spec = model_spec("auto", gpt2[0].config, 128)
    with pytest.raises(ValueError, match="^a quantised checkpoint needs our own layers, and this model is computed by"):
        choose_components(config, hf_config, torch.float32, torch.device("cpu"), spec)


def test_missing_weights_are_refused_by_name(gpt2, tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(gpt2[0].config)
    state = {name: each for name, each in model.state_dict().items() if "h.1.mlp.c_fc" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelLoadError, match=r"its checkpoint lacks transformer\.h\.1\.mlp\.c_fc\.bias, "):
        make(tmp_path)


@NEEDS_KERNELS
def test_linear_layers_are_computed_by_ours_unless_some_code_reads_a_weight(gpt2, monkeypatch):
    """GPT-2's are Conv1D: their weights lie the other way round."""
    product = type(make(gpt2[1]).engine.runner.model.hf.lm_head)
    assert product is Product
    gelu = transformers.models.gpt2.modeling_gpt2.GPT2MLP.forward
    monkeypatch.setattr(
        transformers.models.gpt2.modeling_gpt2.GPT2MLP, "forward",
        lambda self, x: gelu(self, x.to(self.c_proj.weight.dtype)),
    )  # fmt: skip
    llm = make(gpt2[1])
    assert type(llm.engine.runner.model.hf.lm_head) is torch.nn.Linear
    assert tokens(llm, PROMPTS[:1]) == [hf_greedy(gpt2[0], PROMPTS[0], 24)]
