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
    with pytest.raises(
        AttributeError, match=r"module 'shop' has no attribute 'Plum'; write `from shop\.cellar import Plum`$"
    ):
        _ = shop.Plum
    with pytest.raises(AttributeError, match=r"module 'shop' has no attribute 'Fig'$"):
        _ = shop.Fig
    assert not hasattr(shop, "_Plum")


def test_a_partition_asked_of_the_kit_itself_is_told_where_it_is_without_torch():
    code = (
        "import fedgen, sys\ntry: fedgen.Natural\nexcept AttributeError as error: print(error, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    hint = "write `from fedgen.clients.partitions import Natural`"
    assert said == f"module 'fedgen' has no attribute 'Natural'; {hint} False\n"


@pytest.mark.usefixtures("shop")
def test_other_names_are_missing_and_files_are_found():
    import shop

    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'Plum'"):
        _ = shop.Plum
    from shop import apple

    assert apple.Apple is shop.Apple


@pytest.mark.usefixtures("shop")
def test_what_is_wrong_with_a_file_is_told():
    with pytest.raises(ImportError, match=r"shop\.broken cannot be loaded: .*no_such_thing"):
        from shop import Pear  # noqa: F401
