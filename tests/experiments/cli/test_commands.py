"""The command line: messages, exit statuses, interruption and resume."""

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
from semaopt.experiments.sweep import reproduction, runner, study, theorem_checks
from semaopt.experiments.sweep.engines.local import Failure, InProcess
from semaopt.experiments.sweep.store import Store
from tests.experiments.tiny import RAW, RUNS, a_spec

ROOT = Path(__file__).parents[3]


def toml(value):
    """Format a value of RAW as TOML."""
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
    monkeypatch.setattr(api, "default_workers", lambda: 0)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["semaopt", *args])
        status = program.main()
        return status, *capsys.readouterr()

    return call


def test_tune_takes_what_run_takes_with_the_same_defaults():
    run, tune = (dict(inspect.signature(one).parameters) for one in (api.run, api.tune))
    only_run = ("tensorboard", "command", "aa", "aa_resamples", "studies")
    assert tune == {name: kind for name, kind in run.items() if name not in only_run}


def test_help_states_the_defaults(call):
    out = " ".join(call("run", "--help")[1].split())
    assert "Number of worker processes; 0 runs in this process. Default: one per core, at most 8." in out
    assert "Output folder. Default: results/NAME." in out
    assert "Print the version and exit." in call("--help")[1]


def test_version(call):
    assert call("--version") == (0, f"semaopt {semaopt.__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help(call, args):
    status, out, _ = call(*args)
    assert status == 0
    assert all(f"\n  {name} " in out for name in ("reproduce", "run", "tune", "report", "check", "bench", "data"))
    assert "130 interrupted" in out


def test_every_command_explains_itself(call):
    for command in (("reproduce",), ("run",), ("tune",), ("report",), ("check",), ("bench",), ("data", "fetch")):
        status, out, _ = call(*command, "--help")
        assert status == 0
        assert out.lower().startswith("usage: ")
        assert "help" in out


@pytest.fixture
def _tiny(monkeypatch, tmp_path):
    """Replace the reproduction by two experiments of one second each, one experiment without its data, and one
    check."""
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
    assert f"{RUNS} runs computed, 0 reused from the store, in " in err
    assert " tuning trials of 3 methods\n" in err
    assert re.search(r"^Tiny: (confirmed|contradicted|equivalent|undecided)\. ", err, re.MULTILINE)
    page = Path(out.strip()).read_text()
    assert "semaopt reproduce --only figure1-digits" in page
    assert "smb[logistic]" not in page


@pytest.mark.usefixtures("_tiny")
def test_run_accepts_a_group_of_shipped_specs(call):
    status, out, err = call("run", "figure1", "--only", "adam", "--workers", "0")
    assert (status, out) == (0, "results/figure1/report.html\n")
    page = Path(out.strip()).read_text()
    assert page.count('id="figure1-digits"') == page.count('id="figure1-digits-noisy"') == 1
    status, _, err = call("run", "figure1", "--only", "adm")
    assert status == 2
    assert "only='adm' is not a method of figure1-digits" in err
    status, _, err = call("run", "figure1", "--aa")
    assert status == 2
    assert "aa=True checks one spec, but figure1 is a group of 2. Name one of them." in err
    status, _, err = call("run", "figure2")
    assert status == 2
    assert "figure2: Skipped (data or packages not found): figure2-a9a. Get them with: semaopt data fetch a9a" in err


@pytest.mark.usefixtures("_tiny")
def test_the_report_names_the_command_with_device_and_dtype(call, monkeypatch):
    monkeypatch.setattr(study, "_is_shipped", lambda spec: True)
    for device, command in (((), "--scale paper"), (("--dtype", "float64"), "--scale paper --dtype float64")):
        _, out, err = call("reproduce", "--only", "figure1-digits", *device)
        assert f"{RUNS} runs computed, 0 reused" in err  # another dtype makes other runs
        assert f"<td>semaopt run figure1-digits {command}</td>" in Path(out.strip()).read_text()


@pytest.mark.usefixtures("_tiny")
def test_reproduce_passes_the_number_of_workers(call, monkeypatch):
    started, engine = [], api.open_engine

    def instead(name, workers, *others):
        started.append(workers)
        return engine(name, 0, *others)

    monkeypatch.setattr(api, "open_engine", instead)
    assert call("reproduce", "--only", "figure1-digits", "--workers", "3")[0] == 0
    assert started == [3]


@pytest.mark.usefixtures("_tiny")
def test_reproduce_skips_missing_data_and_reuses_stored_results(call, monkeypatch):
    status, out, err = call("reproduce")
    assert (status, out) == (0, "results/quick/report.html\n")
    skipped = "Skipped (data or packages not found): figure2-a9a. Get them with: semaopt data fetch a9a"
    assert skipped in err
    assert f"{RUNS} runs computed, 0 reused" in err  # two experiments share equal runs
    assert "All theorem checks pass." in err
    page = Path(out.strip()).read_text()
    assert skipped in page
    assert all(text in page for text in ("smb[logistic]", "avg |grad F|^2 &lt;= bound", "Tiny"))
    monkeypatch.setattr(theorem_checks.checks, "run_one", lambda name, quick: pytest.fail("the check is stored"))
    status, out, err = call("reproduce")
    assert status == 0
    assert f"0 runs computed, {RUNS} reused" in err
    assert "1 theorem checks" not in err
    read = theorem_checks.records.read_check
    monkeypatch.setattr(theorem_checks.records, "read_check", lambda content: failing(read(content)))
    status, out, err = call("reproduce")
    assert (status, out) == (1, "results/quick/report.html\n")
    assert "Failed theorem checks: smb[logistic]." in err


def failing(check):
    """Return the check with a failed first claim."""
    return dataclasses.replace(check, lines=[dataclasses.replace(check.lines[0], passed=False), *check.lines[1:]])


@pytest.mark.usefixtures("_tiny")
def test_reproduce_downloads_nothing(call):
    status, out, err = call("reproduce", "--only", "figure2-a9a")
    assert (status, out) == (2, "")
    assert "figure2-a9a cannot run: its data or packages are missing. Get them with: semaopt data fetch a9a" in err


def test_reproduce_accepts_every_spec_and_group(call):
    status, out, err = call("reproduce", "--only", "frob")
    assert (status, out) == (2, "")
    assert "only='frob' is unknown. Known: balanced, balanced-a9a-03, " in err
    assert set(spec.shipped()) <= set(reproduction.names())
    for scale in reproduction.SCALES:
        assert {one.scale for one in reproduction.select(scale, "figure1-digits").specs} == {scale}
    assert reproduction.select("quick", "checks").specs == ()
    assert [one.name for one in reproduction.select("quick", "bilevel-digits").specs] == ["bilevel-digits"]
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
    assert "3 runs computed, 18 reused" in err
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
        ({}, ("--engine", "slurm"), "engine='slurm' is invalid: it must be local or ray"),
        ({}, ("--address", "auto"), "address='auto' is the address of a Ray cluster, but engine='local'."),
        ({}, ("--device", "tpu"), "device='tpu' is not available here"),
        ({}, ("--dtype", "int8"), "dtype='int8' is invalid: it must be one of float32, float64, bfloat16"),
        ({}, ("--workers", "-1"), "Invalid value for '--workers'"),
        ({}, ("--tensorboard", "mine.toml/x"), "Invalid value for --tensorboard: 'mine.toml/x' is not a folder"),
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
def test_invalid_specs_and_options(call, tmp_path, command, change, args, text):
    if command == "tune" and "--tensorboard" in args:
        text = "No such option"
    path = write_spec(tmp_path / "mine.toml", **change)
    status, out, err = call(command, path, *args)
    assert (status, out) == (2, "")
    assert text in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_sizes_that_torch_refuses_are_an_error_of_the_spec(monkeypatch):
    def build(*_, **__):
        raise RuntimeError("negative dimension")

    monkeypatch.setattr(models, "build", build)
    text = r"tiny: model 'mlp' cannot be built with options={'hidden': 8} \(negative dimension"
    with pytest.raises(spec.SpecError, match=text):
        api.validate_spec(a_spec(), None, ())


def test_validating_a_spec_downloads_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path))
    api.validate_spec(a_spec(data={"name": "a9a"}), None, ())
    assert os.listdir(tmp_path) == []


