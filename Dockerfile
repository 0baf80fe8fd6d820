# The images of Lengthwise hosts: Airflow's parts and workers on CPU (the default), and workers on AWS Neuron (`neuron`).
#
# pip's settings (an index of your own, a CPU build of torch) are given as a build secret and stay out of the image:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf -t lengthwise .
# The Neuron SDK comes from AWS's package repositories, which are arguments without a default (docs/inf2.md):
#   docker build --target neuron --build-arg NEURON_REPOSITORY=... --build-arg NEURON_APT_REPOSITORY=... \
#       --secret id=neuron-apt-key,src=neuron.asc -t lengthwise:neuron .

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /opt/lengthwise
# The environment changes with the locks only; the code is copied after it.
COPY requirements.in requirements-dev.in requirements.lock requirements-data.lock pyproject.toml ./
COPY scripts/make_env.sh scripts/
COPY pipeline/__init__.py pipeline/
COPY compile/__init__.py compile/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf VENV=.venv scripts/make_env.sh

FROM python:3.11-slim AS build-neuron
# Where pip finds torch-neuronx and neuronx-cc; apt's line for the runtime, after `deb [signed-by=...]`: URI SUITE main.
ARG NEURON_REPOSITORY
ARG NEURON_APT_REPOSITORY
RUN test -n "$NEURON_REPOSITORY" && test -n "$NEURON_APT_REPOSITORY" \
    || { echo "give --build-arg NEURON_REPOSITORY and NEURON_APT_REPOSITORY: see docs/inf2.md" >&2; exit 1; }
# The runtime's libraries and neuron-ls, neuron-top, neuron-monitor, all below /opt/aws/neuron; the driver is the host's.
RUN --mount=type=secret,id=neuron-apt-key,target=/run/neuron.asc,mode=0444,required=true \
    apt-get update && apt-get install --no-install-recommends --yes ca-certificates \
    && echo "deb [signed-by=/run/neuron.asc] $NEURON_APT_REPOSITORY" > /etc/apt/sources.list.d/neuron.list \
    && apt-get update \
    && apt-get install --no-install-recommends --yes aws-neuronx-runtime-lib aws-neuronx-collectives aws-neuronx-tools \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /opt/lengthwise
COPY requirements.in requirements-neuron.in pyproject.toml ./
COPY pipeline/__init__.py pipeline/
COPY compile/__init__.py compile/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv .venv \
    && .venv/bin/pip install --extra-index-url "$NEURON_REPOSITORY" -r requirements-neuron.in \
    && .venv/bin/pip install --no-deps --editable .

FROM python:3.11-slim AS host
# libgomp1: OpenMP, which torch and OpenVINO load.
RUN apt-get update \
    && apt-get install --no-install-recommends --yes libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --create-home --home-dir /home/lengthwise lengthwise \
    && install --directory --owner 50000 --group 0 --mode 0770 /opt/airflow /opt/airflow/logs /data
WORKDIR /opt/lengthwise
COPY pyproject.toml LICENSE ./
COPY compile compile
COPY pipeline pipeline
COPY dags dags
COPY jobs jobs
ENV PATH=/opt/lengthwise/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/lengthwise/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    LENGTHWISE_JOBS=/opt/lengthwise/jobs \
    LENGTHWISE_CACHE=/home/lengthwise/.cache/lengthwise
USER 50000:0
CMD ["lengthwise", "doctor"]

FROM host AS neuron
COPY --from=build-neuron /opt/aws/neuron /opt/aws/neuron
COPY --from=build-neuron /opt/lengthwise/.venv .venv
ENV PATH=/opt/lengthwise/.venv/bin:/opt/aws/neuron/bin:$PATH \
    LD_LIBRARY_PATH=/opt/aws/neuron/lib

# The last stage is what `docker build` makes when none is named.
FROM host AS cpu
COPY --from=build /opt/lengthwise/.venv .venv
