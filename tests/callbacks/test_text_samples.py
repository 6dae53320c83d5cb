"""A federated model whose samples are texts: scored in an embedding of molecules while it trains."""

import lightning as L
import pytest
import torch

from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Examples
from fedgen.data.text import encode_all
from fedgen.evaluation import read_records
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import make_trainer

CHAINS, RINGS = ["CCO", "CCN", "CCC", "CCCC", "CC(C)C", "CCCl"], ["c1ccccc1", "C1CC1", "c1ccncc1", "C1CCO1"]


class Frequencies(L.LightningModule):
    """Molecules as often as the weights of a list say, some of them damaged."""

    def __init__(self):
        super().__init__()
        self.texts = [*CHAINS, *RINGS, "C("]
        self.weights = torch.nn.Parameter(torch.zeros(len(self.texts)))

    def training_step(self, batch, batch_idx):
        return self.weights.square().sum() + 0 * batch[0].sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def sample(self, num_images, generator=None):
        chosen = self.weights.detach().softmax(0).multinomial(num_images, replacement=True, generator=generator)
        return [self.texts[place] for place in chosen.tolist()]


@pytest.fixture
def data():
    labels = torch.tensor([0] * 3 * len(CHAINS) + [1] * 3 * len(RINGS))
    examples = Examples(encode_all(CHAINS * 3 + RINGS * 3), labels, "molecules/train", ("chains", "rings"))
    return FederatedDataModule(examples, ByClass(), batch_size=4, held_out=0.25)


@pytest.mark.slow
def test_texts_are_scored_at_rounds_and_kept_a_line_each(tmp_path, data):
    scored = FederatedEvaluation(num_images=40, embeddings=["chemnet"], scores=["fid", "kid"], grid=8)
    make_trainer(FedAvgStrategy(3), 2, callbacks=[scored], default_root_dir=tmp_path).fit(Frequencies(), data)
    found = {
        one.name: one for one in read_records(tmp_path / "scores.jsonl") if one.round == 1 and one.split == "train"
    }
    assert {"fid_avg", "fid_all", "kid_avg", "kid_all"} <= set(found)
    assert found["fid_all"].num_generated == 40
    assert "have no features in chemnet" in found["fid_all"].note
    (last,) = (tmp_path / "samples").iterdir()
    assert last.name == "round=00001.txt"
    assert set(last.read_text().splitlines()) <= {*CHAINS, *RINGS, "C("}
    assert len(last.read_text().splitlines()) == 8
