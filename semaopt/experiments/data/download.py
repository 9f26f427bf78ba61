"""Downloads that leave either verified files or none.

A download goes to a hidden folder first, where it is verified, unpacked and verified again. Only then is each file
moved to its place. An interrupted download is resumed if its checksum is known.
"""

from __future__ import annotations

import bz2
import gzip
import http.client
import logging
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.files import CHUNK, Download, File, md5, verify

log = logging.getLogger(__name__)

OPENERS: dict[str, Any] = {"plain": open, "gz": gzip.open, "bz2": bz2.open}
FOLDER = ".download"
TIMEOUT = 30.0  # seconds without a byte

#: Called with the address, the bytes received so far and the total (0 if unknown).
Progress = Callable[[str, int, int], None]


def fetch_all(downloads: Sequence[Download], root: Path, progress: Progress = lambda *_: None) -> list[Path]:
    """Download missing and damaged files, one process at a time; return the new files."""
    folder = root / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            missing = [d for d in downloads if not all(is_intact(file, root) for file in d.files)]
            return [path for download in missing for path in _fetch(download, root, folder, progress)]
    except OSError as error:
        text = f"{root}: cannot be written to ({error.strerror or error}). Choose another root, or set SEMAOPT_DATA."
        raise DataError(text) from error


def is_intact(file: File, root: Path) -> bool:
    """Whether a file is in its place and passes :func:`verify`."""
    path = root / file.path
    try:
        return path.is_file() and bool(verify(file, path))
    except DataError:
        return False


def _fetch(download: Download, root: Path, folder: Path, progress: Progress) -> list[Path]:
    log.info("downloading %s (%.1f MB)", download.url, download.size / 1e6)
    part = folder / (download.url.rpartition("/")[2] + ".part")
    try:
        _receive(download, part, progress)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        if download.md5 is None:
            part.unlink(missing_ok=True)
        raise DataError(_unreachable(download, root, error)) from error
    try:
        found = md5(part)
        if download.md5 is not None and found != download.md5:
            text = f"{download.url}: the download has md5 {found} ({part.stat().st_size} bytes)"
            text += f", but the published one is {download.md5}. Nothing was changed"
            raise DataError(f"{text}. Try again, or {_by_hand(download, root)}")
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            unpacked = [Path(fresh, str(i)) for i in range(len(download.files))]
            _unpack(download, part, unpacked)
            for file, path in zip(download.files, unpacked, strict=True):
                verify(file, path)
            places = [root / file.path for file in download.files]
            for path, place in zip(unpacked, places, strict=True):
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
    finally:
        part.unlink(missing_ok=True)
    return places


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Append the body to the ``part`` of an earlier attempt; a body that ends early is an error."""
    have = part.stat().st_size if part.exists() and download.md5 is not None else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with closing(error):
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the part was already complete
                return
            raise urllib.error.URLError(f"the server answers {error.code} {error.reason}") from error
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            have = 0
        length = answer.headers["Content-Length"]
        total = have + int(length) if length else 0
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(download.url, have, total)
        if have < total:
            raise urllib.error.URLError(f"the connection ended after {have} of {total} bytes")


def _unpack(download: Download, packed: Path, out: Sequence[Path]) -> None:
    """Unpack each file to the path given for it; paths in the archive are never used for writing."""
    try:
        if download.form == "tar.gz":
            with tarfile.open(packed, "r:gz") as archive:
                for file, path in zip(download.files, out, strict=True):
                    with _member(archive, file) as source:
                        _copy(source, path, file, download)
            return
        opener: Callable[[Path, str], IO[bytes]] = OPENERS[download.form]
        with opener(packed, "rb") as source:
            _copy(source, out[0], download.files[0], download)
    except (tarfile.TarError, OSError, zlib.error, EOFError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a disk error; gzip and bz2 raise without errno
            raise
        raise DataError(f"{download.url}: is not a valid {download.form} file ({error}). Try again.") from error


def _member(archive: tarfile.TarFile, file: File) -> IO[bytes]:
    member = archive.getmember(file.path)
    content = archive.extractfile(member) if member.isreg() else None  # a link could point anywhere
    if content is None:
        raise tarfile.TarError(f"{file.path} is not a regular file")
    return content


def _copy(source: IO[bytes], path: Path, file: File, download: Download) -> None:
    """Copy at most twice the expected size: a small archive could unpack to more than the disk holds."""
    limit = 2 * file.size + CHUNK
    copied = 0
    with path.open("wb") as out:
        while copied <= limit and (chunk := source.read(CHUNK)):
            copied += out.write(chunk)
    if copied > limit:
        raise DataError(
            f"{download.url}: {file.path} unpacks to more than {limit} bytes, but should have {file.size}. Try again."
        )


def _by_hand(download: Download, root: Path) -> str:
    files = "; ".join(f"{root / file.path} ({file.known})" for file in download.files)
    packed = "" if download.form == "plain" else "unpack it and "
    return f"download {download.url} by hand, {packed}save it as {files}."


def _unreachable(download: Download, root: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{download.url} cannot be downloaded ({reason}). Try again, or {_by_hand(download, root)}"
