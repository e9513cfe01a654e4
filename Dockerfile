# syntax=docker/dockerfile:1
# Two images. `server`, the default: servers and the command line, without Java, for a Spark elsewhere. `spark`: the same
# and Spark with Java: for a Spark Connect server, and for servers with a Spark of their own. Executors run Rebaser's
# code, so both have the same version of Python and of the packages that this code imports.
#
#     docker build --target server --tag rebaser:0.1.0 .
#     docker build --target spark --tag rebaser:0.1.0-spark .
#
# A tag can be moved. For builds that can be repeated, name the base by its digest, which `docker buildx imagetools
# inspect python:3.12-slim-bookworm` shows: --build-arg BASE=python:3.12-slim-bookworm@sha256:…
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
RUN pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml README.md LICENSE deploy/constraints.txt ./
COPY rebaser_core rebaser_core
COPY rebaser_client rebaser_client
COPY rebaser rebaser
RUN uv venv /opt/sbom \
 && uv pip install --no-cache --python /opt/sbom/bin/python -c constraints.txt cyclonedx-bom

# Bytecode is made here, because the user of the image may not write there.
FROM build AS build-server
RUN uv venv /opt/rebaser \
 && uv pip install --no-cache --compile-bytecode --python /opt/rebaser/bin/python -c constraints.txt \
      '.[server,spark-client,tracing]' \
 && /opt/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
      --output-file /opt/rebaser/sbom.cdx.json /opt/rebaser/bin/python \
 && rm -f /opt/rebaser/.lock

FROM build AS build-spark
RUN uv venv /opt/rebaser \
 && uv pip install --no-cache --compile-bytecode --python /opt/rebaser/bin/python -c constraints.txt \
      '.[server,spark,tracing]' \
 && rm -rf /opt/rebaser/lib/python3.*/site-packages/pyspark/examples \
           /opt/rebaser/lib/python3.*/site-packages/pyspark/data \
 && /opt/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
      --output-file /opt/rebaser/sbom.cdx.json /opt/rebaser/bin/python \
 && rm -f /opt/rebaser/.lock

# What both have in common. Nothing here can install packages or compile.
FROM ${BASE} AS base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m pip uninstall --yes --quiet pip setuptools wheel \
 && rm -rf /usr/local/lib/python3.*/ensurepip \
 && find / -xdev -perm /6000 -type f -exec chmod a-s {} + \
 && ! python3 -m pip --version 2>/dev/null \
 && groupadd --system --gid 10001 rebaser \
 && useradd --system --uid 10001 --gid 10001 --create-home --home-dir /var/lib/rebaser rebaser
COPY deploy/entrypoint /usr/local/bin/rebaser-entrypoint
COPY deploy/healthcheck /usr/local/bin/rebaser-healthcheck
ENV PATH=/opt/rebaser/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/rebaser/bin/python \
    REBASER_HTTP=0.0.0.0:8421 \
    REBASER_SCRATCH=/tmp/rebaser \
    REBASER_LOG_FORMAT=json
WORKDIR /var/lib/rebaser
# Probes and metrics. No compose file publishes this port.
EXPOSE 8421
# Alive, not ready: a container that waits for NATS or Spark needs no restart.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["rebaser-healthcheck"]
ENTRYPOINT ["tini", "--", "rebaser-entrypoint"]
CMD ["serve"]

FROM base AS spark
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/rebaser /opt/rebaser
USER 10001:10001

FROM base AS server
COPY --from=build-server /opt/rebaser /opt/rebaser
USER 10001:10001
