"""States keep their precision, follow the device, are saved by nobody and copied whole."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn

from fedgen.embeddings import ModuleEmbedding
from fedgen.metrics import KernelDistance, feature_metric
from tests.metrics.sets import DIM, FEDERATED, GENERATED, METRICS, assert_equal, batches, filled

EVERY = pytest.mark.parametrize("name", METRICS)


class Owner(nn.Module):
    def __init__(self, metric):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.metric = metric


@pytest.mark.parametrize("change", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.float()])
@EVERY
def test_no_precision_of_a_parent_reaches_the_states(name, change):
    metric = filled(name)
    change(Owner(metric))
    metric.half().set_dtype(torch.float32)
    assert_equal(metric, filled(name))
    metric.reset()
    for batch in batches(name in FEDERATED):
        metric.update(**batch)
    assert_equal(metric, filled(name))


@EVERY
def test_autocast_changes_nothing(name):
    metric = METRICS[name]()
    with torch.autocast("cpu", torch.bfloat16):
        for batch in batches(name in FEDERATED):
            metric.update(**batch)
        assert_equal(metric, filled(name))


@pytest.mark.parametrize("name", ["kernel", "federated-kernel"])
def test_features_kept_on_the_cpu_give_the_same_and_merge(name):
    kept = filled(name, compute_on_cpu=True)
    kept.merge_state(METRICS[name]())
    assert_equal(kept, filled(name))


@EVERY
def test_states_and_what_they_reset_to_follow_a_parent_to_another_device(name):
    metric = filled(name)
    Owner(metric).to("meta")
    for _ in range(2):
        states = [v for value in metric.metric_state.values() for v in (value if isinstance(value, list) else [value])]
        assert {state.device.type for state in states} == {"meta"}
        assert metric.device.type == "meta"
        metric.reset()


@EVERY
def test_states_stay_where_float64_is_and_the_embedding_goes_on(name, monkeypatch):
    monkeypatch.setattr(feature_metric, "WITHOUT_FLOAT64", ("meta",))
    metric = METRICS[name](embedding=ModuleEmbedding(nn.Flatten(), name="flat"))
    Owner(metric).to("meta")
    assert metric.device.type == "cpu"
    assert metric.embedding.device.type == "meta"


@EVERY
def test_nothing_of_it_is_saved_with_a_parent(name):
    metric = METRICS[name](embedding=ModuleEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(48, DIM))))
    owner = Owner(metric)
    assert set(owner.state_dict()) == {"layer.weight", "layer.bias"}
    assert {key for key, _ in owner.named_parameters()} == {"layer.weight", "layer.bias"}


@EVERY
def test_metrics_reset_under_inference_mode_work_outside_of_it(name):
    metric = filled(name)
    with torch.inference_mode():
        metric.reset()
        for batch in batches(name in FEDERATED)[:3]:
            metric.update(**batch)
    copied = metric.clone()
    for one in (metric, copied):
        for batch in batches(name in FEDERATED)[3:]:
            one.update(**batch)
        assert_equal(one, filled(name))


@EVERY
def test_pickled_and_copied_metrics_go_on_alone(name):
    metric = filled(name)
    for copied in (pickle.loads(pickle.dumps(metric)), deepcopy(metric), metric.clone()):
        assert_equal(copied, metric)
        copied.reset()
        assert_equal(metric, filled(name))


def test_gradients_stop_at_the_metric():
    features = GENERATED.clone().requires_grad_()
    metric = KernelDistance(dim=DIM)
    metric(features, real=True)
    metric.update(features, real=False)
    assert not metric.compute().requires_grad
