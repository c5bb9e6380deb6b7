# The server on a CPU, for this machine only:
#     docker build -t folovllm . && docker run --rm -p 127.0.0.1:8000:8000 folovllm
# What comes behind the image's name are options of `folovllm serve`. Where others can reach it, give it --api-key.
# PyTorch's CPU build; g++ compiles the engine's kernels for the CPU that the container meets.
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 folovllm

WORKDIR /opt/folovllm
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY folovllm folovllm
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[serve]'

USER 1000
WORKDIR /home/folovllm
EXPOSE 8000
ENTRYPOINT ["folovllm", "serve", "--host", "0.0.0.0"]
