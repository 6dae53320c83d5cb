"""Damaged files of weights and features: torch's, safetensors, TorchScript, NVIDIA's pickles, folders of adapters.

What has no checksum (old files of torch, safetensors that others wrote, NVIDIA's pickles) cannot tell a flipped bit of
a number from another number. Of those it is asked that what is read has its form; of all others, that it is the same.
"""

import json
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedgen.embeddings import FeatureCache
from fedgen.embeddings.base import load_into, read_state
from fedgen.io.tensor_files import HASH, read_safetensors, read_torch, write_safetensors
from fedgen.models.diffusion.lora import WEIGHTS, LoRA, add_adapters, read_adapters, write_adapters
from fedgen.models.stylegan2 import StyleGAN2Discriminator, StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile
from fedgen.models.stylegan2.official_pickle import OfficialPickle, read_official_pickle
from tests.fuzz.damage import equal, fuzz, overwrite, refuses
from tests.models.stylegan2.pickle_builder import make_networks, write_official
from tests.quick import first_and_others

KEY, ADAPTERS = "0" * 32, LoRA(rank=2, targets=("0",))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))


def read_ours(path):
    """Tensors, and the remark that was written with them."""
    tensors, metadata = read_safetensors(path)
    return tensors, metadata.get("about")


def read_features(path):
    """A damaged entry of the cache is no error: it is warned of, and computed again."""
    return FeatureCache(path.parent).load(KEY)


def load_adapters(path):
    module = network()
    add_adapters(module, ADAPTERS)
    read_adapters(module, ADAPTERS, path.parent)
    return module


def load_network(path):
    module = network()
    load_into(module, read_state(path), str(path))
    return module


def write_torch(path, **options):
    torch.save({"state_dict": network().state_dict(), "epoch": 3}, path, **options)


def write_networks(path):
    shared = {"image_size": 8, "channels": 1, "channel_base": 32}
    torch.manual_seed(0)
    generator = StyleGAN2Generator(latent_dim=4, style_dim=4, mapping_layers=2, **shared)
    NetworkFile(generator, critic=StyleGAN2Discriminator(**shared), training={"lr": 0.002}).write(path)


def write_adapter_folder(path):
    module = network()
    add_adapters(module, ADAPTERS)
    write_adapters(module, ADAPTERS, path.parent)


def without_hash(write):
    """What somebody else's program would have written."""

    def write_plain(path):
        write(path)
        tensors, metadata = read_safetensors(path)
        save_file(tensors, path, {key: value for key, value in metadata.items() if key != HASH})

    return write_plain


def is_state(found, _):
    return isinstance(found, dict) and all(isinstance(value, Tensor) for value in found.values())


def is_network(found, expected):
    return {name: value.shape for name, value in found.state_dict().items()} == {
        name: value.shape for name, value in expected.state_dict().items()
    } and all(value.isfinite().all() for value in found.state_dict().values())


def is_network_file(found, expected):
    return found.networks.keys() == expected.networks.keys() and all(
        is_network(one, expected.networks[name]) for name, one in found.networks.items()
    )


def write_classifier(path):
    write_safetensors(path, network().state_dict(), {"about": '{"accuracy": 0.98}'})


