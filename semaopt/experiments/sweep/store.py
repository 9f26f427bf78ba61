"""The store: results of all runs in one SQLite file.

It uses SQLite's default rollback journal with ``synchronous = FULL``. A committed run is on disk, an interrupted one
leaves nothing, and between commits the store is a single file that can be copied, even on a network file system. (A
write-ahead log is faster for many writers; here one process writes, once per finished run.) SQLite does not verify
what it reads, so each row has a checksum.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semaopt.experiments.files import OutputError, canonical, digest, finite
from semaopt.experiments.training.run import Result

STORE_FILE = "runs.sqlite"
SCHEMA = 1
APPLICATION = 0x53454D41  # "SEMA", in the header of the file
_TABLES = """
CREATE TABLE programs (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE);
CREATE TABLE runs (
  key TEXT PRIMARY KEY, experiment TEXT NOT NULL, method TEXT NOT NULL, purpose TEXT NOT NULL, seed INTEGER NOT NULL,
  status TEXT NOT NULL, seconds REAL NOT NULL, finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  config TEXT NOT NULL, program INTEGER NOT NULL REFERENCES programs (id), checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX runs_by_method ON runs (experiment, purpose, method, seed);
CREATE TABLE curves (
  key TEXT NOT NULL REFERENCES runs (key) ON DELETE CASCADE, metric TEXT NOT NULL, epochs TEXT NOT NULL,
  last REAL, PRIMARY KEY (key, metric)) WITHOUT ROWID;
CREATE TABLE records (
  key TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
  finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, checksum TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Row:
    """A stored run: its configuration, the program that computed it, and its time."""

    key: str
    experiment: str
    config: dict[str, Any]
    program: dict[str, str]
    seconds: float
    finished: str
    """UTC."""


class Store:
    """Results by the key of their run, and records of finished studies.

    Args:
        path: the SQLite file; created if it does not exist.
        read_only: neither create nor write anything. Only a commit that was interrupted by a kill is rolled back.

    >>> import tempfile
    >>> with Store(Path(tempfile.mkdtemp()) / "runs.sqlite") as store:
    ...     store.put([({"key": "k", "experiment": "e", "method": "m", "purpose": "final", "seed": 0, "config": {},
    ...                  "program": {}}, Result({"loss": [2.0, 1.0]}, 0.5))])
    ...     store.get("k").last("loss"), store.get("other")
    (1.0, None)
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.damaged: list[str] = []
        """Keys of rows whose checksum does not match; such runs are computed again."""
        with self._errors():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            elif self._journal.exists() and all(os.access(one, os.W_OK) for one in (path, path.parent)):
                with closing(self._connect("rw")) as db:
                    db.execute("SELECT count(*) FROM sqlite_schema")  # reading rolls an interrupted commit back
            self._db = self._connect("ro" if read_only else "rwc")
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    @property
    def _journal(self) -> Path:
        """The file with which SQLite rolls back an interrupted commit."""
        return self.path.with_name(f"{self.path.name}-journal")

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, timeout=30, isolation_level=None, uri=True)

    def _open(self) -> None:
        db = self._db
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA trusted_schema = OFF")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        kind = db.execute("PRAGMA application_id").fetchone()[0]
        empty = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if empty and version == kind == 0 and not self.read_only:
            with self._transaction():
                for statement in _TABLES.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {SCHEMA}")
        elif kind == APPLICATION and version == SCHEMA:
            if not self.read_only:
                self._try_to_write()
        else:
            raise OutputError(
                f"{self.path} is not a store of this version (its schema is {version}, this program's is {SCHEMA}). "
                "Move it away, or choose another --out."
            )

    def _try_to_write(self) -> None:
        """Write and roll back: SQLite opens a read-only file without error and would fail after the first run."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        self._db.execute("ROLLBACK")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate SQLite's errors to :class:`OutputError` with a remedy."""
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # UnicodeError: damage in a name that SQLite reports
            full = any(word in str(error) for word in ("full", "I/O", "unable"))
            remedy = "If it is damaged, move it away; its runs are then computed again."
            if full:
                remedy = "Free disk space, or choose another --out."
            if "readonly" in str(error):
                remedy = "Make it writable (chmod u+w), or choose another --out."
                if self.read_only and self._journal.exists():
                    remedy = (
                        "The command that wrote it was killed. Run that command again; or copy the file and "
                        f"{self._journal.name} to a folder that can be written to."
                    )
            raise OutputError(f"{self.path} cannot be used ({error}). {remedy}") from error
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self.path} cannot be used ({error.strerror}). Choose another --out.") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def get(self, key: str) -> Result | None:
        """Return the result of a run, or None if it is missing or damaged."""
        with self._errors():
            row = self._db.execute("SELECT seconds, status, checksum FROM runs WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            pairs = self._db.execute("SELECT metric, epochs FROM curves WHERE key = ?", (key,)).fetchall()
        try:
            result = Result({metric: _floats(epochs) for metric, epochs in pairs}, float(row[0]), str(row[1]))
            intact = row[2] == _checksum(key, result)
        except (ValueError, TypeError):
            intact = False
        if not intact:
            self.damaged.append(key)
            return None
        return result

    def put(self, results: Sequence[tuple[Mapping[str, Any], Result]]) -> None:
        """Store results in one transaction; each comes with the columns of its run (:meth:`Run.row`)."""
        with self._errors(), self._transaction():
            for row, result in results:
                self._put(row, result)

    def _put(self, row: Mapping[str, Any], result: Result) -> None:
        db, key, program = self._db, row["key"], canonical(row["program"])
        db.execute("INSERT OR IGNORE INTO programs (fingerprint) VALUES (?)", (program,))
        number = db.execute("SELECT id FROM programs WHERE fingerprint = ?", (program,)).fetchone()[0]
        db.execute("DELETE FROM runs WHERE key = ?", (key,))
        db.execute(
            "INSERT INTO runs (key, experiment, method, purpose, seed, status, seconds, config, program, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(row[name] for name in ("key", "experiment", "method", "purpose", "seed")),
                *(result.status, result.seconds, canonical(row["config"]), number, _checksum(key, result)),
            ),
        )
        db.executemany(
            "INSERT INTO curves (key, metric, epochs, last) VALUES (?, ?, ?, ?)",
            [(key, metric, canonical(curve), _or_null(curve[-1])) for metric, curve in result.curves.items()],
        )

    def put_record(self, kind: str, name: str, key: str, content: Mapping[str, Any]) -> None:
        """Store a record, replacing one with the same key."""
        text = canonical(content)
        with self._errors(), self._transaction():
            self._db.execute("DELETE FROM records WHERE key = ?", (key,))
            self._db.execute(
                "INSERT INTO records (key, kind, name, content, checksum) VALUES (?, ?, ?, ?, ?)",
                (key, kind, name, text, digest([key, text])),
            )

    def records(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the records of a kind by key, the oldest first, without damaged ones."""
        query = "SELECT key, content, checksum FROM records WHERE kind = ? ORDER BY finished, name"
        with self._errors():
            rows = self._db.execute(query, (kind,)).fetchall()
        self.damaged += [key for key, text, checksum in rows if checksum != digest([key, text])]
        return {key: json.loads(text) for key, text, checksum in rows if checksum == digest([key, text])}

    def rows(self) -> Iterator[Row]:
        """Iterate over all runs in the order in which they finished."""
        query = (
            "SELECT key, experiment, config, fingerprint, seconds, finished FROM runs JOIN programs "
            "ON runs.program = programs.id ORDER BY finished, key"
        )
        with self._errors():
            found = self._db.execute(query).fetchall()
        for key, experiment, config, program, seconds, finished in found:
            try:
                yield Row(key, experiment, json.loads(config), json.loads(program), float(seconds), str(finished))
            except (ValueError, TypeError):
                self.damaged.append(key)

    def __len__(self) -> int:
        with self._errors():
            count: int = self._db.execute("SELECT count(*) FROM runs").fetchone()[0]
            return count


def _checksum(key: str, result: Result) -> str:
    return digest([key, result.curves, result.seconds, result.status])


def _floats(text: str) -> list[float]:
    return [math.nan if value is None else float(value) for value in json.loads(text)]


def _or_null(value: float) -> float | None:
    found: float | None = finite(value)
    return found
