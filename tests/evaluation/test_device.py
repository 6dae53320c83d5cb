"""Devices are tried before any work."""

import pytest
import torch

from fedgen.evaluation.panels import require_device


def test_a_device_that_is_there_is_given_back():
    assert require_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "meta", ""])
def test_any_other_is_named_with_the_remedy_in_one_line(name):
    with pytest.raises(ValueError, match=f"device '{name}' cannot be used here .*; choose --device cpu") as caught:
        require_device(name)
    assert "\n" not in str(caught.value)


def test_the_remedy_names_the_devices_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="choose"):
        require_device("cuda:99")
