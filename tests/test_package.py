"""The package that others install: built from its source archive, and used in an environment without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools.command.egg_info import FileList

import fedgen
from fedgen.hub.shipped import PRETRAINED, STEM

ROOT = Path(__file__).parent.parent
SOURCES = ("fedgen", "recipes", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")
BUILD = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
FITS = """
import sys
from contextlib import redirect_stdout, suppress
from fedgen.__main__ import main
with open("printed.yaml", "w") as file, redirect_stdout(file), suppress(SystemExit):
    main(["fit", "quickstart", "--print_config", *{}])
assert main(["fit", "quickstart", *{}]) == 0
sys.exit(main(["fit", "ddpm_digits"]))
"""


def run(*command, cwd, status=0):
    """Output of a command that sees no checkout; the test fails where the command does, or what it prints of errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDGEN"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of the project and a wheel of this sdist."""
    folder = tmp_path_factory.mktemp("built")
    (copy := folder / "copy").mkdir()
    for name in SOURCES:
        place = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        place(ROOT / name, copy / name)
    run(sys.executable, "-c", BUILD.format("sdist", str(folder)), cwd=copy)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD.format("wheel", str(folder)), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def needed_by(requirements, extras, seen) -> Iterator[metadata.Distribution]:
    """The installed distributions that requirements bring, as pip would, each once."""
    for line in requirements:
        one = Requirement(line)
        wanted = not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        if wanted and one.name not in seen:
            seen.add(one.name)
            found = metadata.distribution(one.name)
            yield found
            yield from needed_by(found.requires or [], one.extras or {""}, seen)


@pytest.fixture(scope="module")
def commands(built, tmp_path_factory):
    """The folder of commands of an environment that has the wheel and what it needs, linked from here, and no extra."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for found in needed_by(project["dependencies"], {""}, set()):
        parts = {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}
        for name in parts - {"__pycache__"}:
            if not (own / name).exists():
                (own / name).symlink_to(Path(str(found.locate_file(name))))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", str(built[1]), cwd=home)
    found = run(str(python), "-c", "import fedgen; print(fedgen.__file__)", cwd=home)
    assert Path(found.strip()).is_relative_to(home)
    return home / "bin"


@pytest.mark.slow
def test_a_source_archive_holds_what_git_knows_but_the_shipped_weights(monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    monkeypatch.chdir(ROOT)
    files = FileList()
    files.extend(
        ["pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]
    )  # setuptools adds these, and the package's modules
    for line in Path("MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            files.process_template_line(line)
    known = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    left_out = {path for path in known if not path.startswith("fedgen/")} - {*files.files}
    networks = {f"pretrained/{name}/model" for name in PRETRAINED}
    weights = {f"checkpoints/{stem}.safetensors" for stem in (STEM, *networks)}
    assert left_out == {*weights, ".gitignore", "checkpoints/.gitkeep"}


@pytest.mark.slow
def test_the_wheel_holds_code_types_recipes_and_the_pages_parts(built):
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert wheel.name == f"fedgen-{fedgen.__version__}-py3-none-any.whl"
    data = f"fedgen-{fedgen.__version__}.data/data/share/fedgen"
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "fedgen").rglob("*") if path.is_file()}
    recipes = {f"{data}/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.yaml")}
    assert {name for name in code if "__pycache__" not in name} | recipes <= held
    beside = {name for name in held if not name.startswith(("fedgen/", data))}
    assert all(name.startswith(f"fedgen-{fedgen.__version__}.dist-info/") for name in beside)
    with tarfile.open(sdist) as archive:
        assert {"pyproject.toml", "CHANGELOG.md", "LICENSE"} <= {Path(name).name for name in archive.getnames()}


@pytest.mark.slow
def test_an_installed_package_trains_reports_and_lists_its_recipes_from_an_empty_folder(commands, tmp_path):
    fedgen_command = str(commands / "fedgen")
    assert run(fedgen_command, "--version", cwd=tmp_path).split() == ["fedgen", fedgen.__version__]
    listed = run(fedgen_command, "recipes", cwd=tmp_path).split("\n\n")[0]
    names = [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")]
    assert set(names) == {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    fit = [
        "--trainer.max_epochs",
        "2",
        "--trainer.callbacks.every_n_rounds",
        "2",
        "--trainer.callbacks.num_images",
        "20",
    ]
    named = ["--data.partition", "SavedPartition", "--data.partition.path", "p.npz", "--model.generator"]
    code = FITS.format([*named, "DCGANGenerator"], fit)
    missing = run(str(commands / "python"), "-c", code, cwd=tmp_path, status=2)
    assert "Traceback" not in missing
    assert "pip install 'fedgen[diffusion]'" in missing
    folder = tmp_path / "checkpoints" / "quickstart"
    printed = (tmp_path / "printed.yaml").read_text()  # classes are found by their names alone
    assert "class_path: fedgen.clients.partitions.SavedPartition" in printed
    assert "class_path: fedgen.models.networks.DCGANGenerator" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "printed.yaml"}
    assert list(folder.glob("round=*.ckpt"))
    run(fedgen_command, "report", str(folder), "--output", "page.html", cwd=tmp_path)
    assert "<title>" in (tmp_path / "page.html").read_text()
    assert [path.name for path in (folder / "logs").iterdir()] == ["version_0"]
