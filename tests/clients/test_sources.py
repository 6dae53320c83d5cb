"""What a data module takes: Datasets, arrays, loaders, Lightning data modules, clients' own data."""

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID, ByClass, Dirichlet, Natural
from fedgen.data import Examples, ImageFolder
from fedgen.data.items import collate_items
from fedgen.data.lazy_examples import LazyExamples
from fedgen.federated import FedAvgStrategy
from tests.clients.test_data_module import fedavg, under
from tests.data.test_image_folder import write_image
from tests.trainers import quiet_trainer


class Pictures(Dataset):
    """Grey Pillow images whose grey level is their position, with labels that no item is read for."""

    def __init__(self, count=20, classes=4, decoded=None):
        self.targets = [position % classes for position in range(count)]
        self.decoded = [] if decoded is None else decoded

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, position):
        self.decoded.append(position)
        return Image.new("L", (6, 6), position), self.targets[position]


def batches(module, iterations=2, round=0):
    return [batch for turn in under(module, fedavg(), round) for batch in turn.batches(iterations)]


def greys(images):
    return ((images[:, 0, 0, 0] + 1) * 127.5).round().int().tolist()


def make(data, partition=None, **options):
    return FederatedDataModule(data, partition, **{"batch_size": 4, "seed": 0, "held_out": 0.0, **options})


# ------------------------------------------------------------------ one source


def test_a_dataset_of_pillow_images_is_dealt_without_decoding_them():
    data = Pictures()
    module = make(data, ByClass())
    read = len(data.decoded)
    assert read == 1  # the first item, so that what is wrong with it is told at once
    for label, client in enumerate(module.clients):
        assert set(client.data.labels[client.train].tolist()) == {label}
    assert len(data.decoded) == read
    for images, labels in batches(module):
        assert images.dtype == torch.float32
        assert images.shape == (4, 1, 6, 6)
        assert [grey % 4 for grey in greys(images)] == labels.tolist()


def test_dirichlet_and_iid_deal_a_dataset_as_they_deal_the_same_examples_in_memory():
    whole = Examples(torch.zeros(20, 1, 6, 6, dtype=torch.uint8), torch.arange(20) % 4, "same", tuple("0123"))
    for partition in (IID(3), Dirichlet(3, 0.5)):
        lazy, kept = make(Pictures(), partition, held_out=0.2), make(whole, partition, held_out=0.2)
        assert [c.train.tolist() for c in lazy.clients] == [c.train.tolist() for c in kept.clients]


def test_turns_read_the_examples_that_turns_in_memory_draw():
    grey = torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 6, 6).contiguous()
    kept = make(Examples(grey, torch.arange(20) % 4, "same", tuple("0123")), IID(3))
    for ours, theirs in zip(batches(make(Pictures(), IID(3)), 5), batches(kept, 5), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_parts_and_joined_datasets_keep_their_labels():
    both = ConcatDataset([Pictures(6), Subset(Pictures(), [3, 5])])
    assert make(both, IID(2)).examples.labels.tolist() == [0, 1, 2, 3, 0, 1, 3, 1]


@pytest.mark.parametrize(
    "labels", ["kind", lambda position: "ab"[position % 2], np.array(list("ab") * 10), list("ab") * 10]
)
def test_labels_are_an_attribute_a_function_or_values(labels):
    data = Pictures()
    data.kind = list("ab") * 10
    examples = make(data, IID(2), labels=labels).examples
    assert examples.classes == ("a", "b")
    assert examples.labels.tolist() == [0, 1] * 10


def test_owners_make_natural_clients():
    module = make(Pictures(), owners=lambda position: f"writer {position // 10}")
    assert isinstance(module.partition, Natural)
    assert [client.name for client in module.clients] == ["writer 0", "writer 1"]
    assert module.clients[1].train.tolist() == list(range(10, 20))


def test_targets_that_are_no_classes_are_no_labels():
    class Boxes(Pictures):
        def __init__(self):
            super().__init__()
            self.targets = [torch.rand(2, 4) for _ in range(20)]

    with pytest.warns(UserWarning, match="targets"):
        assert not make(Boxes(), IID(2), collate_fn=list).examples.is_labelled
    with pytest.raises(ValueError, match="integers"):
        make(Boxes(), IID(2), collate_fn=list, labels="targets")


def test_a_data_set_of_the_library_datasets():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "writer": datasets.Value("string"),
        }
    )
    pictures = [Image.new("L", (4, 4), position) for position in range(8)]
    rows = {"image": pictures, "label": [0, 1] * 4, "writer": list("aabbbbcc")}
    data = datasets.Dataset.from_dict(rows, features=features)
    module = make(data, owners="writer")
    assert [client.name for client in module.clients] == ["a", "b", "c"]
    assert module.examples.classes == ("cat", "dog")
    batch = batches(module, 1)[1]
    assert set(batch) == {"image", "label", "writer"}
    assert batch["image"].shape == (4, 1, 4, 4)
    assert module.examples.inputs[5].unique().tolist() == [5]


