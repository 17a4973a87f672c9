# Perigee in a container: `docker build -t perigee .`, or `docker compose up --build`. With kernels for GPUs and their
# compiler: `docker build --target gpu -t perigee:gpu .`, or `docker compose --profile gpu up --build`.
#
# Builds with BuildKit and with the classic builder, so it uses neither cache mounts nor a syntax line. Dependencies
# have their own layer: an edit under src/ compiles only the packages of this repository again.
#
# BUILD_IMAGE needs cargo (the version rust-toolchain.toml names) and a C compiler. RUNTIME_IMAGE needs glibc, at least
# as new as the build image's, and libgcc_s; nothing is run in it here, so it needs no shell either. For the target `gpu` both
# need libstdc++, which NVRTC loads, and PYTHON_IMAGE needs bash and pip.
#
# The stages of `gpu` are behind `cpu`: the classic builder makes every stage up to the target, needed or not.
ARG BUILD_IMAGE=rust:1.95.0-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

# The manifests, each beside an empty source. An edit under src/ leaves this stage's files as they were, and with them the layer
# of the dependencies below.
FROM ${BUILD_IMAGE} AS manifests
WORKDIR /src
COPY . .
RUN find . -type f ! -name Cargo.toml ! -name Cargo.lock -delete \
 && find . -name Cargo.toml -execdir mkdir -p src tests \; -execdir touch lib.rs src/lib.rs tests/main.rs \; \
 && mkdir -p kernels/emulator/src/bin kernels/emulated/src/bin \
 && echo 'fn main() {}' | tee src/main.rs kernels/emulator/src/bin/ptx-run.rs > kernels/emulated/src/bin/emulated-serve.rs \
 && find . -type d -empty -delete

FROM ${BUILD_IMAGE} AS build
WORKDIR /src

# The dependencies, compiled for empty packages with the same manifests.
COPY --from=manifests /src ./
RUN cargo build --profile dist --locked --bin perigee \
 && rm -r src tests kernels

# The packages. Copied files keep the age they have outside, which may be older than the empty build: `touch` tells
# cargo that they changed.
COPY . .
ARG COMMIT=
RUN export BUILD_COMMIT="$COMMIT" && find src kernels -name lib.rs -exec touch {} + && touch src/main.rs \
 && cargo build --profile dist --locked --bin perigee \
 && mkdir -p /image/bin /image/home /image/state/jit-cache \
 && cp target/dist/perigee /image/bin/ \
 && cp -r config /image/home/ \
 && chmod 2775 /image/state/jit-cache

FROM ${RUNTIME_IMAGE} AS cpu
LABEL org.opencontainers.image.title="perigee" \
      org.opencontainers.image.description="Serving appliance for the Kimi K2 family of models" \
      org.opencontainers.image.licenses="MIT"

COPY --from=build /image/bin/ /usr/local/bin/
COPY --from=build /image/home/ /opt/perigee/
# Owned by the user below and writable by its group (0), so that an arbitrary user id of group 0 can fill it as well.
COPY --from=build --chown=10001:0 /image/state/ /opt/perigee/

# `config/` and `jit-cache/` are found relative to the working directory, as in the repository.
WORKDIR /opt/perigee
# Requests come from outside of the container, and its log goes to a collector.
ENV PERIGEE_SERVER__HOST=0.0.0.0 \
    PERIGEE_TELEMETRY__LOG_FORMAT=json
VOLUME ["/opt/perigee/jit-cache"]
USER 10001:0
EXPOSE 8000
STOPSIGNAL SIGTERM
# One hour for loading, in which failures do not count; the first success ends it.
HEALTHCHECK --interval=5s --timeout=3s --start-period=1h --retries=3 CMD ["perigee", "health"]
ENTRYPOINT ["perigee"]
CMD ["serve"]

# NVRTC from its wheel, in the version that the repository's own checks use.
FROM ${PYTHON_IMAGE} AS nvrtc
WORKDIR /src
COPY scripts/nvrtc scripts/
RUN CARGO_TARGET_DIR=/nvrtc scripts/nvrtc > /dev/null \
 && mkdir /library \
 && cp /nvrtc/cuda/nvidia/cu13/lib/libnvrtc.so.13 /nvrtc/cuda/nvidia/cu13/lib/libnvrtc-builtins.so.* /library/

# cuBLASLt from its wheel, for kernels.cublaslt.
FROM ${PYTHON_IMAGE} AS cublaslt
RUN python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action ignore --target /wheel nvidia-cublas==13.1.0.3 \
 && mkdir /library \
 && cp /wheel/nvidia/cu13/lib/libcublasLt.so.13 /library/ \
 && rm -rf /wheel

# Every kernel for every architecture: no GPU is needed, and no server that uses them compiles at its start. The headers
# of CUDA come out of the library again where a kernel needs them.
FROM build AS kernels
COPY --from=nvrtc /library/ /usr/local/lib/nvrtc/
RUN /image/bin/perigee kernels build --arch all --cache-dir /image/state/jit-cache \
        --set kernels.nvrtc_library=/usr/local/lib/nvrtc/libnvrtc.so.13 \
 && rm -rf /image/state/jit-cache/headers

# The same server with kernels and compiler. The driver comes from the host, with `--gpus all`; without one the server
# says so and computes on the CPU, unless device.backend = cuda asks for a GPU.
FROM cpu AS gpu
COPY --from=nvrtc /library/ /usr/local/lib/nvrtc/
COPY --from=cublaslt /library/ /usr/local/lib/cublas/
COPY --from=kernels --chown=10001:0 /image/state/ /opt/perigee/
ENV LD_LIBRARY_PATH=/usr/local/lib/cublas \
    PERIGEE_KERNELS__NVRTC_LIBRARY=/usr/local/lib/nvrtc/libnvrtc.so.13 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# What a build without --target gives.
FROM cpu
