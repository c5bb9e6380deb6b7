"""The public names and the modules they live in: type checkers read this, and `__init__.py` loads names by it."""

from folovllm.config import CacheConfig as CacheConfig
from folovllm.config import EngineConfig as EngineConfig
from folovllm.config import ModelConfig as ModelConfig
from folovllm.config import ParallelConfig as ParallelConfig
from folovllm.config import SchedulerConfig as SchedulerConfig
from folovllm.engine.async_llm import AsyncLLM as AsyncLLM
from folovllm.engine.async_llm import AsyncLLMEngine as AsyncLLMEngine
from folovllm.engine.input_processor import TextPrompt as TextPrompt
from folovllm.engine.input_processor import TokensPrompt as TokensPrompt
from folovllm.engine.llm_engine import LLMEngine as LLMEngine
from folovllm.engine.stats import EngineStats as EngineStats
from folovllm.entrypoints.llm import LLM as LLM
from folovllm.errors import EngineDeadError as EngineDeadError
from folovllm.errors import FoloVLLMError as FoloVLLMError
from folovllm.errors import IllegalTransition as IllegalTransition
from folovllm.errors import LogitsNotFiniteError as LogitsNotFiniteError
from folovllm.errors import ModelLoadError as ModelLoadError
from folovllm.errors import NoTokenLeftError as NoTokenLeftError
from folovllm.errors import PromptTooLongError as PromptTooLongError
from folovllm.lora.request import LoRARequest as LoRARequest
from folovllm.model_loader import ModelLoader as ModelLoader
from folovllm.model_loader import get_model_and_tokenizer as get_model_and_tokenizer
from folovllm.outputs import CompletionOutput as CompletionOutput
from folovllm.outputs import Logprob as Logprob
from folovllm.outputs import PoolingOutput as PoolingOutput
from folovllm.outputs import PoolingRequestOutput as PoolingRequestOutput
from folovllm.outputs import RequestMetrics as RequestMetrics
from folovllm.outputs import RequestOutput as RequestOutput
from folovllm.pooling_params import PoolingParams as PoolingParams
from folovllm.request import Request as Request
from folovllm.request import RequestStatus as RequestStatus
from folovllm.request import Sequence as Sequence
from folovllm.request import SequenceData as SequenceData
from folovllm.request import SequenceStatus as SequenceStatus
from folovllm.sample.logits_processors import LogitsProcessor as LogitsProcessor
from folovllm.sample.logits_processors import register_logits_processor as register_logits_processor
from folovllm.sampling_params import BeamSearchParams as BeamSearchParams
from folovllm.sampling_params import RequestOutputKind as RequestOutputKind
from folovllm.sampling_params import SamplingParams as SamplingParams
from folovllm.sampling_params import SamplingType as SamplingType
from folovllm.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

__version__: str
