# `server`, the last target and so the default, runs the command `lockstep`: brokers, nameservers, the dashboard and tools.
# `spark` runs the load generator and the pipeline that verifies its rows, by spark-submit; `etcd` is Debian's etcd, for docker-compose.ha.yml.
# All run as a user without privileges; brokers keep their logs below /data, docker-compose.secure.yml certificates and users in /security.
# The wheel has the native kernels; if Debian's compiler is too old for them it is pure Python, and the build says so.
FROM python:3.11-slim AS wheel
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends cargo >/dev/null && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --verbose --no-cache-dir --no-deps --wheel-dir /wheel /src

FROM python:3.11-slim AS base
COPY --from=wheel /wheel /wheel
RUN useradd --uid 10001 --create-home lockstep && install --directory --owner lockstep --group lockstep /data /security
WORKDIR /home/lockstep
ENV PYTHONUNBUFFERED=1

FROM base AS spark
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends default-jre-headless procps >/dev/null \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --quiet --no-cache-dir "$(echo /wheel/*.whl)[spark]"
COPY scripts/load_generator.py scripts/verify_load.py ./
USER lockstep
ENTRYPOINT ["spark-submit"]
CMD ["/home/lockstep/load_generator.py", "--help"]

FROM base AS etcd
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends etcd-server >/dev/null && rm -rf /var/lib/apt/lists/*
USER lockstep
ENTRYPOINT ["etcd"]

FROM base AS server
RUN pip install --quiet --no-cache-dir "$(echo /wheel/*.whl)[dashboard,ha,secure]"
USER lockstep
ENTRYPOINT ["lockstep"]
CMD ["--help"]
