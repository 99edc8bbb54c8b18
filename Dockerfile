# The command `lockstep` as an image: brokers, nameservers and the tools. Runs as a user of its own; brokers keep their logs below /data.
FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheel /src

FROM python:3.11-slim
COPY --from=wheel /wheel /wheel
RUN pip install --quiet --no-cache-dir "$(echo /wheel/*.whl)[server]" \
    && useradd --uid 10001 --create-home lockstep \
    && install --directory --owner lockstep --group lockstep /data
USER lockstep
WORKDIR /home/lockstep
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["lockstep"]
CMD ["--help"]
