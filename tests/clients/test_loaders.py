"""What a client's data look like to code of a module's own: one client's batches, its data set, the wrapped module."""

import copy
import pickle

import pytest
import torch
from lightning import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, Contiguous, make_data, make_trainer
from tests.trainers import quiet_trainer

SIZES = (12, 20, 8)


class Asks(Automatic):
    """Notes what an ordinary module asks of its data, where it asks it."""

    def __init__(self):
        super().__init__()
        found = self.found = {}
        self.note = lambda where, loader, trainer: found.setdefault(where, []).append(
            (len(loader), len(loader.dataset), loader.batch_size, len(loader.sampler), loader.drop_last)
        )

    own_turn_state = ("found", "note")

    def setup(self, stage):
        self.planned = len(self.trainer.datamodule.train_dataloader()) * self.trainer.max_epochs
        self.note("setup", self.trainer.datamodule.train_dataloader(), self.trainer)

    def configure_optimizers(self):
        total = len(self.trainer.datamodule.train_dataloader()) * self.trainer.max_epochs
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=total)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.note("turn", self.trainer.train_dataloader, self.trainer)
            again = next(iter(self.trainer.train_dataloader))
            self.found.setdefault("same", []).append(torch.equal(again[0], batch[0]))
            first = self.trainer.train_dataloader.dataset[0]
            self.found.setdefault("items", []).append(first[0].tolist())
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        self.note("epoch end", self.trainer.train_dataloader, self.trainer)


@pytest.fixture(scope="module")
def asked():
    module, data = Asks(), make_data(SIZES)
    trainer = make_trainer(FedAvgStrategy(5, seed=0), 2)
    trainer.fit(module, data)
    return module, data, trainer


def test_the_length_of_the_training_loader_is_a_turns_iterations(asked):
    module, _, trainer = asked
    assert module.planned == 5 * 2
    assert [found[0] for place in ("setup", "turn", "epoch end") for found in module.found[place]] == [5] * (1 + 6 + 2)
    assert trainer.fit_loop.max_batches == 3  # turns a round
    assert trainer.lr_scheduler_configs[0].scheduler.get_last_lr() == [0.0]


def test_in_a_turn_data_set_and_batches_are_the_clients(asked):
    module, data, _ = asked
    assert module.found["turn"] == [(5, size, 4, size, True) for size in SIZES] * 2
    assert module.found["setup"] == [(5, 40, 4, 40, True)]
    assert module.found["same"] == [True] * 6
    firsts = [data.examples.inputs[client.train[0]].tolist() for client in data.clients]
    assert module.found["items"] == firsts * 2


def test_before_training_batches_are_those_of_the_first_client():
    class Looks(Automatic):
        def setup(self, stage):
            self.seen = [x for x, _ in self.trainer.datamodule.train_dataloader()]

    module, data = Looks(), make_data(SIZES)
    make_trainer(FedAvgStrategy(5, seed=0), 1).fit(module, data)
    own = data.examples.inputs[data.clients[0].train]
    assert len(module.seen) == 5
    assert all(any(torch.equal(row, mine) for mine in own) for x in module.seen for row in x)


def test_the_loader_of_pooled_training_has_the_same_words():
    loader = make_data(SIZES, held_out=0.25).train_dataloader()
    assert (len(loader.dataset), loader.batch_size, len(loader.sampler)) == (30, 4, 30)
    assert isinstance(loader.sampler, SequentialSampler)
    assert (loader.num_workers, loader.collate_fn([(torch.ones(2), 1)])[1].tolist()) == (0, [1])
    with pytest.raises(AttributeError, match="DataLoader"):
        _ = loader.dataset_


def test_pooled_training_still_overfits_some_batches():
    quiet_trainer(1, overfit_batches=1).fit(Automatic(), make_data(SIZES))


class Named(Dataset):
    """Items of anybody's data set, with what it says of itself."""

    classes = ("a", "b")

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return torch.full((3,), float(place)), place % 2


def test_items_of_anybodys_data_set_are_its_own():
    loader = FederatedDataModule(Named(), Contiguous((4, 8)), batch_size=2, held_out=0.0, seed=0).train_dataloader()
    assert len(loader.dataset) == 12
    assert loader.dataset[3][0].tolist() == [3.0, 3.0, 3.0]
    assert loader.dataset.dataset.classes == ("a", "b")
    parts = FederatedDataModule([Named(), Named()], batch_size=2, held_out=0.0, seed=0).train_dataloader()
    assert len(parts.dataset) == 24
    assert parts.dataset[13][0].tolist() == [1.0, 1.0, 1.0]


# ---- a wrapped data module ----


class Sentences(Named):
    def __getitem__(self, place):
        return {"text": "ab"[place % 2]}


class Wrapped(LightningDataModule):
    num_classes = 2

    def setup(self, stage):
        self.rows = 12

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(36.0).view(12, 3), torch.arange(12) % 2), batch_size=4)


def wrapping(inner):
    return FederatedDataModule(inner, IID(2), held_out=0.0, seed=0)


def test_attributes_of_a_wrapped_data_module_are_passed_on():
    class Reads(Automatic):
        def setup(self, stage):
            self.net[-1] = nn.Linear(8, self.trainer.datamodule.num_classes)
            self.rows = self.trainer.datamodule.rows

    module = Reads()
    make_trainer(FedAvgStrategy(2, seed=0), 1).fit(module, wrapping(Wrapped()))
    assert module.rows == 12


def test_what_neither_has_and_what_is_the_modules_own_is_not():
    data = wrapping(Wrapped())
    with pytest.raises(AttributeError, match="vocabulary"):
        _ = data.vocabulary
    with pytest.raises(AttributeError, match="FederatedDataModule"):
        _ = data._private
    with pytest.raises(AttributeError, match="FederatedDataModule"):
        _ = make_data().vocabulary
    assert data.batch_size == 64


def test_data_without_images_say_so_behind_a_wrapped_module():
    class Texts(Wrapped):
        image_shape = (1, 2, 2)  # the federation's data module has a word of this name itself

        def train_dataloader(self):
            return DataLoader(Sentences(), batch_size=2)

    with pytest.raises(AttributeError, match="measure"):
        _ = wrapping(Texts()).image_shape


def test_a_wrapping_data_module_is_copied_and_pickled():
    data = wrapping(Wrapped())
    assert data.with_roles(data.roles).num_classes == 2
    assert copy.copy(data).num_classes == 2
    assert pickle.loads(pickle.dumps(data)).num_classes == 2
