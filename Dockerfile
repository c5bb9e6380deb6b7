# The server on a CPU, for this machine only:
#     docker build -t folovllm . && docker run --rm -p 127.0.0.1:8000:8000 -v models:/models folovllm
# What comes behind the image's name are options of `folovllm serve`. Where others can reach it, give it --api-key.
# /models keeps what the hub sends from one container to the next; it is healthy when /health answers.
# PyTorch's CPU build; g++ compiles the engine's kernels for the CPU that the container meets.
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 folovllm \
    && install -d -o folovllm /models

WORKDIR /opt/folovllm
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY folovllm folovllm
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[serve]'

USER 1000
WORKDIR /home/folovllm
ENV HF_HOME=/models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=300s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["folovllm", "serve", "--host", "0.0.0.0"]