def test_tune_refuses_a_spec_without_tuning(call, tmp_path):
    methods = [
        {**method, "grid": {}, "multipliers": {}, "options": {"lr": 0.1, "beta": 0.9}} for method in RAW["methods"][:1]
    ]
    path = write_spec(tmp_path / "mine.toml", methods=methods, claim={"order": []})
    lines = [line for line in Path(path).read_text().splitlines() if not line.startswith("tuning")]
    Path(path).write_text("\n".join(lines))
    status, out, err = call("tune", path)
    assert (status, out) == (2, "")
    assert "mine has no [tuning], so there is nothing to tune. Add a [tuning], or run the spec" in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_ray_is_not_installed(call, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--engine", "ray")
    assert (status, out) == (2, "")
    assert "engine='ray' needs the extra [ray]. Install it with: pip install 'semaopt[ray]'" in err
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_no_ray_cluster_answers(call, tmp_path, monkeypatch):
    class Ray:
        __spec__ = importlib.util.find_spec("json")  # any module that is installed

        @staticmethod
        def init(**_):
            raise ConnectionError("Could not find any running Ray instance.\nPlease specify one.")

    monkeypatch.setitem(sys.modules, "ray", Ray)
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--engine", "ray", "--address", "auto")
    assert (status, out) == (2, "")
    assert "address='auto' is invalid: no Ray cluster answers there (Could not find any running Ray instance.)" in err
    assert "Traceback" not in err


def test_report_refuses_a_folder_with_trials_only(call, tmp_path):
    path = write_spec(tmp_path / "mine.toml", tuning={"rounds": 0}, seeds={"tuning": [100]})
    assert call("tune", path, "--only", "adam")[0] == 0
    status, out, err = call("report", "results/mine")
    assert (status, out) == (2, "")
    assert "Trials of semaopt tune have no final runs; run the same spec into that folder" in " ".join(err.split())


def test_a_file_named_like_a_shipped_spec_is_rerun_by_its_path(call, tmp_path):
    changes = {"tuning": {"rounds": 0}, "seeds": {"tuning": [100], "final": [0, 1]}}
    path = write_spec(tmp_path / "figure1-digits.toml", **changes)
    assert call("run", "figure1-digits.toml", "--only", "adam")[0] == 0
    text = Path("results/figure1-digits/results.md").read_text()
    assert "```sh\nsemaopt run figure1-digits.toml --only adam\n```" in text
    assert study._is_shipped(spec.load("figure1-digits", "quick"))
    assert not study._is_shipped(spec.load(path))
    assert not study._is_shipped(spec.load(path).model_copy(update={"scale": "mine"}))


def test_studies_one_by_one(call, tmp_path):
    changes = {"studies": 3, "epochs": 1, "seeds": {"tuning": [100], "final": [0]}, "tuning": {"rounds": 0}}
    path = write_spec(tmp_path / "mine.toml", **changes)
    status, out, err = call("run", "mine.toml", "--only", "adam", "--out", "a b", "--study", "2")
    assert (status, out) == (0, "a b/report.html\n")
    resume = "semaopt run mine.toml --only adam --out 'a b' --study 1 --study 3"
    note = f"mine: 1 of 3 studies is finished, so the results are preliminary. Compute the rest with: {resume}"
    assert note in err.splitlines()
    assert "```sh\nsemaopt run mine.toml --only adam --out 'a b'\n```" in Path("a b/results.md").read_text()
    status, out, err = call("report", "a b")
    assert (status, out, err) == (0, "a b/report.html\n", f"{note}\n")
    assert call("run", path, "--only", "adam", "--out", "c", "--study", "3", "--study", "1")[0] == 0
    status, out, err = call("report", "a b", "c", "--out", "joined")
    assert (status, out, err) == (0, "joined/report.html\n", "")
    assert "3 studies with 1 seed each" in Path("joined/results.md").read_text()
    for args, text in (
        (("--study", "4"), "Error: mine: study 4 is invalid: it must be an integer from 1 to 3."),
        (
            ("--aa-resamples", "9"),
            "Error: aa_resamples=9 applies to an A/A check only. Set aa=True (--aa), or leave it",
        ),
        (("--study", "1", "--aa"), "Error: studies=[1] is invalid with aa=True: an A/A check needs all studies."),
        (("--study", "one"), "Invalid value for '--study': Input should be a valid integer"),
    ):
        status, out, err = call("run", "mine.toml", *args)
        assert (status, out) == (2, "")
        assert text in err


def test_missing_spec_file(call):
    status, out, err = call("run", "nothing.toml")
    assert (status, out) == (2, "")
    assert (
        "nothing.toml: cannot be read (No such file or directory). Give a file or the name of a shipped spec: ba" in err
    )


def test_data_that_do_not_fit_the_loss(call, tmp_path, monkeypatch):
    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path / "empty"))
    path = write_spec(tmp_path / "mine.toml", loss="auc", data={"name": "digits"}, **_min_max())
    status, out, err = call("run", path)
    assert (status, out) == (2, "")
    assert "loss = 'auc' needs two classes, and digits has 10. Set data.binary = true." in err


