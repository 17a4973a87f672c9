# Perigee in a container: `docker build -t perigee .`, or `docker compose up --build`.
#
# Builds with BuildKit and with the classic builder, so it uses neither cache mounts nor a syntax line. Dependencies
# have their own layer: an edit under src/ compiles only this package again.
#
# BUILD_IMAGE needs cargo (the version rust-toolchain.toml names) and a C compiler. RUNTIME_IMAGE needs glibc, at least
# as new as the build image's, and libgcc_s; nothing is run in it here, so it needs no shell either.
ARG BUILD_IMAGE=rust:1.95.0-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src

# The dependencies, compiled against an empty package with the same manifest.
COPY Cargo.toml Cargo.lock ./
COPY kernels/emulator/Cargo.toml kernels/emulator/
RUN mkdir -p src tests kernels/emulator/src/bin \
 && touch src/lib.rs tests/main.rs kernels/emulator/src/lib.rs \
 && echo 'fn main() {}' | tee src/main.rs > kernels/emulator/src/bin/ptx-run.rs \
 && cargo build --profile dist --locked --bin perigee \
 && rm -r src tests kernels

# The package. Copied files keep the age they have outside, which may be older than the empty build: `touch` tells
# cargo that they changed.
COPY . .
RUN touch src/lib.rs src/main.rs \
 && cargo build --profile dist --locked --bin perigee \
 && mkdir -p /image/bin /image/home /image/state/jit-cache \
 && cp target/dist/perigee /image/bin/ \
 && cp -r config /image/home/ \
 && chmod 2775 /image/state/jit-cache

FROM ${RUNTIME_IMAGE}
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
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 CMD ["perigee", "health"]
ENTRYPOINT ["perigee"]
CMD ["serve"]
