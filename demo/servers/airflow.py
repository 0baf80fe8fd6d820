"""A real Airflow on this machine: api-server, scheduler and dag-processor on loopback, on a database that is given."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from demo.airflow_client import AirflowClient, ApiError
from demo.servers.process import ServerError, free_ports, kept, wait_ready

# No triggerer: no task of ours defers. Each part is a process of its own, as on hosts; `airflow standalone` starts the
# triggerer as well and serves the task logs on all interfaces.
_PARTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
_USER = "admin"


@dataclass(frozen=True, slots=True)
class AirflowEndpoint:
    """A running Airflow: where it is, who may log in, and the settings that its processes have."""

    url: str
    username: str
    password: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)

    def client(self) -> AirflowClient:
        return AirflowClient(self.url, self.username, self.password)


@contextlib.contextmanager
def local_airflow(
    data_dir: Path,
    database_url: str,
    dags_dir: Path,
    *,
    environment: Mapping[str, str],
    pools: Mapping[str, int],
    port: int | None = None,
) -> Iterator[AirflowEndpoint]:
    """Run Airflow with its home in `data_dir` (kept between runs) until the block or this process ends.

    `environment` is added to what its tasks inherit; `pools` are created. Yields once every part is healthy. Raises
    ServerError when one is not.
    """
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)[0]
    login = _secrets(data_dir)
    settings = _settings(data_dir, database_url, dags_dir.resolve(), port, login)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env = inherited | dict(environment) | settings
    endpoint = AirflowEndpoint(f"http://127.0.0.1:{port}", _USER, login["password"], env)
    _migrate(data_dir, env)
    started = datetime.now(UTC)
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, arguments in _PARTS.items():
            argv = [sys.executable, "-m", "airflow", *arguments]
            log = data_dir / f"{name}.log"
            processes[name] = stack.enter_context(kept(argv, log, env=env, cwd=data_dir, grace_s=20))
        # Stopped together, not one after another: each takes seconds to end.
        stack.callback(lambda: [process.stdin.close() for process in processes.values() if process.stdin])
        client = endpoint.client()
        for name, process in processes.items():
            ready = partial(_healthy, client, name.replace("-", "_"), started)
            wait_ready(process, f"Airflow's {name}", data_dir / f"{name}.log", ready, timeout_s=180)
        for name, slots in pools.items():
            client.set_pool(name, slots, "one place per core")
        yield endpoint


def _healthy(client: AirflowClient, part: str, since: datetime) -> bool:
    """Whether a part works now; the last signs of life of the run before are no sign of it."""
    try:
        health = client.health()
    except (OSError, ApiError):
        return False
    # The api-server reports on the others; that it answers is its own health.
    if part == "api_server":
        return True
    beat = health[part][f"latest_{part}_heartbeat"]
    return health[part]["status"] == "healthy" and beat is not None and datetime.fromisoformat(beat) > since


def _secrets(data_dir: Path) -> dict[str, str]:
    """Password and keys of this installation: generated once, readable by their owner only."""
    path = data_dir / "secrets.json"
    if not path.exists():
        made = {
            "password": secrets.token_urlsafe(12),
            "jwt": secrets.token_urlsafe(48),
            "api": secrets.token_urlsafe(32),
            "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        }
        _write_private(path, json.dumps(made))
    login: dict[str, str] = json.loads(path.read_text())
    _write_private(data_dir / "passwords.json", json.dumps({_USER: login["password"]}))
    return login


def _write_private(path: Path, text: str) -> None:
    staged = path.with_suffix(".new")
    staged.unlink(missing_ok=True)
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    staged.rename(path)


def _settings(data_dir: Path, database_url: str, dags_dir: Path, port: int, login: Mapping[str, str]) -> dict[str, str]:
    """AIRFLOW__ variables of the whole installation."""
    sections: dict[str, dict[str, str]] = {
        "core": {
            "dags_folder": str(dags_dir),
            "load_examples": "False",
            "executor": "LocalExecutor",
            "parallelism": str(2 * (os.cpu_count() or 1) + 2),
            "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
            "simple_auth_manager_users": f"{_USER}:admin",
            "simple_auth_manager_passwords_file": str(data_dir / "passwords.json"),
            "fernet_key": login["fernet"],
            # Without it tasks call the default port, and fail with a connection error and an empty log.
            "execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
        },
        "database": {"sql_alchemy_conn": database_url, "load_default_connections": "False"},
        "api": {
            "host": "127.0.0.1",
            "port": str(port),
            "base_url": f"http://127.0.0.1:{port}",
            "workers": "1",
            "secret_key": login["api"],
        },
        "api_auth": {"jwt_secret": login["jwt"]},
        # The default of one second is most of what a small task costs.
        "scheduler": {
            "scheduler_idle_sleep_time": "0.25",
            # Tasks of an installation that was killed are found and run again after a minute, not after five.
            "task_instance_heartbeat_timeout": "60",
            "task_instance_heartbeat_timeout_detection_interval": "5",
        },
        "dag_processor": {"refresh_interval": "10", "min_file_process_interval": "10", "parsing_processes": "1"},
        "logging": {"base_log_folder": str(data_dir / "logs")},
        "usage_data_collection": {"enabled": "False"},
    }
    named = {
        f"AIRFLOW__{section.upper()}__{key.upper()}": value
        for section, keys in sections.items()
        for key, value in keys.items()
    }
    return named | {"AIRFLOW_HOME": str(data_dir / "home")}


def _migrate(data_dir: Path, env: Mapping[str, str]) -> None:
    """Bring the database's schema to this version of Airflow; nothing to do where a stamp says that it was done.

    The stamp holds the database too: a fresh database under an old home is migrated.
    """
    stamp = data_dir / "migrated"
    database = env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    wanted = f"{version('apache-airflow-core')} {_schema(database)}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    argv = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise ServerError(f"airflow db migrate failed with status {done.returncode}\n{done.stderr[-3000:]}")
    stamp.write_text(f"{version('apache-airflow-core')} {_schema(database)}")


def _schema(database_url: str) -> str:
    """Alembic's version of the schema that is in the database; empty when there is none."""
    from sqlalchemy import create_engine, inspect, text

    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return ""
            return ",".join(sorted(connection.execute(text("SELECT version_num FROM alembic_version")).scalars()))
    finally:
        engine.dispose()
