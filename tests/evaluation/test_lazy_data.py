"""Scores of images that are read when they are embedded: those of the same images in memory."""

import re
import weakref
from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule, ThreeWaySplit
from fedgen.clients.heterogeneity.heterogeneity import measure_clients
from fedgen.clients.partitions import IID, ByClass, Dirichlet, VarianceLimited
from fedgen.data import Digits, ImageFolder
from fedgen.data.anybody import DatasetReading, as_examples
from fedgen.data.lazy_examples import ImageReader, LazyInputs, join_inputs
from fedgen.embeddings import FeatureCache, Pixels, embed
from fedgen.evaluation import Evaluator, evaluate, sampler_of
from fedgen.evaluation.federation_splits import as_splits
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.trainers import quiet_trainer


class Pictures(Dataset):
    """The digits as Pillow images."""

    def __init__(self):
        self.whole = Digits().load("train")
        self.targets = self.whole.labels

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, position):
        return Image.fromarray(self.whole.inputs[position, 0].numpy()), int(self.targets[position])


def noise(count, draws):
    return torch.rand(count, 1, 8, 8, generator=draws) * 2 - 1


def both(partition, **options):
    shape = {"held_out": 0.25, "seed": 0, **options}
    return [FederatedDataModule(data, partition, **shape) for data in (Pictures(), Digits())]


@pytest.mark.slow
@pytest.mark.parametrize("split", [None, ThreeWaySplit(unparticipating=0.4)])
def test_scores_of_lazy_data_are_those_of_data_in_memory(split):
    found = []
    for module in both(Dirichlet(5, 1.0), split=split):
        evaluator = Evaluator(module, ["pixels"], num_images=100, seed=0)
        assert isinstance(evaluator.splits[0].images, LazyInputs) == isinstance(module.data, Pictures)
        found.append([(r.score, r.aggregate, r.split, r.value) for r in evaluator.evaluate(noise).records])
    assert len(found[0]) > 5
    assert found[0] == found[1]


class OfLabels(torch.nn.Module):
    num_classes = 10

    def sample(self, num_images, generator, labels=None):
        return noise(num_images, generator)


@pytest.mark.parametrize(("score", "part"), [("fid", "train"), ("fid", "held_out"), ("utility", "held_out")])
def test_an_item_that_cannot_be_read_is_named_with_its_client(score, part):
    class Torn(Pictures):
        def __getitem__(self, position):
            if position == torn:
                raise OSError("torn")
            return super().__getitem__(position)

    torn = -1
    module = FederatedDataModule(Torn(), ByClass(), held_out=0.5, seed=0)
    client = module.clients[7]
    torn = int(getattr(client, part)[5])
    split = {"train": "train", "held_out": "report"}[part]
    with pytest.raises(OSError, match="torn") as caught:
        Evaluator(module, ["pixels"], scores=[score], num_images=100).evaluate(sampler_of(OfLabels()))
    assert caught.value.__notes__ == [f"item {torn} of Torn was being read", f"for client 'class 7' in split {split!r}"]


def test_an_item_that_is_read_for_the_range_of_all_is_named_with_its_client_in_whatever_split():
    class Torn(Pictures):
        def __getitem__(self, position):
            if position in torn:
                raise OSError("torn")
            return super().__getitem__(position)

    torn = set()
    module = FederatedDataModule(Torn(), ByClass(), held_out=0.5, seed=0)
    torn.update(int(place) for client in module.clients for place in client.held_out)
    with pytest.raises(OSError, match="torn") as caught:
        Evaluator(module, ["pixels"], num_images=100)
    assert re.fullmatch(r"for client 'class \d' in split 'report'", caught.value.__notes__[-1])


@pytest.mark.slow
def test_measures_of_clients_and_partitions_that_look_at_images():
    ours, theirs = both(VarianceLimited(5, embedding="pixels"))
    assert [client.train.tolist() for client in ours.clients] == [client.train.tolist() for client in theirs.clients]
    measured = [measure_clients(module.everyone, Pixels()).to_json() for module in (ours, theirs)]
    assert measured[0] == measured[1]


@pytest.mark.slow
def test_no_more_images_than_a_chunk_are_in_memory_at_once(monkeypatch):
    module = FederatedDataModule(Pictures(), IID(3), seed=0)
    largest = []
    forward = Pixels.forward
    monkeypatch.setattr(Pixels, "forward", lambda self, images: largest.append(len(images)) or forward(self, images))
    monkeypatch.setattr(LazyInputs, "__getitem__", lambda self, index: pytest.fail("all images were read at once"))
    features = embed(Pixels(), module.examples.inputs, batch_size=50)
    assert len(features) == len(module.examples)
    assert max(largest) == 50