def test_a_dataset_dict_is_refused_with_the_split_to_name():
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1]})
    for names in (("test", "train"), ("unsupervised", "train"), ("mine",)):
        data = datasets.DatasetDict(dict.fromkeys(names, split))
        for partition in (None, IID(2)):
            with pytest.raises(ValueError, match=rf"data is a DatasetDict .*, as data\['{names[-1]}'\]"):
                make(data, partition)


# ------------------------------------------------------------------ arrays


def test_arrays_of_images_and_points_are_kept_in_memory():
    images = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1).repeat(4, 2)
    module = make((images, np.array([5, 7] * 4)), IID(2))
    assert type(module.examples) is Examples
    assert module.examples.classes == tuple("01234567")
    points = make(np.random.default_rng(0).normal(size=(8, 2)), IID(2))  # float64, NumPy's default
    assert type(points.examples) is Examples
    assert points.examples.inputs.dtype == torch.float32


def test_arrays_with_channels_last_and_of_16_bits_are_the_images_they_are():
    """uint8 [N, H, W, 3] was taken for images of H channels, and 16 bits were no images."""
    images = torch.randint(256, (8, 3, 6, 5), dtype=torch.uint8)
    rows = images.permute(0, 2, 3, 1).numpy()
    assert torch.equal(make(rows, IID(2)).examples.inputs, images)
    assert torch.equal(make(rows.astype(np.uint16) * 257, IID(2)).examples.inputs, images)
    floats = make(rows / np.float32(127.5) - 1, IID(2))
    assert torch.equal(floats.examples.inputs[:], images)
    assert batches(floats)[0][0].shape[1:] == (3, 6, 5)
    read = make(TensorDataset(torch.from_numpy(rows)), IID(2))  # whose batches are its own
    assert torch.equal(read.examples.inputs[:], images)
    vectors = torch.zeros(4, 16, 1, 1, dtype=torch.uint8)
    assert make(vectors, IID(2)).examples.shape == (16, 1, 1)
    with pytest.raises(ValueError, match="channels"):
        Examples(torch.from_numpy(rows), torch.zeros(8, dtype=torch.int64), "rows", ())


