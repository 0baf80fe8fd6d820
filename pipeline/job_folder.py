"""Which jobs a folder of job files holds, and which of its files cannot be one. Light: every DAG parse imports it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JobError
from pipeline.job import Job, load_job

ENVIRONMENT_NAME = "LENGTHWISE_JOBS"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A folder's jobs by file, and the errors of the files that hold none."""

    jobs: dict[Path, Job]
    errors: dict[Path, str]


def folder_from_environment(default: Path) -> Path:
    """The folder that LENGTHWISE_JOBS names, else `default`."""
    return Path(os.environ.get(ENVIRONMENT_NAME) or default).resolve()


def read_job_folder(folder: Path) -> JobFolder:
    """Every *.yaml and *.yml file of the folder, by name. One bad file costs no other job anything.

    A name that two files give is an error of the later file. A missing folder is the folder's error.
    """
    if not folder.is_dir():
        return JobFolder(
            {}, {folder: f"{folder}: there is no such folder; set {ENVIRONMENT_NAME} to the job files' folder"}
        )
    jobs: dict[Path, Job] = {}
    errors: dict[Path, str] = {}
    owners: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml")):
        try:
            job = load_job(path)
        except JobError as error:
            errors[path] = str(error)
            continue
        if job.name in owners:
            errors[path] = f"{path}: name: {job.name!r} is taken by {owners[job.name]}; give this job another name"
            continue
        owners[job.name] = path
        jobs[path] = job
    return JobFolder(jobs, errors)
