"""Checkpoints: listed by round, loaded, refused with a reason."""

import pytest
import torch
from torch import nn

from fedgen.evaluation import checkpoint_name, list_checkpoints, load_weights
from fedgen.evaluation.runs.rebuild import local_models, tensors_in_place


def save(path, module, **more):
    torch.save({"state_dict": module.state_dict(), **more}, path)
    return path


def test_checkpoints_are_listed_by_round(tmp_path):
    for round in (12, 3, 123456):
        (tmp_path / checkpoint_name(round)).touch()
    for other in ("last.ckpt", "round=x.ckpt", ".round=00001.ckpt.partial"):
        (tmp_path / other).touch()
    assert checkpoint_name(12) == "round=00012.ckpt"
    assert list(list_checkpoints(tmp_path)) == [3, 12, 123456]


def test_weights_are_loaded(tmp_path):
    source, target = nn.Linear(2, 3), nn.Linear(2, 3)
    load_weights(target, save(tmp_path / "a.ckpt", source))
    assert torch.equal(source.weight, target.weight)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = save(tmp_path / "a.ckpt", nn.Linear(2, 3))
    with pytest.raises(ValueError, match="checkpoint"):
        load_weights(nn.Linear(2, 4), path)
    with pytest.raises(ValueError, match="Sequential"):
        load_weights(nn.Sequential(nn.Linear(2, 3)), path)


def test_clients_models_are_found_only_where_nothing_was_exchanged():
    module = nn.Linear(2, 1)
    own = {0: {"weight": torch.ones(1, 2), "bias": torch.ones(1)}}
    assert local_models(module, {"fedavg": {"personal": own}}).keys() == {0}
    assert local_models(module, {"fedavg": {"personal": {0: {"bias": torch.ones(1)}}}}) == {}
    assert local_models(module, {}) == {}
    statistics = nn.BatchNorm1d(2)  # whose weights alone are kept, and running statistics averaged
    own = {0: {"weight": torch.ones(2), "bias": torch.ones(2)}}
    assert local_models(statistics, {"fedavg": {"personal": own}}) == {}
    whole = {0: {name: tensor.clone() for name, tensor in statistics.state_dict().items()}}
    assert local_models(statistics, {"fedavg": {"personal": whole}}).keys() == {0}


def test_tensors_are_in_place_only_inside_the_context():
    module = nn.Linear(2, 1)
    before = module.weight.clone()
    with tensors_in_place(module, {"weight": torch.full((1, 2), 7.0)}):
        assert module.weight.tolist() == [[7.0, 7.0]]
    assert torch.equal(module.weight, before)
