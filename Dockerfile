# The image of the Kubernetes agent: docker build -t tranche-agent:0.1.0 --build-arg TRANCHE_COMMIT="$(git rev-parse HEAD)" .
# To build without a registry, and with a bill of materials: make image
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements-image.lock requirements-build.lock ./
RUN python -m pip install --quiet --target /build --require-hashes -r requirements-build.lock \
 && python -m venv --without-pip /opt/tranche \
 && python -m pip --python /opt/tranche/bin/python install --quiet --no-compile --require-hashes -r requirements-image.lock
COPY LICENSE README.md pyproject.toml hatch_build.py ./
COPY simulator simulator
COPY src src
# The commit that `tranche version` shows.
ARG TRANCHE_COMMIT=
# Python uses the byte code without checking its sources, because their times differ between builds. The simulator's C sources are removed,
# because the agent needs only its board catalogue.
RUN PYTHONPATH=/build python -m pip --python /opt/tranche/bin/python install --quiet --no-compile --no-deps --no-build-isolation . \
 && rm -r /opt/tranche/lib/python3*/site-packages/tranche_simulator/native \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/tranche/lib

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG TRANCHE_COMMIT=
LABEL org.opencontainers.image.title="tranche-agent" \
      org.opencontainers.image.description="Partitions the NVIDIA GPUs of a Kubernetes node into slices and offers them to pods" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${TRANCHE_COMMIT}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
COPY --from=build /opt/tranche /opt/tranche
ENV PATH=/opt/tranche/bin:$PATH
# Check that it starts with all its libraries. If the base image lacks byte code for Python's own modules, this adds it for the modules used.
RUN python -c "import tranche.kubernetes.agent.process, tranche.cli.agent" \
 && python -c "import tranche.kubernetes.controller.process, tranche.dashboard.cluster.cluster_app" && openssl version && tranche --version
# The root file system may be read-only. /tmp and the node's folders are mounted.
ENV PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["tranche"]
CMD ["agent"]
