"""Scores on a GPU are the CPU's, to the rounding of an embedding."""

import pytest
import torch

from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.evaluation import Evaluator
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.devices import DEVICES, on
from tests.federated.modules import make_trainer
from tests.federated.rank_runs import pictures

SCORES = ["fid", "kid"]


def clients(count=3, images=40):
    draws = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count * images, 3, 8, 8), generator=draws, dtype=torch.uint8)
    labels = torch.zeros(images, dtype=torch.int64)
    return [Examples(part, labels, "noise", ("noise",)) for part in pixels.split(images)]


def values(device, embedding):
    torch.manual_seed(0)
    network = SmallGenerator(channels=3).eval().to(device)

    @torch.no_grad()
    def sample(number, draws):
        return network(torch.randn(number, network.latent_dim, generator=draws).to(device))

    evaluator = Evaluator({"train": clients()}, [embedding], num_images=64, scores=SCORES, seed=0, device=device)
    found = evaluator.evaluate(sample).records
    return {record.name: record.value for record in found if record.name.startswith(tuple(SCORES))}


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("embedding", ["pixels", "efficientnet-lite0-32"])
def test_a_device_scores_as_the_cpu_does(embedding, device):
    expected, found = values("cpu", embedding), values(device, embedding)
    assert {"fid_avg", "fid_all", "kid_avg", "kid_all"} <= expected.keys()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_an_evaluation_in_training_scores_the_rounds_model_where_it_lies(device, tmp_path):
    torch.manual_seed(0)
    module = WGANGP(SmallGenerator(width=4), SmallCritic(width=4), n_critic=2, ema_decay=0.9)
    scoring = FederatedEvaluation(1, ["pixels"], num_images=100, dirpath=tmp_path, report=False, page=False)
    data = FederatedDataModule(pictures(), Natural(), 8, held_out=0.0, seed=1)
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 2, callbacks=[scoring], **on(device))
    trainer.fit(module, data)
    images = module.sample(50, torch.Generator().manual_seed(1))
    again = module.cpu().sample(50, torch.Generator().manual_seed(1))
    torch.testing.assert_close(images.cpu(), again, rtol=1e-3, atol=1e-4)
    assert torch.isfinite(trainer.callback_metrics["fid_all"])
