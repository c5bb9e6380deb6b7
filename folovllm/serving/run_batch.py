"""`folovllm run-batch`: the requests of a file, without a port. vLLM: entrypoints/cli/run_batch.py"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

from folovllm.engine.builder.defaults import engine_options
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import add_engine_arguments, add_fields, engine_kwargs, needing
from folovllm.entrypoints.cli.vllm_options import add_vllm_arguments
from folovllm.entrypoints.commands import notes
from folovllm.errors import EngineDeadError
from folovllm.serving.command import HOW, add_model, check_config, read_template
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.openai.options import ServerOptions
from folovllm.vllm_names import arguments

_OF_THE_SERVER = (
    "served_model_name", "generation_config", "override_generation_config", "tool_call_parser", "reasoning_parser",
    "chat_template", "default_chat_template_kwargs", "trust_chat_template", "response_role",
    "return_tokens_as_token_ids", "unknown_fields",
)  # fmt: skip
"""What of a server's options says how a request is answered."""


def add_parser(choices: Any) -> None:
    text = "answer the requests of a file, in the form of OpenAI's batches"
    about = "Answer each line of a file, as a server would. Ended early, it goes on where it was."
    parser = choices.add_parser("run-batch", help=text, description=about)
    add_model(parser)
    text = """requests, one a line: {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}"""
    parser.add_argument("-i", "--input-file", type=Path, required=True, metavar="FILE", help=text)
    text = "where the answers are added, one a line, in any order; what is answered there is not asked again"
    parser.add_argument("-o", "--output-file", type=Path, required=True, metavar="FILE", help=text)
    add_fields(parser, ServerOptions, *_OF_THE_SERVER, how=HOW, title="how requests are answered")
    add_engine_arguments(parser, performance_mode="throughput")
    add_vllm_arguments(parser, arguments())
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    engine = {"performance_mode": "throughput", **engine_options(engine_kwargs(args))}
    given = commands.given(args, ServerOptions)
    given["chat_template"] = read_template(given.get("chat_template"))
    options = ServerOptions(**given, max_queue=2**31, max_body_bytes=2**31)
    check_config(options.model, engine)
    with needing("serve", "`run-batch`"):
        from folovllm.serving.openai.batch import batch_files, run_batch

    status = 0
    with batch_files(args.input_file, args.output_file) as files:
        if files.num_before < files.num_lines:
            with closing(EngineProcess(options.model, **engine, observers=args.observers)) as process:
                try:
                    asyncio.run(run_batch(files, options, process, notes))
                except EngineDeadError as error:
                    notes.print(f"error: {error}; the same command goes on", style="red", markup=False)
                    status = 1
        notes.print(files.summary(), markup=False)
    return status
