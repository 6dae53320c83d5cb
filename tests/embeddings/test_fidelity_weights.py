"""No file runs code, and every failure says what to put where."""

import hashlib
import os
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file

from fedgen.embeddings import load_embedding


class Attack:
    """Unpickling this makes a folder."""

    def __init__(self, folder) -> None:
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["inception-v3-compat", "vgg16", "dinov2-vit-s-14", "efficientnet-lite0"])
def test_a_weight_file_that_carries_code_is_refused_and_not_run(name, tmp_path):
    torch.save({"weights": Attack(tmp_path / "attacked")}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="plain"):
        load_embedding(name, weights=tmp_path / "evil.pth")
    assert not (tmp_path / "attacked").exists()


def test_clip_refuses_a_pickle_without_running_it(tmp_path):
    torch.save({"weights": Attack(tmp_path / "attacked")}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="weights"):
        load_embedding("clip-vit-b-32", weights=tmp_path / "evil.pt")
    assert not (tmp_path / "attacked").exists()


class Writer(torch.nn.Module):
    """Its TorchScript writes a file while it is read."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self):
        return self.path

    @torch.jit.export
    def __setstate__(self, path: str) -> None:
        self.path = path
        torch.save([torch.zeros(1)], path)

    def forward(self, images):
        return images


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_torchscript_is_read_by_its_published_hash_alone(tmp_path, monkeypatch, clip_weights):
    """torch.jit runs `__setstate__` of a file before anything can look at what was read."""
    archive = tmp_path / "evil.pt"
    written = tmp_path / "written"
    torch.jit.save(torch.jit.script(Writer(str(written))), archive)
    written.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="OpenAI"):
        load_embedding("clip-vit-b-32", weights=archive)
    assert not written.exists()

    published = clip_weights.with_suffix(".pt")
    hashes = {"clip-vit-b-32": {"hash": hashlib.sha256(published.read_bytes()).hexdigest()}}
    monkeypatch.setattr("torch_fidelity.feature_extractor_clip.MODEL_METADATA", hashes)
    found, same = (load_embedding("clip-vit-b-32", weights=path) for path in (published, clip_weights))
    assert found.fingerprint() == same.fingerprint()


def test_clip_of_a_larger_network_than_its_weights_is_refused_before_memory_is_taken(tmp_path):
    """Widths are read off one tensor: 100,000 of them would ask for 480 GB."""
    names = (
        "visual.proj",
        "text_projection",
        "visual.positional_embedding",
        "visual.transformer.0.attn.in_proj_weight",
    )
    state = {name: torch.zeros(2, 2) for name in names} | {"visual.conv1.weight": torch.zeros(100_000, 1, 1, 1)}
    save_file(state, tmp_path / "wide.safetensors")
    with pytest.raises(ValueError, match="safetensors"):
        load_embedding("clip-vit-b-32", weights=tmp_path / "wide.safetensors")


@pytest.mark.parametrize("name", ["inception-v3-compat", "clip-vit-b-32", "dinov2-vit-s-14", "efficientnet-lite0"])
def test_a_missing_file_is_named(name, tmp_path):
    with pytest.raises(FileNotFoundError, match="weights"):
        load_embedding(name, weights=tmp_path / "missing.pth")


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"scale": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="inception"):
        load_embedding("inception-v3-compat", weights=tmp_path / "other.pth")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("inception-v3-compat", "weights-inception-2015-12-05-6726825d.pth"),
        ("vgg16", "vgg16-397923af.pth"),
        ("clip-vit-b-32", "clip-vit-b-32-40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af.pt"),
    ],
)
def test_a_failed_download_says_which_file_to_put_where(name, file, monkeypatch, tmp_path):
    def offline(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    with pytest.raises(ConnectionError, match="download") as raised:
        load_embedding(name)
    assert str(tmp_path / "hub" / "checkpoints" / file) in str(raised.value)
    assert "give its path as weights (in a command: --weights)" in str(raised.value)


@pytest.mark.slow
def test_a_downloaded_inception_is_found_in_the_cache(inception_weights, monkeypatch, tmp_path, images, inception):
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "weights-inception-2015-12-05-6726825d.pth").symlink_to(inception_weights)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert load_embedding("inception-v3-compat").fingerprint() == inception.fingerprint()


def test_a_failed_download_of_dinov2_says_what_to_fetch(monkeypatch, tmp_path):
    def offline(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.load", offline)
    with pytest.raises(ConnectionError, match="FOLDER"):
        load_embedding("dinov2-vit-s-14")


def test_dinov2_says_where_its_code_must_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.save({}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="dinov2"):
        load_embedding("dinov2-vit-s-14", weights=tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="weights"):
        load_embedding("dinov2-vit-s-14", repo=tmp_path)
