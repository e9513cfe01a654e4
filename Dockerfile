# syntax=docker/dockerfile:1
# One image for the server, for the command line, and for the Spark Connect server: executors run Rebaser's code, so
# they need the same version of Python and the packages that this code imports.

FROM python:3.12-slim-bookworm AS build
RUN pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml README.md LICENSE deploy/constraints.txt ./
COPY rebaser_core rebaser_core
COPY rebaser_client rebaser_client
COPY rebaser rebaser
# Bytecode is made here, because the user below may not write there.
RUN uv venv /opt/rebaser \
 && uv pip install --no-cache --compile-bytecode --python /opt/rebaser/bin/python -c constraints.txt '.[server,spark]' \
 && rm -rf /opt/rebaser/lib/python3.12/site-packages/pyspark/examples \
           /opt/rebaser/lib/python3.12/site-packages/pyspark/data

FROM python:3.12-slim-bookworm
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /var/lib/rebaser rebaser
COPY --from=build /opt/rebaser /opt/rebaser
COPY deploy/entrypoint /usr/local/bin/rebaser-entrypoint
COPY deploy/healthcheck /usr/local/bin/rebaser-healthcheck
ENV PATH=/opt/rebaser/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/rebaser/bin/python \
    REBASER_HTTP=0.0.0.0:8421 \
    REBASER_SCRATCH=/tmp/rebaser \
    REBASER_LOG_FORMAT=json
USER rebaser
WORKDIR /var/lib/rebaser
# Probes and metrics. No compose file publishes this port.
EXPOSE 8421
# Alive, not ready: a container that waits for NATS or Spark needs no restart.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 \
  CMD ["python", "-I", "-S", "/usr/local/bin/rebaser-healthcheck"]
ENTRYPOINT ["tini", "--", "rebaser-entrypoint"]
CMD ["serve"]