def _min_max():
    options = {"lr": 0.1, "dual_lr": 0.1, "beta": 0.9}
    method = {"name": "pdada", "label": "PDAda", "algorithm": "PDAda", "options": options}
    tuning = {"metric": "valid_auc", "direction": "maximize", "grid": {"lr": [0.1, 1.0]}, "rounds": 0}
    claim = {"metric": "train_auc", "order": []}
    return {"methods": [method], "tuning": tuning, "claim": claim, "metrics": ["train_auc"]}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("reproduce", "--scale", "huge"), "scale='huge' is unknown. Known: paper, quick, small."),
        (("reproduce", "--only", "cifar"), "only='cifar' is unknown. "),
        (("reproduce", "--device", "tpu"), "device='tpu' is not available here"),
        (("report",), "Missing argument 'DIR'"),
        (("report", "file"), "file is not an output folder: it contains no runs.sqlite. Give a folder"),
        (("report", "a", "b"), "2 folders are merged into one report, which needs a folder of its own. Add --out DIR."),
        (("run",), "Missing argument 'SPEC'"),
        (("reproduce", "--frob"), "No such option"),
        (("reproduce", "--scal", "quick"), "No such option: --scal (Possible options: --scale)"),
        (("reprodcue",), "Did you mean 'reproduce'?"),
        (("data", "lst"), "Did you mean 'list'?"),
        (("data", "fetch", "a9b"), "id you mean 'a9a'"),
        (("reproduce", "extra"), "unexpected extra argument"),
        (("frob",), "No such command 'frob'"),
        (("bench", "frob"), "'frob' is unknown. Choose from: step"),
        (("bench", "--threads", "0"), "--threads 0: must be between 1 and 1024. Try --threads 1."),
        (("reproduce", "--out", "file"), "'file' is not a folder, or lies below a file. Choose a folder"),
        (("reproduce", "--out", "file/below"), "'file/below' is not a folder, or lies below a file. Choose a folder"),
        (("reproduce", "--out", "/proc/nothing"), "'/proc/nothing' cannot be written to"),
    ],
)
def test_invalid_arguments(call, tmp_path, args, text):
    (tmp_path / "file").write_text("mine")
    status, out, err = call(*args)
    assert (status, out) == (2, "")
    assert text in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_store_is_refused_before_training(call, monkeypatch, tmp_path):
    path, connect = write_spec(tmp_path / "mine.toml"), sqlite3.connect
    Store(tmp_path / "there" / "runs.sqlite").__exit__()
    monkeypatch.setattr(sqlite3, "connect", lambda address, **options: connect(address.replace("rwc", "ro"), **options))
    monkeypatch.setattr(runner, "perform", None)  # must not be called
    status, out, err = call("run", path, "--out", "there")
    assert (status, out) == (2, "")
    assert "Make it writable (chmod u+w), or choose another --out" in " ".join(err.split())
    assert "tuning trial" not in err


