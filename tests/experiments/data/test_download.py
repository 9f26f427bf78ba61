"""Downloads from a local server: intact, damaged, interrupted and missing files."""

import bz2
import gzip
import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from semaopt.experiments.data import DataError
from semaopt.experiments.data.catalogue import SETS, DataSet
from semaopt.experiments.data.download import FOLDER, fetch_all
from semaopt.experiments.data.files import Download, File

BODY = b"one,two\n" * 1000


def md5(content):
    return hashlib.md5(content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        body = server.bodies.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        if server.ranges and self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : server.cut])

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.bodies, server.asked, server.ranges, server.cut = {}, [], True, None
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files_under(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.name != "lock")


def one(server, form="plain", body=BODY, known=True, sums=True):
    pack = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress}[form]
    server.bodies["/it"] = packed = pack(body)
    file = File("sub/it.csv", len(BODY), md5(BODY) if sums else None, None if sums else 1000)
    return Download(f"{server.url}/it", (file,), form, md5(packed) if known else None)


@pytest.mark.parametrize("form", ["plain", "gz", "bz2"])
def test_a_file_is_put_in_place_and_not_fetched_again(server, tmp_path, form):
    download, seen = one(server, form), []
    assert fetch_all([download], tmp_path, lambda *args: seen.append(args)) == [tmp_path / "sub" / "it.csv"]
    assert (tmp_path / "sub" / "it.csv").read_bytes() == BODY
    assert files_under(tmp_path) == ["sub/it.csv"]
    assert seen[-1][1] == seen[-1][2] > 0
    assert fetch_all([download], tmp_path) == []
    (tmp_path / "sub" / "it.csv").write_bytes(b"damaged")
    assert len(fetch_all([download], tmp_path)) == 1
    assert len(server.asked) == 2


@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_checksum_keeps_the_old_file(server, tmp_path, known):
    download = one(server, known=known)
    server.bodies["/it"] = BODY[:-1] + b"!"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "it.csv").write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"md5 .*the published one is {md5(BODY)}"):
        fetch_all([download], tmp_path)
    assert files_under(tmp_path) == ["sub/it.csv"]
    assert (tmp_path / "sub" / "it.csv").read_bytes() == b"mine"


def test_without_a_checksum_the_rows_are_counted_first(server, tmp_path):
    download = one(server, known=False, sums=False)
    server.bodies["/it"] = BODY[:-16]
    with pytest.raises(DataError, match="has 998 rows, but 1000 are published"):
        fetch_all([download], tmp_path)
    assert files_under(tmp_path) == []
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "it.csv").write_bytes(b"one line\n")
    with pytest.raises(DataError, match="has 998 rows, but 1000 are published"):
        fetch_all([download], tmp_path)
    server.bodies["/it"] = BODY
    assert fetch_all([download], tmp_path) == [tmp_path / "sub" / "it.csv"]
    assert fetch_all([download], tmp_path) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed(server, tmp_path, ranges):
    download = one(server)
    server.cut = 3000
    with pytest.raises(DataError, match="cannot be downloaded") as caught:
        fetch_all([download], tmp_path)
    for part in ("sub/it.csv", md5(BODY), download.url):
        assert part in str(caught.value)
    assert files_under(tmp_path) == [f"{FOLDER}/it.part"]
    server.cut, server.ranges = None, ranges
    fetch_all([download], tmp_path)
    assert server.asked == [None, "bytes=3000-"]
    assert (tmp_path / "sub" / "it.csv").read_bytes() == BODY


def test_an_interrupted_download_without_checksum_is_discarded(server, tmp_path):
    download = one(server, known=False)
    server.cut = 3000
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch_all([download], tmp_path)
    assert files_under(tmp_path) == []


@pytest.mark.parametrize("form", ["gz", "bz2", "tar.gz"])
@pytest.mark.parametrize(
    "body",
    [b"<html>moved</html>", gzip.compress(BODY)[:-20], bz2.compress(BODY)[:-20], b""],
    ids=["a page", "half a gz", "half a bz2", "nothing"],  # bytes would differ: gzip stores the time
)
def test_archives_that_cannot_be_unpacked(server, tmp_path, form, body):
    server.bodies["/it"] = body
    with pytest.raises(DataError, match=f"is not a valid {form} file|md5 "):
        fetch_all([Download(f"{server.url}/it", (File("a", 10, md5(BODY)),), form)], tmp_path)
    assert files_under(tmp_path) == []


