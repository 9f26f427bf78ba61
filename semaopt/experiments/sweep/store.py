"""The results of all runs in one SQLite file.

The journal is SQLite's default, a rollback journal, with ``synchronous = FULL``: a committed run is on the disk, a run
that was cut off leaves nothing, and between commits the store is one file that can be copied, also on a network file
system. (A write-ahead log would be faster for many writers; there is one, and it writes when a run ends.) SQLite does
not check what it reads back, so each row has a checksum of its own.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semaopt.experiments.files import OutputError, canonical, digest, finite
from semaopt.experiments.training.run import Result

SCHEMA = 1
APPLICATION = 0x53454D41  # "SEMA", in the file's header
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
"""

#: Beside the runs: what was made of them, so that a page can be made again by another version of the program. A store
#: without this table is an older one, and gets it when it is next written to.
_RECORDS = """
CREATE TABLE IF NOT EXISTS records (
  key TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
  finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, checksum TEXT NOT NULL) WITHOUT ROWID
"""
_MOVE = "if it is damaged, move it away: its runs are then done again"


@dataclass(frozen=True)
class Row:
    """A stored run: what it was, by which program, and when it ended."""

    key: str
    experiment: str
    config: dict[str, Any]
    program: dict[str, str]
    seconds: float
    finished: str
    """UTC."""


class Store:
    """Keeps results by the key of their run.

    With ``read_only`` nothing is created and nothing is written.

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
        """Keys of rows that were there but could not be trusted; their runs are done again."""
        with self._said():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._db = sqlite3.connect(address, timeout=30, isolation_level=None, uri=True)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

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
                db.execute(_RECORDS)
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {SCHEMA}")
        elif kind == APPLICATION and version == SCHEMA:
            if not self.read_only:
                db.execute(_RECORDS)
                self._try_to_write()
        else:
            raise OutputError(
                f"{self.path}: is not a store of this version (schema {version}, this program has {SCHEMA}); move it "
                "away, or choose another --out"
            )

    def _try_to_write(self) -> None:
        """And take it back: SQLite opens what it may only read too, and would tell when the first run has ended."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        self._db.execute("ROLLBACK")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # the latter: damage in a name that SQLite tells of
            full = any(word in str(error) for word in ("full", "I/O", "unable"))
            remedy = "free the disk, or choose another --out" if full else _MOVE
            if "readonly" in str(error):
                remedy = "let it be written to (chmod u+w), or choose another --out"
            raise OutputError(f"{self.path}: cannot be used ({error}); {remedy}") from error
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self.path}: cannot be used ({error.strerror}); choose another --out") from error

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
        """The result of a run, or None if there is none that can be trusted."""
        with self._said():
            row = self._db.execute("SELECT seconds, status, checksum FROM runs WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            pairs = self._db.execute("SELECT metric, epochs FROM curves WHERE key = ?", (key,)).fetchall()
        try:
            result = Result({metric: _floats(epochs) for metric, epochs in pairs}, float(row[0]), str(row[1]))
            whole = row[2] == _checksum(key, result)
        except (ValueError, TypeError):
            whole = False
        if not whole:
            self.damaged.append(key)
            return None
        return result

    def put(self, results: Sequence[tuple[Mapping[str, Any], Result]]) -> None:
        """Keep results, all of them or none; each comes with its run as :meth:`Run.row` describes it."""
        with self._said(), self._transaction():
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

    def keep(self, kind: str, name: str, key: str, content: Mapping[str, Any]) -> None:
        """Keep a record of this kind under a key; one that is there is replaced."""
        text = canonical(content)
        with self._said(), self._transaction():
            self._db.execute("DELETE FROM records WHERE key = ?", (key,))
            self._db.execute(
                "INSERT INTO records (key, kind, name, content, checksum) VALUES (?, ?, ?, ?, ?)",
                (key, kind, name, text, digest([key, text])),
            )

    def records(self, kind: str) -> dict[str, dict[str, Any]]:
        """The records of a kind by their keys, the oldest first; those that cannot be trusted are left out."""
        query = "SELECT key, content, checksum FROM records WHERE kind = ? ORDER BY finished, name"
        with self._said():
            there = self._db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'records'").fetchone()[0]
            rows = self._db.execute(query, (kind,)).fetchall() if there else []
        self.damaged += [key for key, text, checksum in rows if checksum != digest([key, text])]
        return {key: json.loads(text) for key, text, checksum in rows if checksum == digest([key, text])}

    def rows(self) -> Iterator[Row]:
        """All runs, in the order in which they ended."""
        query = (
            "SELECT key, experiment, config, fingerprint, seconds, finished FROM runs JOIN programs "
            "ON runs.program = programs.id ORDER BY finished, key"
        )
        with self._said():
            found = self._db.execute(query).fetchall()
        for key, experiment, config, program, seconds, finished in found:
            try:
                yield Row(key, experiment, json.loads(config), json.loads(program), float(seconds), str(finished))
            except (ValueError, TypeError):
                self.damaged.append(key)

    def __len__(self) -> int:
        with self._said():
            count: int = self._db.execute("SELECT count(*) FROM runs").fetchone()[0]
            return count


def _checksum(key: str, result: Result) -> str:
    return digest([key, result.curves, result.seconds, result.status])


def _floats(text: str) -> list[float]:
    return [math.nan if value is None else float(value) for value in json.loads(text)]


def _or_null(value: float) -> float | None:
    found: float | None = finite(value)
    return found
