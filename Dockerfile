# The whole bench in one image: `docker build -t tunnel-bench .`, then `docker run --gpus all tunnel-bench`.
# The digest is that of the index for all processors: the same image every time.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${BASE}

# Triton compiles its launcher when it first meets a GPU: that takes a compiler and the C library's headers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Dependencies before source: a change of code does not download torch again.
WORKDIR /opt/tunnel-bench
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' \
        > /tmp/dependencies.txt \
    && pip install --no-cache-dir -c constraints.txt setuptools -r /tmp/dependencies.txt \
    && rm /tmp/dependencies.txt
COPY . .
# Any user may be chosen with --user: home and results are open to all, and the name needs no entry in passwd.
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && rm -rf build ./*.egg-info \
    && mkdir -m 1777 /home/bench /results
ENV HOME=/home/bench \
    USER=bench \
    TRITON_CACHE_DIR=/home/bench/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/bench/inductor \
    PYTHONUNBUFFERED=1 \
    TUNNEL_BENCH_RESULTS=/results \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /home/bench

# Last, because it changes with every commit. Records name it, with -dirty where there was more than the commit: an image
# has no git to ask.
ARG COMMIT=
ENV TUNNEL_BENCH_COMMIT=${COMMIT}
LABEL org.opencontainers.image.title="tunnel-bench" \
      org.opencontainers.image.description="Which sequence architectures really perform Bayesian inference?" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.revision="${COMMIT}"

ENTRYPOINT ["bench"]
CMD ["run", "--preset", "auto"]
