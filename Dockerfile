# The batch job as an image: the pinned requirements, the wheel, nothing else. Runs as nobody in particular, with a
# read-only root file system; it writes to the store and, for the short time, to /tmp.
#
#   docker build -t chargeback .
#   docker run --rm -v "$PWD:/data" -w /data chargeback run -c chargeback.yaml

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements/runtime.txt requirements/build.txt requirements/
# Requirements come before the source: they change less often, so their layer is kept.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv --without-pip /opt/chargeback \
    && /opt/build/bin/pip --python /opt/chargeback install --only-binary :all: --require-hashes --requirement requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY chargeback chargeback
COPY pricing pricing
COPY templates templates
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/chargeback install --no-deps --no-index /dist/*.whl \
    && /opt/chargeback/bin/chargeback --version

FROM python:3.11-slim
COPY --from=build /opt/chargeback /opt/chargeback
ENV HOME=/tmp \
    PATH=/opt/chargeback/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["chargeback"]
CMD ["--help"]
