"""Packages that load their public names on use."""

import subprocess
import sys

import pytest

INIT = """
from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from shop.apple import Apple
    from shop.broken import Pear
    from shop.weigh import weigh

__all__ = ["Apple", "Pear", "weigh"]

load_on_use(__name__)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A package of three files, one of which cannot be loaded and one of which is called as its function."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "apple.py").write_text("class Apple: pass\n")
    (folder / "broken.py").write_text("import sys\nsys.no_such_thing\nclass Pear: pass\n")
    (folder / "weigh.py").write_text("def weigh(): return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.usefixtures("shop")
def test_a_name_is_loaded_when_it_is_first_used():
    import shop

    assert "shop.apple" not in sys.modules
    assert shop.Apple.__module__ == "shop.apple"
    assert "shop.weigh" not in sys.modules
    assert {"Apple", "Pear", "weigh"} <= set(dir(shop))


@pytest.mark.usefixtures("shop")
def test_a_file_does_not_hide_the_public_name_that_it_shares():
    import shop.weigh

    assert shop.weigh() == 3


@pytest.mark.usefixtures("shop")
def test_a_name_of_a_package_below_is_missing_and_told_where_it_is(tmp_path):
    import shop

    for place in ("shelf/low", "shelf", "cellar"):
        (tmp_path / "shop" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / place / "__init__.py").write_text("stop\n__all__ = ['Plum']\n")  # which no import survives
    with pytest.raises(AttributeError, match="attribute"):
        _ = shop.Plum
    with pytest.raises(AttributeError, match="attribute"):
        _ = shop.Fig
    assert not hasattr(shop, "_Plum")


ASK = """
import sys
from importlib import import_module

import fedgen
from fedgen.lazy import rooms

missing = {name: places for name, places in rooms("fedgen").items() if name not in fedgen.__all__}
for name, (place, *others) in missing.items():
    said = []
    for line in (f"fedgen.{name}", f"from fedgen import {name}"):
        try:
            exec(line)
        except (AttributeError, ImportError) as error:
            said.append((type(error).__name__, str(error)))
    hint = f"; write `from {place} import {name}`"
    assert said == [
        ("AttributeError", f"module 'fedgen' has no attribute {name!r}{hint}"),
        ("ImportError", f"cannot import name {name!r} from 'fedgen'{hint}"),
    ], said
    assert not hasattr(fedgen, name)
print(len(missing), "torch" in sys.modules, "lightning" in sys.modules)
"""


def test_every_public_name_of_a_package_below_that_is_asked_of_the_kit_is_told_where_it_is_without_torch():
    said = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    number, *loaded = said.stdout.split()
    assert int(number) > 100
    assert loaded == ["False", "False"]


def test_the_place_that_a_partition_is_told_to_be_at_has_it():
    with pytest.raises(ImportError, match="Natural") as caught:
        from fedgen import Natural  # noqa: F401
    names = {}
    exec(str(caught.value).split("`")[1], names)
    assert names["Natural"].__name__ == "Natural"


@pytest.mark.usefixtures("shop")
def test_a_package_below_is_loaded_on_use_and_a_file_that_shares_a_name_of_it_is_found(tmp_path):
    import shop

    (tmp_path / "shop" / "cellar").mkdir()
    (tmp_path / "shop" / "cellar" / "__init__.py").write_text("__all__ = ['apple', 'Plum']\nPlum = 5\n")
    assert shop.cellar.Plum == 5
    from shop import apple

    assert apple.__name__ == "shop.apple"


@pytest.mark.usefixtures("shop")
def test_other_names_are_missing_and_files_are_found():
    import shop

    with pytest.raises(AttributeError, match="attribute"):
        _ = shop.Plum
    from shop import apple

    assert apple.Apple is shop.Apple


@pytest.mark.usefixtures("shop")
def test_what_is_wrong_with_a_file_is_told():
    with pytest.raises(ImportError, match="no_such_thing"):
        from shop import Pear  # noqa: F401