def test_other_arrays_keep_their_types_and_are_cut_without_work_for_each_item():
    tokens, targets = torch.arange(40).view(8, 5), torch.linspace(0, 1, 8)
    (x, y), *_ = batches(make((tokens, targets), IID(2), labels=[]))
    assert x.dtype == torch.int64
    assert x.shape == (4, 5)
    assert torch.equal(y, targets[x[:, 0] // 5])
    series = make(torch.zeros(8, 30, 2), IID(2))
    assert [tensor.shape for tensor in batches(series)[0]] == [(4, 30, 2)]
    floats = make((torch.rand(8, 1, 4, 4) * 2 - 1, torch.arange(8) % 2), ByClass())
    assert len(floats.clients) == 2
    assert floats.image_shape == (1, 4, 4)


@pytest.mark.parametrize("y", [np.array([3, 7] * 4), np.array([3.0, 7.0] * 4), torch.tensor([[3], [7]] * 4)])
def test_labels_of_arrays_and_of_datasets_keep_their_numbers(y):
    images = np.zeros((8, 1, 2, 2), np.uint8)
    floats = torch.zeros(8, 1, 2, 2)
    y = y if y.ndim == 1 else y[:, 0]
    for data in ((images, y), TensorDataset(floats, torch.as_tensor(y)), {"a": (images, y), "b": (images[:2], y[:2])}):
        module = make(data, None if isinstance(data, dict) else ByClass())
        assert {int(label) for _, labels in batches(module) for label in labels} == {3, 7}
        assert module.examples.classes == tuple("01234567")
        if not isinstance(data, dict):
            assert [client.name for client in module.clients] == ["class 3", "class 7"]


def test_labels_beside_an_array_may_be_a_list_or_a_column_of_pandas():
    pandas = pytest.importorskip("pandas")
    images = np.zeros((8, 1, 2, 2), np.uint8)
    column = pandas.Series([3, 7] * 4, index=range(8, 0, -1))  # read-only as an array, of which torch would warn
    for y in ([3, 7] * 4, column, column.astype(float), column.astype(str)):
        assert [client.name for client in make((images, y), ByClass()).clients] == ["class 3", "class 7"]


@pytest.mark.parametrize("dtype", [object, "U"])
def test_texts_beside_images_in_memory_are_classes(dtype):
    texts = np.array(["dog", "cat"] * 4, dtype=dtype)
    for images in (np.zeros((8, 1, 2, 2), np.uint8), torch.zeros(8, 1, 2, 2)):
        module = make((images, texts), ByClass())
        assert [client.name for client in module.clients] == ["cat", "dog"]
        assert [set(labels.tolist()) for _, labels in batches(module, 1)] == [{0}, {1}]


def test_labels_that_a_model_would_see_are_numbers_of_classes():
    images = np.zeros((8, 1, 2, 2), np.uint8)
    with pytest.raises(ValueError, match="class"):
        make((images, np.array([0, -1] * 4)), IID(2))
    with pytest.raises(ValueError, match="labels"):
        make(images, IID(2), labels=[0, -1] * 4)
    with pytest.raises(ValueError, match="integers"):
        make((images, np.array([np.nan] + [1.0] * 7)), IID(2))
    with pytest.raises(ValueError, match="labels"):
        make((images, np.array([0, 1] * 4)), IID(2), labels=list("ab") * 4)
    assert make((images, np.array([0, -1] * 4)), IID(2), labels=[]).examples.classes == ()
    assert make(Pictures(8), IID(2), labels=[0, -1] * 4).examples.classes == ("-1", "0")


def test_arrays_of_different_lengths_are_named():
    with pytest.raises(ValueError, match="items"):
        make((np.zeros((8, 2)), np.zeros(7)), IID(2))


# ------------------------------------------------------------------ clients' own data


def test_a_dictionary_of_arrays_is_a_federation_in_memory():
    parts = {
        "north": (np.full((3, 1, 2, 2), 7, np.uint8), [0, 1, 1]),
        "south": (np.full((5, 1, 2, 2), 9, np.uint8), [2] * 5),
    }
    parts = {name: (x, np.array(y)) for name, (x, y) in parts.items()}
    module = make(parts)
    assert [client.name for client in module.clients] == ["north", "south"]
    assert type(module.examples) is Examples
    assert module.examples.classes == ("0", "1", "2")
    assert module.examples.labels.tolist() == [0, 1, 1, 2, 2, 2, 2, 2]
    assert [set(greys(images)) for images, _ in batches(module, 1)] == [{7}, {9}]


def test_labels_that_one_client_lacks_are_left_out_with_a_word():
    images = np.zeros((4, 1, 2, 2), np.uint8)
    with pytest.warns(UserWarning, match="labels"):
        module = make({"a": (images, np.arange(4)), "b": images})
    assert not module.examples.is_labelled
    alike = make({"a": (images, np.arange(4)), "b": images}, labels=[])
    assert not alike.examples.is_labelled
    assert type(alike.examples) is Examples


def test_a_list_of_datasets_is_a_federation():
    module = make([Pictures(4), Subset(Pictures(), [9, 11, 13])])
    assert [client.name for client in module.clients] == ["client 0", "client 1"]
    assert sorted(greys(batches(module, 1)[1][0])) == [9, 11, 13]


def test_clients_in_memory_and_on_disk_mix():
    arrays = np.full((4, 1, 6, 6), 200, np.uint8), np.array([0, 1, 2, 3])
    module = make({"memory": arrays, "disk": Pictures(4)})
    first, second = batches(module, 1)
    assert greys(first[0]) == [200] * 4
    assert sorted(greys(second[0])) == [0, 1, 2, 3]
    assert module.examples.inputs[[0, 4, 5]][:, 0, 0, 0].tolist() == [200, 0, 1]


def test_loaders_bring_their_batch_size_collate_fn_and_workers():
    def pairs(items):
        return {"grey": torch.tensor([picture.getpixel((0, 0)) for picture, _ in items])}

    loaders = {
        "a": DataLoader(Pictures(12), batch_size=3, collate_fn=pairs, shuffle=True),
        "b": DataLoader(Pictures(12), batch_size=5, collate_fn=pairs, num_workers=1),
    }
    module = make(loaders)
    assert module.examples.items.num_workers == 1
    first, second = under(module, fedavg())
    assert [first.batch_length, second.batch_length] == [3, 5]
    assert [len(batch["grey"]) for batch in first.batches(2)] == [3, 3]
    assert [len(batch["grey"]) for batch in second.batches(2)] == [5, 5]
    module.teardown("fit")


def test_loaders_are_drawn_by_the_runs_seeds_not_by_their_own():
    def drawn(seed):
        module = make({"a": DataLoader(Pictures(12), batch_size=3)})
        (turn,) = under(module, fedavg(seed=seed))
        return [greys(images) for images, _ in turn.batches(3)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


class Evens(torch.utils.data.Sampler):
    """A sampler of one's own that knows its items."""

    def __init__(self, repeats=1):
        self.indices, self.repeats = torch.arange(0, 12, 2), repeats

    def __len__(self):
        return 6 * self.repeats

    def __iter__(self):
        return iter(self.indices.tolist() * self.repeats)


@pytest.mark.parametrize("sampler", [SubsetRandomSampler([4, 0, 2, 8, 6, 10]), Evens()])
def test_a_sampler_that_chooses_items_leaves_the_others_out(sampler):
    class Chosen(Existing):
        def train_dataloader(self):
            return DataLoader(Pictures(12), batch_size=3, sampler=sampler)

    loader = DataLoader(Pictures(12), batch_size=3, sampler=sampler)
    by_batch = DataLoader(Pictures(12), batch_sampler=torch.utils.data.BatchSampler(sampler, 3, False))
    for data, partition in ((loader, IID(1)), (by_batch, IID(1)), ({"a": loader}, None), (Chosen(), IID(1))):
        module = make(data, partition)
        drawn = {grey for images, _ in batches(module, 4) for grey in greys(images)}
        assert drawn == {0, 2, 4, 6, 8, 10}
        assert sorted(module.examples.labels.tolist()) == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([1.0] * 12, 12),
        RandomSampler(range(12), replacement=True),
        RandomSampler(range(12), num_samples=6),
        RandomSampler(range(6), num_samples=12),
        SequentialSampler(range(6)),
        SubsetRandomSampler([1, 1, 2]),
        Evens(repeats=2),
    ],
)
def test_samplers_that_weigh_or_repeat_items_are_refused(sampler):
    loader = DataLoader(Pictures(12), batch_size=3, sampler=sampler)
    name = type(sampler).__name__
    with pytest.raises(ValueError, match=f"data is a DataLoader whose {name} decides .*: leave it out, or"):
        make(loader, IID(2))
    with pytest.raises(ValueError, match=f"the data of client 'a' is a DataLoader whose {name} decides"):
        make({"a": loader})


def test_batch_samplers_of_ones_own_are_refused_and_those_of_processes_are_not_needed():
    class Balanced(torch.utils.data.BatchSampler):
        pass

    own = Balanced(SequentialSampler(range(12)), 3, False)
    with pytest.raises(ValueError, match="DataLoader"):
        make(DataLoader(Pictures(12), batch_sampler=own), IID(2))
    shared = torch.utils.data.DistributedSampler(range(12), num_replicas=2, rank=0)
    assert len(make(DataLoader(Pictures(12), batch_size=3, sampler=shared), IID(2)).examples) == 12


# ------------------------------------------------------------------ Lightning data modules


class Existing(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare")

    def setup(self, stage):
        self.calls.append(stage)
        self.train, self.val = Pictures(20), Pictures(6)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=5, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=6, collate_fn=collate_items)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls.append("after transfer")
        return batch


class Regressor(lightning.LightningModule):
    own_turn_state = ("seen",)  # recorded for the test, over turns

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(36, 4)
        self.seen = []

    def training_step(self, batch, batch_idx):
        images, labels = batch
        self.seen.append(tuple(images.shape))
        return torch.nn.functional.cross_entropy(self.net(images.flatten(1)), labels)

    def validation_step(self, batch, batch_idx):
        self.log("val", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(rounds=1, **options):
    return quiet_trainer(rounds, strategy=FedAvgStrategy(2, seed=0), **options)


def test_a_lightning_data_module_is_dealt_by_the_partition_and_keeps_its_other_loaders():
    own = Existing()
    module = make(own, ByClass(), batch_size=2)
    assert own.calls == []  # loading may be long work, and waits for the first use
    model = Regressor()
    trainer(num_sanity_val_steps=0).fit(model, module)
    assert model.seen == [(5, 1, 6, 6)] * 8 + [(6, 1, 6, 6)]
    assert own.calls[:2] == ["prepare", "fit"]
    assert own.calls.count("fit") == 1
    assert "after transfer" in own.calls


def test_a_lightning_data_module_without_one_loader_is_refused():
    class Two(Existing):
        def train_dataloader(self):
            return [super().train_dataloader()] * 2

    with pytest.raises(TypeError, match="train_dataloader"):
        _ = make(Two(), IID(2)).examples


# ------------------------------------------------------------------ errors


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


def test_clients_of_their_own_data_with_too_few_items_are_left_out_by_the_partition_by_owner():
    data = make({"a": Pictures(4), "b": Pictures(1), "c": Pictures(3)}, Natural(min_examples=2))
    assert [client.name for client in data.clients] == ["a", "c"]


@pytest.mark.parametrize(
    ("data", "partition", "error", "words"),
    [
        (7, IID(2), TypeError, "data is a int; expected a fedgen data set, Examples, a torch Dataset"),
        (Endless(), IID(2), TypeError, "IterableDataset"),
        (Pictures, IID(2), TypeError, r"data is the class Pictures; give one of its objects"),
        (Pictures(0), IID(2), ValueError, "data has no items"),
        (Pictures(), None, ValueError, r"partition is missing: .* Pictures"),
        (Pictures(), IID, TypeError, r"partition is the class IID; give one of its objects, IID\(\.\.\.\)"),
        (Pictures(), "IID", TypeError, r"partition='IID' is a str; give an object"),
        ({}, None, ValueError, "data is an empty dict"),
        ({"a": Pictures()}, IID(2), ValueError, r"\(1 clients\)"),
        ({"a": Pictures(), "b": 3}, None, TypeError, "the data of client 'b' is a int"),
        ({"a": Pictures(), "b": Pictures(0)}, None, ValueError, "the data of client 'b' has no items"),
        ({"a": DataLoader(Endless())}, None, TypeError, "the data of client 'a' is a DataLoader of a Endless"),
        ({"a": DataLoader(Pictures(), batch_size=None)}, None, ValueError, "without a batch_size"),
        ({1: Pictures(), "1": Pictures()}, None, ValueError, "two clients have one name"),
        ({"train": Pictures(), "Test": Pictures()}, None, ValueError,
         r"data is a dict of the splits train, Test, which are not clients: give .*, as data\['train'\]"),
        ({"a": {"test": Pictures()}}, None, ValueError, r"the data of client 'a' is a dict of the splits test"),
        ({"train": Pictures()}, IID(2), ValueError, r"as data\['train'\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_is_told_when_the_module_is_made(data, partition, error, words):
    with pytest.raises(error, match=words):
        make(data, partition)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "kinds"}, "labels='kinds' is no attribute or column of a Pictures; it has targets"),
        ({"labels": [1, 2]}, "labels has 2 values for 20 items"),
        ({"owners": [1.5] * 20}, "all must be integers"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"collate_fn": "mine"}, "collate_fn must be a function, got str"),
        ({"value_range": (1, 0)}, r"value_range=\(1, 0\)"),
        ({"evaluation_data": Pictures(3)}, "has 3 items and data 20"),
    ],
)
def test_settings_that_do_not_fit_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        make(Pictures(), IID(2), **options)