@pytest.mark.slow
def test_features_are_cached_under_the_key_of_the_same_images_in_memory(tmp_path, monkeypatch):
    ours, theirs = (module.examples.inputs for module in both(IID(3)))
    cache = FeatureCache(tmp_path)
    kept = embed(Pixels(), theirs, cache=cache)
    monkeypatch.setattr(Pixels, "features", lambda self, levels: pytest.fail("embedded again"))
    assert torch.equal(embed(Pixels(), ours, cache=cache), kept)


def negative(batch):
    return -batch[0]


def collate_negatives(items):
    return torch.stack([255 - image for image, _ in items]), torch.tensor([label for _, label in items])


@pytest.mark.parametrize("reading", [DatasetReading(images_of=negative), DatasetReading(collate_fn=collate_negatives)])
def test_features_of_other_images_of_the_same_files_are_not_taken_from_the_cache(reading, tmp_path):
    """A folder's images are known by their files, and what anybody makes of them is not."""
    (tmp_path / "images").mkdir()
    for position, levels in enumerate(Digits().load("train").inputs[:4]):
        Image.fromarray(levels[0].numpy()).save(tmp_path / "images" / f"{position}.png")
    cache, folder = FeatureCache(tmp_path / "cache"), ImageFolder(tmp_path / "images", 8, 1, in_memory=False)
    plain, other = (as_examples(folder, read).inputs for read in (DatasetReading(), reading))
    first = embed(Pixels(), plain, cache=cache)
    assert torch.equal(embed(Pixels(), other, cache=cache), embed(Pixels(), other))
    assert not torch.equal(embed(Pixels(), other), first)


class Floats(Pictures):
    """The digits as floats in [0, 1], as torchvision's ToTensor gives them."""

    largest = 1

    def __getitem__(self, position):
        return self.whole.inputs[position].float() / 255 * self.largest, int(self.targets[position])


class GreyLevels(Floats):
    largest = 255


@pytest.mark.parametrize(
    ("kind", "said"), [(Floats, r"\[0, 1\], as ToTensor\(\) makes them"), (GreyLevels, r"\[0, 255\]")]
)
def test_floats_of_another_range_are_refused_by_name_and_converted_where_it_is_said(kind, said):
    with pytest.raises(ValueError, match=rf"{kind.__name__} lie in {said}.*say value_range=\(0, {kind.largest}\)"):
        Evaluator(FederatedDataModule(kind(), IID(3)), ["pixels"])
    module = FederatedDataModule(kind(), IID(3), value_range=(0, kind.largest))
    assert torch.equal(module.examples.inputs[:], Digits().load("train").inputs)


class Named(Pictures):
    def __getitem__(self, position):
        return {"scan": {"pixels": self.whole.inputs[position]}, "kind": 3}


def test_images_of_says_where_images_are():
    module = FederatedDataModule(Named(), IID(3), images_of=lambda batch: batch["scan"]["pixels"])
    assert torch.equal(module.examples.inputs[10:20], Digits().load("train").inputs[10:20])
    with pytest.raises(ValueError, match="images_of"):
        FederatedDataModule(Named(), IID(3), images_of=lambda batch: batch["pixels"]).examples.inputs[0]


class Flipped(Pictures):
    """With an augmentation."""

    def __getitem__(self, position):
        image, label = super().__getitem__(position)
        return (image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else image), label


@pytest.mark.slow
def test_images_are_measured_without_augmentation_where_those_are_given():
    plain = Digits().load("train").inputs
    given = FederatedDataModule(Flipped(), IID(3), evaluation_data=Pictures())
    assert torch.equal(given.examples.inputs[:], plain)
    augmented = FederatedDataModule(Flipped(), IID(3)).examples.inputs
    assert torch.equal(augmented[:200], augmented[:200])
    assert not torch.equal(augmented[:200], plain[:200])