RAISES = """
import torch


class Raises(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("this step is impossible")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_raises_fails_alone_on_every_engine(call, monkeypatch, tmp_path, workers):
    (tmp_path / "raising.py").write_text(RAISES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    methods = [
        {"name": "good", "label": "good", "algorithm": "SGD", "options": {"lr": 0.1}},
        {"name": "bad", "label": "bad", "algorithm": "raising:Raises", "options": {"lr": 0.1}},
    ]
    changes = {"methods": methods, "claim": {"order": []}, "seeds": {"tuning": [], "final": [0]}}
    path = Path(write_spec(tmp_path / "mine.toml", **changes))
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("tuning")))
    status, out, err = call("run", str(path), "--workers", workers)
    assert (status, out) == (1, "")
    text = " ".join(err.split())
    assert "Traceback" not in text
    assert "1 of 2 failed: mine, bad, final seed 0 (lr=0.1): RuntimeError: this step is impossible" in text
    assert (
        "All other runs are stored. The same command will most likely fail again. Fix the cause, then: semaopt run"
        in text
    )
    assert "Retry with" not in text
    assert stored(tmp_path / "results/mine") == 1


def test_a_run_whose_process_died_can_be_retried(call, monkeypatch, tmp_path):
    failed = Failure("its process died 3 times (out of memory?)")
    monkeypatch.setattr(InProcess, "run", lambda self, work, jobs, on_progress: ((job, failed) for job in jobs))
    status, _, err = call("run", write_spec(tmp_path / "mine.toml"), "--only", "adam")
    assert status == 1
    assert "All other runs are stored. Retry with: semaopt run" in " ".join(err.split())


@pytest.mark.parametrize("function", [api.run, api.tune])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -3}, r"workers=-3 is invalid: it must be an integer from 0 to 1024. 0 runs in this process; None"),
        ({"workers": 2.5}, r"workers=2.5 is invalid: it must be an integer"),
        ({"only": "adam"}, r"only='adam' is invalid: it must be a list of names. Write only=\['adam'\]"),
    ],
)
def test_invalid_arguments_from_python(tmp_path, function, options, text):
    with pytest.raises(spec.SpecError, match=text):
        function(a_spec(), out=tmp_path / "there", **options)
    assert os.listdir(tmp_path) == []


def test_full_disk(call, monkeypatch, tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, out, err = call("run", write_spec(tmp_path / "mine.toml"), "--checkpoint-seconds", "0")
    assert (status, out) == (2, "")
    assert "cannot be written (No space left on device)" in err


def test_a_missing_module_outside_the_extra_is_raised(monkeypatch):
    monkeypatch.setitem(sys.modules, "semaopt.experiments.cli.commands", None)
    with pytest.raises(ModuleNotFoundError):
        program.main()


WITHOUT = """
import contextlib, io, json, sys
from semaopt.__main__ import main
missing, calls = sys.argv[1], json.loads(sys.argv[2])
sys.modules[missing] = None
answers = []
for args in calls:
    sys.argv = ["semaopt", *args]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        answers.append([main(), out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


def without(missing, *calls):
    """Return exit status and output of each call where a module cannot be imported."""
    args = [sys.executable, "-c", WITHOUT, missing, json.dumps(calls)]
    return json.loads(subprocess.run(args, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


def refusal(command, missing):
    remedy = "Install it with: pip install 'semaopt[experiments]'"
    return f"semaopt {command} needs the extra [experiments]: the module {missing!r} is missing. {remedy}\n"


def test_without_the_extra():
    version = f"semaopt {semaopt.__version__}\n"
    remedy = "Install it with: pip install 'semaopt[experiments]'"
    usage = f"{version}The command line needs the extra [experiments]. {remedy}\n"
    answers = without("typer", ["--version"], [], ["--help"], ["reproduce"], ["frob"])
    refused = [[2, "", refusal(command, "typer")] for command in ("reproduce", "frob")]
    assert answers == [[0, version, ""], [0, usage, ""], [0, usage, ""], *refused]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["jinja2", "matplotlib", "sklearn"])
def test_without_one_module_of_the_extra(missing, tmp_path):
    assert without(missing, ["reproduce", "--out", str(tmp_path / "x")]) == [[2, "", refusal("reproduce", missing)]]
    assert os.listdir(tmp_path) == []


def test_the_extra_lists_what_is_imported():
    imported = set()
    for path in (ROOT / "semaopt" / "experiments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    elsewhere = {"rdkit", "torch_geometric", "ray", "pandas", "libauc"}  # extras of their own
    outside = imported - set(sys.stdlib_module_names) - {"semaopt", "torch", "tomllib"} - elsewhere
    assert outside | {"tensorboard"} == program.EXTRA  # imported by torch
    listed = re.search(r"^experiments = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    packages = set(re.findall(r'^ *"([\w-]+)', listed[1], re.MULTILINE))
    assert {"sklearn" if name == "scikit-learn" else name for name in packages} == program.EXTRA


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
from semaopt.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_keeps_finished_runs(tmp_path):
    # The signal goes to the whole process group, as from a terminal.
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
        out_text, err = run.communicate(timeout=300)
    assert (run.returncode, out_text) == (130, "")
    assert (
        "Interrupted. Finished runs are stored; unfinished runs resume from their checkpoints. Resume with: semaopt"
        in err
    )
    assert "Traceback" not in err
    assert 3 <= stored(out) < 36


def stored(out):
    path = out / "runs.sqlite"
    if not path.exists():
        return 0
    with sqlite3.connect(path, timeout=30) as db:
        exists = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'runs'").fetchone()[0]
        found = db.execute("SELECT count(*) FROM runs").fetchone()[0] if exists else 0
    db.close()
    return found
