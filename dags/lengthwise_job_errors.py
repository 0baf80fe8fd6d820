"""Shows job files that cannot be DAGs as this file's import error in Airflow, and stops no other job with it.

Airflow takes every DAG of a file with an import error off the schedule. So the jobs that are fine are built by
lengthwise_jobs.py, which always imports, and the mistakes of the others are raised here, where there is no DAG to lose.
"""

from pathlib import Path

from pipeline.errors import JobError
from pipeline.job_folder import folder_from_environment, read_job_folder

ERRORS = read_job_folder(folder_from_environment(Path(__file__).parents[1] / "jobs")).errors
if ERRORS:
    raise JobError("\n".join(ERRORS.values()))
