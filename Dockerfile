# The image of every Lengthwise host: Airflow's parts, and workers on CPU.
#
# pip's settings (an index of your own, a CPU build of torch) are given as a build secret and stay out of the image:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf -t lengthwise .

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /opt/lengthwise
# The environment changes with the locks only; the code is copied after it.
COPY requirements.in requirements-dev.in requirements.lock requirements-data.lock pyproject.toml ./
COPY scripts/make_env.sh scripts/
COPY pipeline/__init__.py pipeline/
COPY compile/__init__.py compile/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf VENV=.venv scripts/make_env.sh

FROM python:3.11-slim
# libgomp1: OpenMP, which torch and OpenVINO load.
RUN apt-get update \
    && apt-get install --no-install-recommends --yes libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --create-home --home-dir /home/lengthwise lengthwise \
    && install --directory --owner 50000 --group 0 --mode 0770 /opt/airflow /opt/airflow/logs /data
WORKDIR /opt/lengthwise
COPY --from=build /opt/lengthwise/.venv .venv
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
