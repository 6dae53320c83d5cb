import sys
import sysconfig
from pathlib import Path

import pytest
from torch import nn
from torchvision.models import resnet18

from fedgen.class_paths import gives, import_by_path, is_class_path
from fedgen.clients.partitions import Semantic


def test_a_dotted_name_is_what_it_names():
    assert import_by_path("torch.nn.Linear") is nn.Linear
    assert import_by_path("fedgen.clients.partitions.Semantic.paper") == Semantic.paper
    assert is_class_path("my_package.MyEmbedding")
    assert not any(map(is_class_path, ("pixels", "inception-v3-compat", "timm/resnet18.a1_in1k", "a..b")))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_kit.Net", r"there is no module 'my_kit' for my_kit.Net; looked in .*PYTHONPATH"),
        ("torch.nn.Liner", r"module 'torch.nn' has no 'Liner'; did you mean 'Linear'\?"),
        ("torch.nn.zzzzzz", r"module 'torch.nn' has no 'zzzzzz'$"),
        ("torch.nn.Linear.forwards", r"class 'torch.nn.Linear' has no 'forwards'; did you mean 'forward'\?"),
        ("Linear", r"'Linear' is no class path"),
    ],
)
def test_a_name_of_nothing_says_which_part_is_missing(path, message):
    with pytest.raises(ValueError, match=message):
        import_by_path(path)


def test_a_module_that_is_not_there_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.zip").touch()
    monkeypatch.syspath_prepend(tmp_path / "mine")
    for place in (
        sysconfig.get_path("scripts"),
        "__editable__.kit.finder.__path_hook__",
        tmp_path / "mine.zip",
        "gone",
    ):
        monkeypatch.syspath_prepend(place)
    with pytest.raises(ValueError, match="module") as caught:
        import_by_path("my_kit.Net")
    said = str(caught.value)
    assert f"looked in {tmp_path / 'mine'}" in said
    assert not any(place in said for place in (sysconfig.get_path("scripts"), "__editable__", ".zip", "gone"))
    assert "site-packages" not in said
    assert said.endswith("`python -m fedgen` looks in the current folder, too")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="module") as caught:
        import_by_path("my_kit.Net")
    assert f"looked in {tmp_path}, " in str(caught.value)
    assert "current folder" not in str(caught.value)


def test_a_module_that_lacks_another_names_that_one(tmp_path, monkeypatch):
    Path(tmp_path / "half_kit.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="not_there_at_all"):
        import_by_path("half_kit.Net")
    sys.modules.pop("half_kit", None)


def test_classes_and_functions_that_say_what_they_return_are_told_from_others():
    assert gives(nn.Linear, nn.Module)
    assert gives(resnet18, nn.Module)
    assert not gives(Path, nn.Module)
    assert not gives(lambda: nn.Linear(1, 1), nn.Module)
    assert not gives(sys, nn.Module)
