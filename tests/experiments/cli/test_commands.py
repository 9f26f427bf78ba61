"""The command line: what it says and with which status it ends."""

import ast
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semaopt
from semaopt import __main__ as program
from semaopt.experiments import api, models
from semaopt.experiments.spec import schema as spec
from semaopt.experiments.sweep import reproduction, runner, study, theorems
from semaopt.experiments.sweep.engines.local import Failure, Here
from semaopt.experiments.sweep.store import Store
from tests.experiments.tiny import RAW, RUNS, a_spec

ROOT = Path(__file__).parents[3]


def toml(value):
    """Enough of TOML for what RAW holds."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def write_spec(path, **changes):
    raw = spec.merge(RAW, changes)
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in raw.items() if key != "name"))
    return str(path)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "cores", lambda: 0)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["semaopt", *args])
        status = program.main()
        return status, *capsys.readouterr()

    return call


def test_tune_takes_what_run_takes_with_the_same_defaults():
    run, tune = (dict(inspect.signature(one).parameters) for one in (api.run, api.tune))
    assert tune == {name: kind for name, kind in run.items() if name not in ("tensorboard", "command")}


def test_the_help_says_what_is_the_default(call):
    out = " ".join(call("run", "--help")[1].split())
    assert "Worker processes; 0 runs in this process. Default: one per core, at most 8." in out
    assert "Where to write. Default: results/NAME." in out
    assert "Print the version and exit." in call("--help")[1]


def test_version(call):
    assert call("--version") == (0, f"semaopt {semaopt.__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help(call, args):
    status, out, _ = call(*args)
    assert status == 0
    assert "reproduce" in out


@pytest.fixture
def _tiny(monkeypatch, tmp_path):
    """Two figures of a second, one of data that are not there, and one check."""
    names = ["figure1-digits", "figure1-digits-noisy", "figure2-a9a"]
    tiny = {name: a_spec(name=name, **({"data": {"name": "a9a"}} if "a9a" in name else {})) for name in names}
    monkeypatch.setattr(reproduction, "load", lambda name, scale: tiny[name])
    monkeypatch.setattr(reproduction, "shipped", lambda: names)
    monkeypatch.setattr(reproduction.checks, "select", lambda names, quick: ["smb[logistic]"])
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path / "empty"))


@pytest.mark.usefixtures("_tiny")
def test_reproduce_ends_with_the_path_of_the_report(call):
    status, out, err = call("reproduce", "--only", "figure1-digits")
    assert (status, out) == (0, "results/quick/report.html\n")
    assert f"{RUNS} runs done, 0 reused" in err
    assert " tuning trials of 3 methods\n" in err
    assert "the paper's order" in err
    page = Path(out.strip()).read_text()
    assert "semaopt reproduce --only figure1-digits" in page
    assert "smb[logistic]" not in page


@pytest.mark.usefixtures("_tiny")
def test_reproduce_says_where_it_computed(call, monkeypatch):
    monkeypatch.setattr(study, "_is_shipped", lambda spec: True)
    for device, command in (((), "--scale paper"), (("--dtype", "float64"), "--scale paper --dtype float64")):
        _, out, err = call("reproduce", "--only", "figure1-digits", *device)
        assert f"{RUNS} runs done, 0 reused" in err  # in other numbers they are other runs
        assert f"<code>semaopt run figure1-digits {command}</code>" in Path(out.strip()).read_text()


@pytest.mark.usefixtures("_tiny")
def test_reproduce_takes_as_many_processes_as_it_is_told(call, monkeypatch):
    started, engine = [], api.engine

    def instead(name, workers, *others):
        started.append(workers)
        return engine(name, 0, *others)

    monkeypatch.setattr(api, "engine", instead)
    assert call("reproduce", "--only", "figure1-digits", "--workers", "3")[0] == 0
    assert started == [3]


@pytest.mark.usefixtures("_tiny")
def test_reproduce_does_all_it_can_and_nothing_twice(call, monkeypatch):
    status, out, err = call("reproduce")
    assert (status, out) == (0, "results/quick/report.html\n")
    left_out = "Left out, for what they need is not here: figure2-a9a. To have them: semaopt data fetch a9a"
    assert left_out in err
    assert f"{RUNS} runs done, 0 reused" in err  # equal runs of two experiments are one run
    assert "Theorems: 1 of 1 checks PASS." in err
    page = Path(out.strip()).read_text()
    assert left_out in page
    assert all(text in page for text in ("smb[logistic]", "avg |grad F|^2 &lt;= bound", "Tiny"))
    monkeypatch.setattr(theorems.checks, "run_one", lambda name, quick: pytest.fail("it is done already"))
    status, out, err = call("reproduce")
    assert status == 0
    assert f"0 runs done, {RUNS} reused" in err
    assert "theorem checks" not in err
    read = theorems.records.check
    monkeypatch.setattr(theorems.records, "check", lambda content: failing(read(content)))
    status, out, err = call("reproduce")
    assert (status, out) == (1, "results/quick/report.html\n")
    assert "Theorems: 0 of 1 checks PASS; FAIL: smb[logistic]." in err


def failing(check):
    """The same check, had its first claim not come out."""
    return dataclasses.replace(check, lines=[dataclasses.replace(check.lines[0], passed=False), *check.lines[1:]])


@pytest.mark.usefixtures("_tiny")
def test_reproduce_downloads_nothing(call):
    status, out, err = call("reproduce", "--only", "figure2-a9a")
    assert (status, out) == (2, "")
    assert "reproduce downloads nothing; first: semaopt data fetch a9a" in err


def test_reproduce_knows_every_figure_and_group(call):
    status, out, err = call("reproduce", "--only", "frob")
    assert (status, out) == (2, "")
    assert "'frob' is unknown; there is: checks, figure1, figure2, figure3, stability, peers, bilevel, compo" in err
    assert set(spec.shipped()) <= set(reproduction.names())
    for scale in reproduction.SCALES:
        assert {one.scale for one in reproduction.select(scale, "figure1-digits").specs} == {scale}
    assert reproduction.select("quick", "checks").specs == ()
    assert [one.name for one in reproduction.select("quick", "bilevel").specs] == ["bilevel-digits"]
    assert "counterexample" in reproduction.select("quick", "checks").checks


def test_run_and_tune(call, tmp_path):
    path = write_spec(tmp_path / "mine.toml")
    status, out, err = call("tune", path, "--only", "both", "--out", "there")
    assert status == 0
    assert "mine at scale paper: Tiny" in err
    assert out.splitlines()[0] == "| experiment | method | valid_loss | chosen | pruned | lr | g0 | beta |"
    assert len(out.splitlines()) == 2 + 9
    assert out.count("| True |") == 1
    status, out, err = call("run", path, "--only", "both", "--out", "there", "--tensorboard", "board")
    assert (status, out) == (0, "there/report.html\n")
    assert "3 runs done, 18 reused" in err
    events = list((tmp_path / "board").rglob("events*"))
    assert len(events) == 3
    assert all("mine/both/seed" in str(path) for path in events)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("a file")
    status, _, err = call("run", path, "--only", "both", "--out", "there", "--tensorboard", "taken")
    assert status == 2
    assert "Invalid value for --tensorboard: taken/mine/both/seed0-" in err
    status, out, err = call("run", path, "--only", "both")
    assert (status, out) == (0, "results/mine/report.html\n")


@pytest.mark.parametrize(
    ("change", "args", "text"),
    [
        ({"epoch": 3}, (), "mine.toml: epoch is an unknown key. Did you mean 'epochs'?"),
        ({"epochs": "x"}, (), "mine.toml: epochs='x' is invalid: it should be a valid integer"),
        ({}, ("--scale", "quick"), "mine.toml: scale 'quick' is unknown. Known: paper (the top level of the file)."),
        ({}, ("--only", "bet"), "only='bet' is not a method of mine. Did you mean 'beta'?"),
        ({}, ("--engine", "slurm"), "engine='slurm': must be local or ray"),
        ({}, ("--address", "auto"), "address='auto': is the address of a Ray cluster; add engine ray"),
        ({}, ("--device", "tpu"), "device='tpu': cannot be used here"),
        ({}, ("--dtype", "int8"), "dtype='int8': must be one of float32, float64, bfloat16"),
        ({}, ("--workers", "-1"), "Invalid value for '--workers'"),
        ({}, ("--tensorboard", "mine.toml/x"), "Invalid value for --tensorboard: 'mine.toml/x' is no folder"),
        (
            {"model": {"options": {"hidden": "x"}}},
            ("--workers", "1"),
            "hidden='x' is invalid: it must be a positive number of units",
        ),
        (
            {"data": {"split": "scaffold"}},
            ("--workers", "1"),
            "split='scaffold' needs molecules, and digits holds none",
        ),
        (
            {"model": {"name": "mpnn"}},
            ("--workers", "1"),
            "mpnn takes molecules, but digits holds table. Use mlp or logistic.",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_bad_specs_and_options(call, tmp_path, command, change, args, text):
    if command == "tune" and "--tensorboard" in args:
        text = "No such option"
    path = write_spec(tmp_path / "mine.toml", **change)
    status, out, err = call(command, path, *args)
    assert (status, out) == (2, "")
    assert text in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_sizes_that_torch_refuses_are_a_mistake_of_the_spec(monkeypatch):
    def build(*_, **__):
        raise RuntimeError("negative dimension")

    monkeypatch.setattr(models, "build", build)
    with pytest.raises(spec.SpecError, match=r"tiny: model 'mlp' cannot be built with options={'hidden': 8} \(negat"):
        api.chosen(a_spec(), None, ())


def test_data_that_are_not_there_are_not_fetched_to_try_a_spec_out(monkeypatch, tmp_path):
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path))
    api.chosen(a_spec(data={"name": "a9a"}), None, ())
    assert os.listdir(tmp_path) == []


def test_a_spec_without_tuning_is_not_tuned(call, tmp_path):
    methods = [
        {**method, "grid": {}, "multipliers": {}, "options": {"lr": 0.1, "beta": 0.9}} for method in RAW["methods"][:1]
    ]
    path = write_spec(tmp_path / "mine.toml", methods=methods, claim={"order": []})
    lines = [line for line in Path(path).read_text().splitlines() if not line.startswith("tuning")]
    Path(path).write_text("\n".join(lines))
    status, out, err = call("tune", path)
    assert (status, out) == (2, "")
    assert "mine: has no [tuning], so there is nothing to tune; add one, or run it" in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_ray_that_is_not_installed(call, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--engine", "ray")
    assert (status, out) == (2, "")
    assert "engine='ray': needs the extra [ray]; pip install 'semaopt[ray]'" in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_a_ray_cluster_that_does_not_answer(call, tmp_path, monkeypatch):
    class Ray:
        __spec__ = importlib.util.find_spec("json")  # as of any module that is there

        @staticmethod
        def init(**_):
            raise ConnectionError("Could not find any running Ray instance.\nPlease specify one.")

    monkeypatch.setitem(sys.modules, "ray", Ray)
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--engine", "ray", "--address", "auto")
    assert (status, out) == (2, "")
    assert "address='auto': no Ray cluster answers there (Could not find any running Ray instance.); start one" in err
    assert "Traceback" not in err


def test_what_tune_wrote_is_no_study(call, tmp_path):
    path = write_spec(tmp_path / "mine.toml", tuning={"rounds": 0}, seeds={"tuning": [100]})
    assert call("tune", path, "--only", "adam")[0] == 0
    status, out, err = call("report", "results/mine")
    assert (status, out) == (2, "")
    assert "What semaopt tune has done has no final runs: run the same spec into that folder" in " ".join(err.split())


def test_an_own_file_named_like_a_shipped_one_is_run_again_by_its_path(call, tmp_path):
    changes = {"tuning": {"rounds": 0}, "seeds": {"tuning": [100], "final": [0, 1]}}
    path = write_spec(tmp_path / "figure1-digits.toml", **changes)
    assert call("run", "figure1-digits.toml", "--only", "adam")[0] == 0
    text = Path("results/figure1-digits/results.md").read_text()
    assert "```sh\nsemaopt run figure1-digits.toml --only adam\n```" in text
    assert study._is_shipped(spec.load("figure1-digits", "quick"))
    assert not study._is_shipped(spec.load(path))
    assert not study._is_shipped(spec.load(path).model_copy(update={"scale": "mine"}))


def test_a_spec_that_is_not_there(call):
    status, out, err = call("run", "nothing.toml")
    assert (status, out) == (2, "")
    assert (
        "nothing.toml: cannot be read (No such file or directory). Give a file or the name of a shipped spec: bi" in err
    )


def test_data_that_cannot_be_had_is_said(call, tmp_path, monkeypatch):
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path / "empty"))
    path = write_spec(tmp_path / "mine.toml", loss="auc", data={"name": "digits"}, **_saddle())
    status, out, err = call("run", path)
    assert (status, out) == (2, "")
    assert "loss = 'auc' needs two classes, and digits has 10. Set data.binary = true." in err


def _saddle():
    options = {"lr": 0.1, "dual_lr": 0.1, "beta": 0.9}
    method = {"name": "pdada", "label": "PDAda", "algorithm": "PDAda", "options": options}
    tuning = {"metric": "valid_auc", "direction": "maximize", "grid": {"lr": [0.1, 1.0]}, "rounds": 0}
    claim = {"metric": "train_auc", "order": []}
    return {"methods": [method], "tuning": tuning, "claim": claim, "metrics": ["train_auc"]}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("reproduce", "--scale", "huge"), "'huge' is unknown; there is: quick, small, paper"),
        (("reproduce", "--only", "cifar"), "'cifar' is unknown; there is: checks, figure1"),
        (("reproduce", "--device", "tpu"), "device='tpu': cannot be used here"),
        (("report",), "Missing argument 'DIR'"),
        (("report", "file"), "file: is no result folder, it holds no runs.sqlite; give a folder that semaopt"),
        (("report", "a", "b"), "2 folders are joined; say where to write"),
        (("run",), "Missing argument 'SPEC'"),
        (("reproduce", "--frob"), "No such option"),
        (("reproduce", "extra"), "unexpected extra argument"),
        (("frob",), "No such command 'frob'"),
        (("bench", "frob"), "'frob' is unknown; there is: step"),
        (("bench", "--threads", "0"), "--threads 0: must lie in 1..1024"),
        (("reproduce", "--out", "file"), "'file' is no folder, or lies below a file; give a folder"),
        (("reproduce", "--out", "file/below"), "'file/below' is no folder, or lies below a file; give a folder"),
        (("reproduce", "--out", "/proc/nothing"), "'/proc/nothing' cannot be written to"),
    ],
)
def test_bad_arguments(call, tmp_path, args, text):
    (tmp_path / "file").write_text("mine")
    status, out, err = call(*args)
    assert (status, out) == (2, "")
    assert text in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_may_only_be_read_is_refused_before_any_training(call, monkeypatch, tmp_path):
    path, connect = write_spec(tmp_path / "mine.toml"), sqlite3.connect
    Store(tmp_path / "there" / "runs.sqlite").__exit__()
    monkeypatch.setattr(sqlite3, "connect", lambda address, **options: connect(address.replace("rwc", "ro"), **options))
    monkeypatch.setattr(runner, "perform", None)  # nothing comes to it
    status, out, err = call("run", path, "--out", "there")
    assert (status, out) == (2, "")
    assert "let it be written to (chmod u+w), or choose another --out" in " ".join(err.split())
    assert "tuning trial" not in err


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_series_without_a_convex_problem_is_a_failed_run_on_every_engine(call, tmp_path, workers):
    raw = spec.load("bilevel-digits", "quick").model_dump()
    given = {"lr": 10.0, "lower_lr": 0.3}
    wanted = [
        {**method, "options": {**method["options"], **given}}
        for method in raw["methods"]
        if method["name"] in ("soba", "bsa")
    ]
    changes = {
        **{key: raw[key] for key in ("loss", "batch", "metrics")},
        "data": {"noise": 0.4},
        "model": {"name": "mlp"},
        "claim": {**raw["claim"], "beats": {}, "order": []},
        "methods": [{key: one[key] for key in ("name", "label", "algorithm", "options")} for one in wanted],
        "seeds": {"tuning": [], "final": [0]},
    }
    path = Path(write_spec(tmp_path / "mine.toml", **changes))
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("tuning")))
    status, out, err = call("run", str(path), "--workers", workers)
    assert (status, out) == (1, "")
    said = " ".join(err.split())
    assert "Traceback" not in said
    assert "1 of 2 could not be done: mine, bsa, final seed 0" in said
    assert "RuntimeError: bound=" in said
    assert "so it is not convex in the lower parameters: regularize it (lower_weight_decay)" in said
    assert "All other runs are kept. These would most likely fail in the same way again. Once what is said" in said
    assert "To try these again" not in said
    assert stored(tmp_path / "results/mine") == 1


def test_a_run_whose_process_died_may_be_tried_again(call, monkeypatch, tmp_path):
    failed = Failure("its process died 3 times (out of memory?)")
    monkeypatch.setattr(Here, "do", lambda self, work, jobs, tick: ((job, failed) for job in jobs))
    status, _, err = call("run", write_spec(tmp_path / "mine.toml"), "--only", "adam")
    assert status == 1
    assert "All other runs are kept. To try these again: semaopt run" in " ".join(err.split())


@pytest.mark.parametrize("do", [api.run, api.tune])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -3}, r"workers=-3: must be a whole number from 0 to 1024; 0 does the runs in this process, None"),
        ({"workers": 2.5}, r"workers=2.5: must be a whole number"),
        ({"only": "adam"}, r"only='adam': must be a list of names; write only=\['adam'\]"),
    ],
)
def test_bad_arguments_from_python(tmp_path, do, options, text):
    with pytest.raises(spec.SpecError, match=text):
        do(a_spec(), out=tmp_path / "there", **options)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up(call, monkeypatch, tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--checkpoint-seconds", "0")
    assert (status, out) == (2, "")
    assert "cannot be written (No space left on device)" in err


def test_a_missing_module_of_our_own_is_a_bug(monkeypatch):
    monkeypatch.setitem(sys.modules, "semaopt.experiments.cli.commands", None)
    with pytest.raises(ModuleNotFoundError):
        program.main()


WITHOUT = """
import contextlib, io, json, sys
from semaopt.__main__ import main
missing, calls = sys.argv[1], json.loads(sys.argv[2])
sys.modules[missing] = None
said = []
for args in calls:
    sys.argv = ["semaopt", *args]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        said.append([main(), out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""


def without(missing, *calls):
    """What each call answers where that module cannot be imported."""
    args = [sys.executable, "-c", WITHOUT, missing, json.dumps(calls)]
    return json.loads(subprocess.run(args, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


NEEDED = "this command needs the extra [experiments]: pip install 'semaopt[experiments]'\n"


def test_with_torch_alone():
    version = f"semaopt {semaopt.__version__}\n"
    usage = f"{version}Its commands need the extra [experiments]: pip install 'semaopt[experiments]'\n"
    said = without("typer", ["--version"], [], ["--help"], ["reproduce"], ["frob"])
    assert said == [[0, version, ""], [0, usage, ""], [0, usage, ""], [2, "", NEEDED], [2, "", NEEDED]]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["matplotlib", "sklearn"])
def test_without_one_part_of_the_extra(missing, tmp_path):
    assert without(missing, ["reproduce", "--out", str(tmp_path / "x")]) == [[2, "", NEEDED]]
    assert os.listdir(tmp_path) == []


def test_the_extra_is_what_is_imported():
    imported = set()
    for path in (ROOT / "semaopt" / "experiments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    elsewhere = {"rdkit", "torch_geometric", "ray", "pandas", "libauc"}  # asked for where needed
    outside = imported - set(sys.stdlib_module_names) - {"semaopt", "torch", "tomllib"} - elsewhere
    assert outside | {"tensorboard"} == program.EXTRA  # torch imports that
    listed = re.search(r"^experiments = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    packages = set(re.findall(r'^ *"([\w-]+)', listed[1], re.MULTILINE))
    assert {"sklearn" if name == "scikit-learn" else name for name in packages} == program.EXTRA


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
from semaopt.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    # The signal goes to the whole group, as from a terminal.
    path, out = write_spec(tmp_path / "mine.toml", epochs=30), tmp_path / "out"
    args = [sys.executable, "-c", INTERRUPTED, "run", path, "--out", str(out), "--workers", "2"]
    args += ["--checkpoint-seconds", "0.05"]
    with subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        deadline = time.monotonic() + 300
        while stored(out) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGINT)
        said, err = run.communicate(timeout=300)
    assert (run.returncode, said) == (130, "")
    assert "Interrupted; what is finished is kept, what is under way goes on where it was. To go on: semaopt run" in err
    assert "Traceback" not in err
    assert 3 <= stored(out) < 36


def stored(out):
    path = out / "runs.sqlite"
    if not path.exists():
        return 0
    with sqlite3.connect(path, timeout=30) as db:
        there = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'runs'").fetchone()[0]
        found = db.execute("SELECT count(*) FROM runs").fetchone()[0] if there else 0
    db.close()
    return found
