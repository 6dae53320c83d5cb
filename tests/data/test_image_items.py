"""The kit's data sets read from disk when they are needed: the images, labels and owners of memory."""

import datasets
import pytest
import torch
from PIL import Image

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.data import CelebA, HuggingFace, ImageFolder, ImageManifest
from fedgen.data.examples import to_batch
from fedgen.data.lazy_examples import LazyExamples
from fedgen.embeddings import FeatureCache, Pixels, embed
from tests.clients.test_data_module import fedavg, under
from tests.data.tables import save, table
from tests.data.test_celeba import write_celeba


def write_hospitals(root):
    for place, (hospital, kind) in enumerate((h, k) for h in ("north", "south") for k in ("ill", "well")):
        for number in range(3):
            path = root / hospital / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7), (10 * place + number, 100, 200)).save(path)
    return root


def folder(root, in_memory):
    return ImageFolder(write_hospitals(root), size=6, owner_folders=True, in_memory=in_memory)


def manifest(root, in_memory):
    write_hospitals(root)
    rows = [f"{path.relative_to(root)},{path.parts[-3]},{path.parts[-2]}" for path in sorted(root.rglob("*.png"))]
    (root / "list.csv").write_text("\n".join(["path,client,label", *rows]))
    return ImageManifest(root / "list.csv", size=6, in_memory=in_memory)


def faces(root, in_memory):
    return CelebA(write_celeba(root), size=16, attribute="Smiling", in_memory=in_memory)


def saved(root, in_memory):
    if not (root / "pets").exists():
        save(table(writer=(datasets.Value("string"), list("aab"))), root / "pets")
    return HuggingFace(root / "pets", size=4, owner_column="writer", in_memory=in_memory)


def parquet(root, in_memory):
    table().to_parquet(root / "train.parquet")
    return HuggingFace(root, channels=1, in_memory=in_memory)


MAKERS = [folder, manifest, faces, saved, parquet]


@pytest.mark.parametrize("make", MAKERS)
def test_they_hold_what_memory_would(make, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    kept, lazy = make(tmp_path, True).load(), make(tmp_path, False).load()
    assert isinstance(lazy, LazyExamples)
    assert (len(lazy), lazy.name, lazy.classes, lazy.owner_names) == (
        len(kept), kept.name, kept.classes, kept.owner_names,
    )  # fmt: skip
    assert torch.equal(lazy.labels, kept.labels)
    assert torch.equal(lazy.inputs[:], kept.inputs)
    positions = torch.tensor([1, 0])
    for ours, theirs in zip(lazy.items.read(lazy.tasks(positions, 0)), to_batch(kept, positions), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_owners_folders_train_read_by_workers(tmp_path):
    module = FederatedDataModule(folder(tmp_path, False), Natural(), batch_size=2, num_workers=1, held_out=0.0)
    assert [client.name for client in module.clients] == ["north", "south"]
    first, second = under(module, fedavg())
    assert {int(((x + 1) * 127.5).round()[0, 0, 0, 0]) // 20 for x, _ in first.batches(2)} == {0}
    assert {int(((x + 1) * 127.5).round()[0, 0, 0, 0]) // 20 for x, _ in second.batches(2)} == {1}
    module.teardown("fit")


def test_features_are_kept_until_a_file_changes(tmp_path):
    inputs = folder(tmp_path / "data", False).load().inputs
    cache, pixels = FeatureCache(tmp_path / "cache"), Pixels()
    embed(pixels, inputs, cache=cache)
    again = ImageFolder(tmp_path / "data", size=6, owner_folders=True, in_memory=False).load().inputs
    assert cache.key(again, pixels) == cache.key(inputs, pixels)
    half = inputs.view(slice(0, 6))
    assert cache.key(half, pixels) != cache.key(inputs, pixels)
    before = cache.key(half, pixels)
    Image.new("RGB", (9, 8)).save(tmp_path / "data" / "north" / "ill" / "0.png")
    assert cache.key(half, pixels) != before


def test_images_of_several_sizes_ask_for_a_size_when_they_are_read(tmp_path):
    for name, side in (("a", 4), ("b", 5)):
        Image.new("L", (side, side)).save(tmp_path / f"{name}.png")
    lazy = ImageFolder(tmp_path, in_memory=False).load()
    with pytest.raises(ValueError, match="ImageFiles"):
        lazy.inputs[:]


def test_a_damaged_image_is_named_when_it_is_read(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    lazy = ImageFolder(tmp_path, in_memory=False).load()
    with pytest.raises(ValueError, match=r"b\.png"):
        lazy.inputs[1]