def archive(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
    return packed.getvalue()


def test_an_archive_writes_only_the_requested_files(server, tmp_path):
    root = tmp_path / "root"
    server.bodies["/it"] = archive(
        [("../evil", b"x"), ("/evil", b"x"), ("d/a", b"aa"), ("d/more", b"x"), ("d/b", b"b")]
    )
    files = (File("d/a", 2, md5(b"aa")), File("d/b", 1, md5(b"b")))
    fetch_all([Download(f"{server.url}/it", files, "tar.gz")], root)
    assert files_under(tmp_path) == ["root/d/a", "root/d/b"]


@pytest.mark.parametrize("members", [[("d/a", "/etc/hostname")], [("d/a/../a", b"aa")], []])
def test_links_and_missing_files_in_archives_are_errors(server, tmp_path, members):
    server.bodies["/it"] = archive(members)
    with pytest.raises(DataError, match=r"is not a valid tar.gz file \(.*d/a"):
        fetch_all([Download(f"{server.url}/it", (File("d/a", 2, md5(b"aa")),), "tar.gz")], tmp_path)
    assert files_under(tmp_path) == []


def test_unpacking_stops_at_a_size_limit(server, tmp_path):
    server.bodies["/it"] = gzip.compress(bytes(5_000_000))
    with pytest.raises(DataError, match="unpacks to more than"):
        fetch_all([Download(f"{server.url}/it", (File("a", 10, md5(BODY)),), "gz")], tmp_path)
    assert files_under(tmp_path) == []


def test_no_server_and_no_such_page(server, tmp_path):
    download = one(server)
    del server.bodies["/it"]
    with pytest.raises(DataError, match=r"the server answers 404 .*Try again, or download .*/it by hand, save it as"):
        fetch_all([download], tmp_path)
    gone = Download("http://127.0.0.1:9/it", download.files)
    with pytest.raises(DataError, match=rf"cannot be downloaded .*it.csv \(md5 {md5(BODY)}\)"):
        fetch_all([gone], tmp_path)
    assert files_under(tmp_path) == []


def test_a_root_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written to .*set SEMAOPT_DATA"):
        fetch_all([one(server)], tmp_path / "file")


def test_loading_fetches_missing_files(server, tmp_path, monkeypatch):
    from semaopt.experiments import data
    from tests.experiments.data.official import bbbp

    bbbp(tmp_path / "elsewhere")
    content = (tmp_path / "elsewhere" / "BBBP.csv").read_bytes()
    server.bodies["/BBBP.csv"] = content
    download = Download(f"{server.url}/BBBP.csv", (File("BBBP.csv", len(content), md5(content)),))
    monkeypatch.setitem(SETS, "bbbp", DataSet("bbbp", "tiny", SETS["bbbp"].reader, (download,)))
    root = tmp_path / "root"
    assert data.load("bbbp", root=root).describe()["molecules"] == 40
    assert data.fetch("bbbp", root) == []
    (root / "BBBP.csv").unlink()
    assert data.fetch("bbbp", root) == [root / "BBBP.csv"]


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (("list",), 0, "Not found, 55.0 MB. Get it with: semaopt data fetch mnist"),
        (("fetch", "tiny"), 0, "it.csv"),
        (("fetch", "digits"), 0, "digits is already available with scikit-learn."),
        (("fetch", "tinny"), 2, "Did you mean 'tiny'"),
    ],
)
def test_command(server, tmp_path, monkeypatch, capsys, args, status, text):
    import sys

    from semaopt import __main__ as program

    monkeypatch.setitem(SETS, "tiny", DataSet("tiny", "tiny", SETS["bbbp"].reader, (one(server),)))
    monkeypatch.setattr(sys, "argv", ["semaopt", "data", *args, "--root", str(tmp_path)])
    assert program.main() == status
    out, err = capsys.readouterr()
    assert text in out + err


def test_an_archive_with_another_checksum_is_not_even_opened(server, tmp_path):
    server.bodies["/it"] = archive([("d/a", b"aa")])
    download = Download(f"{server.url}/it", (File("d/a", 2, md5(b"aa")),), "tar.gz", md5(b"another"))
    with pytest.raises(
        DataError, match=rf"the download has md5 .*the published one is {md5(b'another')}. Nothing was changed"
    ):
        fetch_all([download], tmp_path)
    assert files_under(tmp_path) == []