def fit(folder, data, workers):
    lightning.seed_everything(0, verbose=False)
    module = FederatedDataModule(data, IID(3), batch_size=16, num_workers=workers)
    unseen = {"report": False, "page": False}
    evaluation = FederatedEvaluation(2, embeddings=["pixels"], num_images=100, dirpath=folder, **unseen)
    trainer = quiet_trainer(2, strategy=FedAvgStrategy(3), callbacks=[evaluation])
    model = WGANGP(SmallGenerator(), SmallCritic(), n_critic=1)
    trainer.fit(model, module)
    scores = [record.value for record in evaluation.evaluator.evaluate(noise).records]
    return np.concatenate([tensor.numpy().ravel() for tensor in model.state_dict().values()]), scores


@pytest.mark.slow
def test_a_federation_trains_and_is_scored_alike_in_memory_and_read_by_workers(tmp_path):
    weights, scores = fit(tmp_path / "memory", Digits(), 0)
    for workers in (0, 2):
        ours, ours_scores = fit(tmp_path / f"lazy{workers}", Pictures(), workers)
        assert np.array_equal(ours, weights)
        assert ours_scores == scores


@pytest.mark.slow
def test_a_loss_takes_its_references_from_images_that_are_read():
    values = []
    for module in both(IID(3)):
        loss = EmbeddedLoss(FastFIDLoss(), ["pixels"])
        loss.set_references([client.train_examples.inputs for client in module.clients])
        values.append(loss(noise(80, torch.Generator().manual_seed(0))).item())
    assert values[0] == values[1]


# --------------------------------------------- scores of images themselves, and those that ask the model


class Asked(torch.nn.Module):
    """Draws digits of the classes that are asked for, and says how bright an image is."""

    num_classes = 10

    def __init__(self):
        super().__init__()
        self.digits = Digits().load("train")

    def sample(self, number, draws=None, labels=None):
        own = [(self.digits.labels == label).nonzero()[0] for label in labels]
        return from_uint8(self.digits.inputs[torch.cat(own)]) + 0.1 * torch.randn(number, 1, 8, 8, generator=draws)

    def example_losses(self, images, labels, seed=0):
        assert labels is not None
        assert isinstance(images, torch.Tensor)
        return images.mean((1, 2, 3)) + labels

    def predictions(self, images, labels, seed=0):
        return (images.mean((1, 2, 3)) > -0.5).long(), (labels > 4).long()


@pytest.fixture
def alive(monkeypatch):
    """The most images at once of those that were read and are still held, and how many were read."""
    found = SimpleNamespace(now=0, most=0, read=0)
    measured = ImageReader._measured

    def release(count):
        found.now -= count

    def counted(self, images):
        given = measured(self, images)
        found.now, found.read = found.now + len(given), found.read + len(given)
        found.most = max(found.most, found.now)
        weakref.finalize(given.untyped_storage(), release, len(given))
        return given

    monkeypatch.setattr(ImageReader, "_measured", counted)
    return found


SCORES = ["loss", {"name": "utility", "epochs": 1}, "torchmetrics.classification.BinaryAccuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_scores_of_images_and_of_the_model_read_chunks_and_forget_them(alive, score):
    found = []
    for module in both(IID(3), held_out=0.6):
        judge = Evaluator(module, num_images=100, scores=[score], seed=0)
        model, before = Asked(), alive.read
        records = [*judge.evaluate(judge.sampler_of(model), **judge.asked_of(model)).records, *judge.floor()]
        found.append([(r.name, r.split, r.value, r.standard_error) for r in records])
        if isinstance(module.data, Pictures):
            assert alive.read - before > len(judge.splits[-1].images)
    assert found[0] == [(name, split, pytest.approx(v), pytest.approx(e)) for name, split, v, e in found[1]]
    assert alive.most <= 2 * 256  # a classifier's batch and the one before it, of 719 or 1,078 images
    assert alive.now == 0


@pytest.mark.slow
def test_clients_of_several_data_sets_on_disk_are_joined_without_being_read(alive):
    ours, theirs = both(IID(3))
    parts = [
        as_examples(torch.utils.data.Subset(Pictures(), client.train.tolist()), DatasetReading())
        for client in ours.clients
    ]
    joined = join_inputs([part.inputs for part in parts])
    assert alive.read == 0
    assert torch.equal(joined[:], torch.cat([client.train_examples.inputs for client in theirs.clients]))
    model, options = Asked(), {"scores": ["loss"], "seed": 0}
    values = [[r.value for r in evaluate(model, {"train": own}, **options)] for own in (parts, parts_of(theirs))]
    assert values[0] == pytest.approx(values[1])
    assert isinstance(as_splits(ours.clients)[0].stand_ins["floor"].images, LazyInputs)


def parts_of(module):
    return [client.train_examples for client in module.clients]
