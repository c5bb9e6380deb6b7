"""A model of the hub as a folder here, where its name alone does not lead to what was asked for.

    Qwen/Qwen3-0.6B                    stays: transformers and huggingface_hub find it, or download it
    … with revision, download_dir      the folder of that version, in that place; or with hf_token
    … and no hub in reach              the folder that an earlier run has downloaded, or an error within seconds

huggingface_hub asks a hub that is out of reach six times for each file, which takes a minute.

vLLM: model_executor/model_loader/weight_utils.py (download_weights_from_hf)
"""

from __future__ import annotations

from pathlib import Path

from folovllm.config import EMBEDDED_MODEL
from folovllm.errors import ModelLoadError
from folovllm.model_loader.model_files import hub_hint, readable_errors, resolve_model_path

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")
"""Of a repository: the weights, the configuration and the tokenizer."""
UNWANTED = ("original/*", "consolidated*")
SECONDS = 10.0


def hub_folder(
    model: str, revision: str | None = None, download_dir: str | None = None, hf_token: str | bool | None = None
) -> str:
    """`model` as it is where nothing else is needed, else the folder that it is in; downloaded first, if need be.

    Raises:
        ModelLoadError: the hub cannot be reached and the model has not been downloaded, or it has no such revision.
        ValueError: a revision of a folder.
    """
    if model == EMBEDDED_MODEL or Path(model).expanduser().exists():
        if revision is not None:
            raise ValueError(f"revision must be None for a model that is here, got {revision!r} for {model!r}")
        return model
    resolve_model_path(model)  # what can be no hub id is refused
    problem = _out_of_reach(model)
    if not problem and revision is None and download_dir is None and hf_token is None:
        return model
    from huggingface_hub import snapshot_download

    cache = None if download_dir is None else str(Path(download_dir).expanduser())
    try:
        with readable_errors(model, hint=hub_hint(model)):
            return snapshot_download(
                model, revision=revision, cache_dir=cache, allow_patterns=list(FILES), ignore_patterns=list(UNWANTED),
                local_files_only=bool(problem), token=hf_token,
            )  # fmt: skip
    except ModelLoadError:
        if not problem:
            raise
        raise ModelLoadError(
            f"model {model!r} cannot be loaded: {problem}, and it has not been downloaded here; {hub_hint(model)}"
        ) from None


def _out_of_reach(model: str) -> str | None:
    """Why the hub cannot be asked; None where it can. "" where nobody wants it asked."""
    from huggingface_hub import constants, get_session, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return ""
    try:
        get_session().head(hf_hub_url(model, "config.json"), timeout=SECONDS)
    except Exception as error:  # of whichever library it asks with
        return f"the hub at {constants.ENDPOINT} cannot be reached ({' '.join(str(error).split())})"
    return None
