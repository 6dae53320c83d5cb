import pytest
import torch
from safetensors.torch import save_file

from fedgen.embeddings.base import read_state


def test_pickles_and_safetensors_hold_the_same_state(tmp_path):
    state = {"scale": torch.arange(3.0)}
    torch.save(state, tmp_path / "a.pth")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "b.ckpt")
    save_file(state, tmp_path / "c.safetensors")
    for name in ("a.pth", "b.ckpt", "c.safetensors"):
        assert read_state(tmp_path / name)["scale"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_damaged_files_are_reported_by_name(tmp_path, name):
    for content in (b"", b"not weights at all"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"is not a (file of torch.save|complete safetensors file)"):
            read_state(tmp_path / name)


def test_a_file_of_something_else_is_refused(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="state"):
        read_state(tmp_path / "list.pth")