TENSORS = ("torch", "old torch", "safetensors")
READERS = {
    # name: file, writer, reader, whether what is read has its form (None: it must be the same), strangers that are none
    "torch": ("a.pth", write_torch, read_state, None, TENSORS),
    "torch into a network": ("a.pth", write_torch, load_network, None, ()),
    "old torch": (
        "a.pth",
        lambda path: write_torch(path, _use_new_zipfile_serialization=False),
        read_state,
        is_state,
        TENSORS,
    ),
    "safetensors": ("a.safetensors", write_classifier, read_ours, None, TENSORS),
    "safetensors of others": ("a.safetensors", without_hash(write_classifier), load_network, is_network, ()),
    "features": (
        f"{KEY}.safetensors",
        lambda path: FeatureCache(path.parent).store(KEY, torch.randn(20, 5)),
        read_features,
        None,
        (),
    ),
    "stylegan2": ("a.safetensors", write_networks, NetworkFile.read, None, ()),
    "stylegan2 of others": ("a.safetensors", without_hash(write_networks), NetworkFile.read, is_network_file, ()),
    "adapters": (WEIGHTS, write_adapter_folder, load_adapters, None, ()),
    "adapters of others": (WEIGHTS, without_hash(write_adapter_folder), load_adapters, is_network, ()),
    "nvidia": (
        "a.pkl",
        lambda path: path.write_bytes(write_official(make_networks(), 4)),
        read_official_pickle,
        lambda found, _: isinstance(found, OfficialPickle),
        (),
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_are_refused_or_harmless(kind, tmp_path, copies):
    name, write, read, form, valid = READERS[kind]
    write(tmp_path / name)
    least = 300 if form else 400
    fuzz(read, tmp_path / name, form, (ValueError, OSError, UserWarning), valid, copies=copies, least=least)


@pytest.mark.slow
def test_no_flipped_bit_of_a_torch_file_is_taken(tmp_path):
    """Every second one of the last parts, of the others some bytes: torch pads each part to 64 bytes."""
    path = tmp_path / "a.pth"
    torch.save({"w": torch.arange(3.0)}, path)
    content, expected, refused = path.read_bytes(), read_torch(path), 0
    directory = content.index(b"PK\1\2")
    places = [*range(0, directory, 7), *range(directory, len(content))]
    for place in places:
        for bit in range(place % 2, 8, 2):
            copy = bytearray(content)
            copy[place] ^= 1 << bit
            overwrite(path, bytes(copy))
            try:
                assert equal(read_torch(path), expected), f"bit {bit} of byte {place}"
            except ValueError:
                refused += 1
    assert refused > 3 * len(places) / 2


NAN = float("nan")
STATE = {
    "0.weight": (torch.full((6, 4), NAN), torch.full((6, 4), float("-inf")), torch.zeros(4, 6), torch.zeros(6)),
    "0.bias": (
        torch.zeros(6).long(),
        torch.zeros(6) + 0j,
        torch.zeros(6) > 1,
        torch.zeros(1),
        torch.zeros(1).expand(6),
    ),
    "1.running_mean": (torch.full((6,), NAN), torch.zeros(1), None),
    "1.num_batches_tracked": (torch.zeros(()), torch.zeros(2).long()),
    "2.weight": (torch.zeros(6),),
}
CHANGES = [(name, value) for name, values in STATE.items() for value in values]


@pytest.mark.parametrize(("suffix", "changes"), first_and_others({".pth": CHANGES, ".safetensors": CHANGES}))
def test_weights_that_no_network_has_are_refused(tmp_path, suffix, changes):
    path = tmp_path / f"a{suffix}"
    for name, value in changes:
        state = {key: tensor for key, tensor in (network().state_dict() | {name: value}).items() if tensor is not None}
        expanded = value is not None and value.stride() == (0,)
        if suffix == ".safetensors":
            save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
        else:
            torch.save(state, path)
        if expanded:  # a view of one number is a tensor as any other
            assert load_network(path)[0].bias.tolist() == [0.0] * 6
        else:
            refuses(load_network, path, what=(name, value))


@pytest.mark.parametrize("promised", [6, 1000, 2**31 - 1])
def test_a_tensor_that_promises_more_than_its_part_of_the_file_holds_is_refused(tmp_path, promised):
    """By its description alone, every checksum being right."""
    torch.save({"w": torch.arange(5.0)}, tmp_path / "honest.pth")
    number = b"J" + promised.to_bytes(4, "little")
    with zipfile.ZipFile(tmp_path / "honest.pth") as honest, zipfile.ZipFile(tmp_path / "a.pth", "w") as lying:
        for name in honest.namelist():
            content = honest.read(name)
            lying.writestr(name, content.replace(b"K\x05", number) if name.endswith("data.pkl") else content)
    refuses(read_torch, tmp_path / "a.pth")


HEADERS = [
    {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    for dtype, shape, offsets in [
        *[(dtype, [3], [0, 12]) for dtype in ("F64", "F99", "O", 3, None, "C64")],
        *[("F32", shape, [0, 12]) for shape in ([4], [-3], [3.0], [2**62, 2**62], [2**40], "3", [], None)],
        *[("F32", [3], offsets) for offsets in ([0, 8], [4, 12], [0, 2**60], [12, 0], [-12, 0], [0], None)],
    ]
]


@pytest.mark.parametrize(("kind", "headers"), first_and_others({"header": HEADERS}))
def test_safetensors_whose_header_lies_are_refused(tmp_path, kind, headers):
    for header in headers:
        text = json.dumps(header).encode()
        (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
        refuses(read_safetensors, tmp_path / "a.safetensors", what=header)


SETTINGS = {
    **{f"mapping_layers {value}": {"mapping_layers": value} for value in (10**9, -1, "2", None, 2.5, [])},
    **{f"style_dim {value}": {"style_dim": value} for value in (2**40, 10**30, 0, -4, "4", None)},
    **{f"image_size {value}": {"image_size": value, "channel_base": 2**30} for value in (2**20, 2**29, 7, -8, "8")},
    **{f"num_classes {value}": {"num_classes": value} for value in (10**12, 1, -1, "2")},
    **{f"taps {str(value)[:20]}": {"taps": value} for value in ("wide", 3, [NAN], [0] * 10**5, [[1]])},
}


@pytest.mark.parametrize(("kind", "whats"), first_and_others({"settings": SETTINGS}))
def test_networks_of_other_settings_than_their_weights_are_refused_before_memory_is_taken(tmp_path, kind, whats):
    path = tmp_path / "a.safetensors"
    write_networks(path)
    tensors, metadata = read_safetensors(path)
    for what in whats:
        settings = json.loads(metadata["settings"])
        settings["generator"] |= SETTINGS[what]
        write_safetensors(path, tensors, {**metadata, "settings": json.dumps(settings)})
        refuses(NetworkFile.read, path, what=what)


TEXTS = (None, "", "9", "null", "[]", "[" * 10**5, '{"os": {}}', "1" * 10**4)
METADATA = dict.fromkeys(("format", "version", "settings", "training", "record"), TEXTS)


@pytest.mark.parametrize(("key", "texts"), first_and_others(METADATA))
def test_networks_with_other_metadata_are_refused(tmp_path, key, texts):
    path = tmp_path / "a.safetensors"
    write_networks(path)
    tensors, metadata = read_safetensors(path)
    for text in texts:
        kept = {name: value for name, value in (metadata | {key: text}).items() if value is not None and name != HASH}
        write_safetensors(path, tensors, kept)
        if text == '{"os": {}}' and key in ("training", "record"):  # remarks, and arguments that StyleGAN2 refuses
            assert getattr(NetworkFile.read(path), key) == {"os": {}}
        else:
            refuses(NetworkFile.read, path, what=text)


def test_features_without_their_checksum_are_computed_again(tmp_path):
    for tensors, metadata in [
        ({"features": torch.zeros(3, 2)}, {}),
        ({"features": torch.zeros(3, 2)}, {"key": KEY}),
        ({"features": torch.zeros(3, 2)}, {"key": KEY, "checksum": KEY}),
        ({"other": torch.zeros(3, 2)}, {"key": KEY}),
        ({}, {"key": KEY}),
    ]:
        save_file(tensors, tmp_path / f"{KEY}.safetensors", metadata)
        refuses(read_features, tmp_path / f"{KEY}.safetensors", UserWarning, (tensors, metadata))


CONFIGS = ["", "{", "[]", "3", "null", "{}", '{"r": 2}', '{"r": 0, "lora_alpha": 2}', '{"r": "2", "lora_alpha": 2}']
CONFIGS += [
    '{"r": 2, "lora_alpha": null}',
    '{"r": 2, "lora_alpha": NaN}',
    '{"r": -2, "lora_alpha": 2, "use_rslora": true}',
]
CONFIGS += ['{"r": 2, "lora_alpha": 4}', "[" * 10**5, '{"r": 2, "lora_alpha": Infinity}', '{"r": {}, "lora_alpha": []}']


def test_adapters_of_another_scale_or_none_are_refused(tmp_path):
    write_adapter_folder(tmp_path / WEIGHTS)
    config = tmp_path / "adapter_config.json"
    for text in CONFIGS:
        config.write_text(text)
        refuses(load_adapters, config, what=text)


def test_adapters_that_no_network_has_are_refused(tmp_path):
    write_adapter_folder(tmp_path / WEIGHTS)
    tensors, metadata = read_safetensors(tmp_path / WEIGHTS)
    name = next(name for name in tensors if "lora_A" in name)
    for value in (torch.full((2, 4), NAN), torch.zeros(2, 4).long(), torch.zeros(4, 2), None):
        kept = {key: tensor for key, tensor in (tensors | {name: value}).items() if tensor is not None}
        write_safetensors(tmp_path / WEIGHTS, kept, metadata)
        refuses(load_adapters, tmp_path / WEIGHTS, what=value)