def test_items_that_do_not_fit_together_ask_for_a_collate_fn():
    class Ragged(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, position):
            return torch.arange(position + 1)

    with pytest.raises(ValueError, match="collate_fn"):
        next(next(iter(under(make(Ragged(), IID(2)), fedavg()))).batches(1))


def test_a_tensor_dataset_is_cut_as_it_is():
    data = TensorDataset(torch.arange(8.0).view(8, 1), torch.arange(8) % 2)
    module = make(data, ByClass())
    assert isinstance(module.examples, LazyExamples)
    assert all((x[:, 0] % 2 == y).all() for x, y in batches(module))


def test_it_and_its_clients_print_in_one_line():
    module = make(Pictures(), IID(2), held_out=0.2)
    assert repr(module) == str(module) == "FederatedDataModule(Pictures, 2 clients, 20 examples, IID(num_clients=2))"
    assert repr(module.clients[0]) == "Client('client 0', 8 training and 2 held-out examples)"
    assert repr(make(Existing(), IID(2))) == "FederatedDataModule(Existing, not loaded yet, IID(num_clients=2))"


class Named(Pictures):
    """Pictures whose labels have names."""

    def __init__(self, *classes):
        super().__init__(8, len(classes))
        self.classes = list(classes)


def test_clients_whose_labels_mean_different_classes_are_refused():
    assert make({"a": Named("cat", "dog"), "b": Named("cat", "dog", "fox")}).examples.classes == ("cat", "dog", "fox")
    with pytest.raises(ValueError, match="label"):
        make({"a": Named("cat", "dog"), "b": Named("dog", "fox")})


def test_clients_of_the_kits_data_on_disk_are_renumbered_by_all_clients_classes(tmp_path):
    for client, classes in {"a": ("cat", "dog"), "b": ("bird", "dog"), "c": ("dog", "fox")}.items():
        for number in range(4):
            write_image(tmp_path / client / classes[number % 2] / f"{number}.png", 50 * number)
    data = {name: ImageFolder(tmp_path / name, channels=1, in_memory=name == "c") for name in "abc"}
    module = make(data, batch_size=4)
    assert module.examples.classes == ("bird", "cat", "dog", "fox")
    trained = [sorted(labels.tolist()) for _, labels in batches(module, iterations=1)]
    assert trained == [[1, 1, 2, 2], [0, 0, 2, 2], [2, 2, 3, 3]]
    assert trained == [sorted(module.examples.labels[client.train].tolist()) for client in module.clients]
