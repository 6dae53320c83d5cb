"""Provenance of entries."""

import platform
import subprocess

import fedgen
from fedgen.benchmark import entry as module
from fedgen.benchmark.entry import Origin, provenance
from fedgen.io.field_types import fault


def test_it_names_release_libraries_and_machine_and_nobody():
    found = provenance()
    assert fault(found, Origin) == ""
    assert found["fedgen"] == fedgen.__version__
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory"] > 10**8
    assert platform.node() not in str(found)


def test_the_commit_is_that_of_the_checkout_with_a_mark_where_it_was_changed(tmp_path, monkeypatch):
    def git(*words):
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "fedgen" / "benchmark"
    package.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(package / "entry.py"))
    assert provenance()["commit"] is None
    git("init")
    (tmp_path / "file").write_text("a")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert provenance()["commit"] == head
    (tmp_path / "file").write_text("b")
    assert provenance()["commit"] == f"{head}+"
