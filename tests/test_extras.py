"""Libraries that do not load are told in a line, with the remedy."""

import runpy
from importlib.metadata import version

import pytest

from fedgen.__main__ import COMMANDS, main
from fedgen.extras import unfit_torchvision


@pytest.fixture
def unfit(tmp_path, monkeypatch):
    """A command that loads a torchvision built for another torch; gives the file."""
    file = tmp_path / "torchvision" / "__init__.py"
    file.parent.mkdir()
    file.write_text("raise RuntimeError('operator torchvision::nms does not exist\\nand more')\n")
    monkeypatch.setitem(COMMANDS, "loading", ("tests.test_extras:loading", ""))
    return file


def loading(arguments):
    """Loads a file as an import does."""
    runpy.run_path(arguments[0])


def test_a_torchvision_of_another_torch_is_one_line_with_both_versions_and_the_remedy(unfit, capsys):
    assert main(["loading", str(unfit)]) == 2
    line, hint = capsys.readouterr().err.splitlines()
    assert line == (
        f"fedgen: error: cannot load torchvision {version('torchvision')} with torch {version('torch')} (operator"
        " torchvision::nms does not exist): install both by one command and from one index,"
        " `pip install --force-reinstall torch torchvision`"
    )
    assert hint.startswith("(FEDGEN_TRACEBACK=1")


def test_other_errors_are_none_of_it(tmp_path):
    (tmp_path / "mine.py").write_text("raise RuntimeError('mine')\n")
    with pytest.raises(RuntimeError, match="mine") as found:
        loading([str(tmp_path / "mine.py")])
    assert unfit_torchvision(found.value) == ""
