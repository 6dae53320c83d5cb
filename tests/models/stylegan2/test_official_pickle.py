import pickle
import re
import struct
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedgen.models.stylegan2.official_pickle import read_official_pickle
from tests.models.stylegan2.hostile_pickles import HOSTILE
from tests.models.stylegan2.pickle_builder import (
    GENERATOR_SETTINGS,
    PERSISTENT,
    TRAINING_SET,
    call,
    make_networks,
    mapping,
    name,
    text,
    with_attribute,
    with_tensor,
    write_official,
)
from tests.quick import first_and_others

# What the interpreter reports when anything is run, imported, compiled or asked of the system.
RUNS = ("exec", "compile", "import", "os.", "subprocess.", "pickle.", "marshal.", "code.", "function.", "socket.")
RUNS += ("ctypes.", "shutil.", "tempfile.", "object.", "sys.set", "urllib.", "webbrowser.")


class Watch:
    """Collects what runs while it is on; the interpreter offers no way to take such a hook back."""

    def __init__(self):
        self.seen, self.on = [], False
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if self.on and event.startswith(RUNS):
            self.seen.append((event, arguments))
        if self.on and event == "open" and not isinstance(arguments[0], int):
            self.seen.append((event, str(arguments[0])))


@pytest.fixture(scope="module")
def hook():
    return Watch()


@pytest.fixture
def read(tmp_path, monkeypatch, hook):
    """Reads a file of some bytes, and fails if that ran anything or opened another file."""
    path = tmp_path / "network.pkl"
    path.write_bytes(with_tensor())
    read_official_pickle(path)  # what torch imports at its first use has been imported now,
    "".encode("cp437")  # and what zipfile does
    monkeypatch.chdir(tmp_path)

    def read(content):
        path.write_bytes(content)
        hook.seen.clear()
        hook.on = True
        try:
            return read_official_pickle(path)
        finally:
            hook.on = False
            assert hook.seen == [("open", str(path))]  # a descriptor of a file that was opened is no other file
            assert [entry.name for entry in tmp_path.iterdir()] == [path.name]

    return read


def bits(value):
    return value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes()


# What such files hold


@pytest.mark.parametrize("by_hand", [False, True], ids=["storages of this torch", "storages of torch 1.7"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_networks_come_back_bit_by_bit_under_the_keys_of_their_state_dict(read, protocol, by_hand):
    networks = make_networks()
    expected = {name: networks[name].state_dict() for name in ("G", "D", "G_ema")}
    found = read(write_official(networks, protocol, by_hand=by_hand))
    for own, theirs in [(found.generator, "G"), (found.discriminator, "D"), (found.generator_ema, "G_ema")]:
        assert list(own.state) == list(expected[theirs])
        assert {k: bits(v) for k, v in own.state.items()} == {k: bits(v) for k, v in expected[theirs].items()}
        assert all(v.is_contiguous() and not v.requires_grad and type(v) is torch.Tensor for v in own.state.values())
    assert not torch.equal(found.generator.state["mapping.weight"], found.generator_ema.state["mapping.weight"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_settings_come_back_as_plain_types(read, protocol):
    found = read(write_official(make_networks(), protocol))
    assert found.generator.class_name == found.generator_ema.class_name == "Generator"
    assert found.discriminator.class_name == "Discriminator"
    assert found.generator.settings == GENERATOR_SETTINGS
    nested = found.generator.settings["synthesis_kwargs"]
    assert (type(nested), type(nested["gain"]), type(found.generator.settings["shape"])) == (dict, float, tuple)
    assert found.discriminator.settings == {"block_kwargs": {"freeze_layers": 0}}
    assert (found.augment_p, found.training_set) == (0.375, TRAINING_SET)


def test_files_converted_from_tensorflow_have_no_augmentation_and_no_training_set(read):
    networks = make_networks() | {"training_set_kwargs": None, "augment_pipe": None, "D": None}
    found = read(write_official(networks, 3))
    assert (found.discriminator, found.augment_p, found.training_set) == (None, None, None)
    assert found.generator_ema.state["w_avg"].tolist() == [0, 1, 2]


def test_numbers_of_an_older_numpy_come_back(read):
    content = write_official(make_networks(), 3)
    content = content.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
    assert b"numpy.core.multiarray\n" in content
    assert read(content).generator.settings == GENERATOR_SETTINGS


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_source_code_in_the_file_is_not_run(read, protocol):
    source = "open('marker', 'w').close()\n" * 3
    content = write_official(make_networks(), protocol, source)
    assert content.count(source.encode()) == 1  # one text, which every module of the file refers to
    assert read(content).generator.class_name == "Generator"


def test_the_watch_sees_what_runs(hook, tmp_path):
    """Python's own unpickler, given one of the hostile files below."""
    content = with_attribute(call(("builtins", "exec"), text(f"open({str(tmp_path / 'marker')!r}, 'w').close()")))
    content = content.replace(name(*PERSISTENT), name("builtins", "dict"))
    hook.seen.clear()
    hook.on = True
    pickle.loads(content)
    hook.on = False
    assert (tmp_path / "marker").exists()
    assert {"pickle.find_class", "compile", "exec", "open"} <= {event for event, _ in hook.seen}


# What is refused


def test_the_honest_files_that_the_hostile_ones_are_made_of_are_read(read):
    assert read(with_tensor()).generator.state["weight"].tolist() == [0, 1, 2, 3]
    assert read(with_tensor(1, (3,), (0,))).generator.state["weight"].tolist() == [1, 1, 1]
    assert read(with_tensor(0, (2, 0), (1, 1))).generator.state["weight"].shape == (2, 0)
    assert read(with_attribute(b"N")).generator.state == {}


@pytest.mark.parametrize(("kind", "cases"), first_and_others({"hostile": HOSTILE}))
def test_a_hostile_file_is_refused_for_what_it_does_and_runs_nothing(read, kind, cases):
    for case in cases:
        content, reason = HOSTILE[case]
        refusal = (
            rf"network\.pkl is no network pickle of StyleGAN2-ADA, or damaged \(.*({reason}).*\); nothing in it was run"
        )
        try:
            read(content)
        except ValueError as error:
            said = str(error)
        else:
            pytest.fail(f"{case} is accepted")
        assert re.search(refusal, said), case
        assert len(said) < 500
        assert said.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_cut_short_is_refused(read, protocol):
    content = write_official(make_networks(), protocol)
    for length in [1, 2, 3, 10, 100, *range(200, len(content), len(content) // 25), len(content) - 1]:
        with pytest.raises(ValueError, match=r"no network pickle|no pickle of protocol"):
            read(content[:length])


def test_random_damage_gives_networks_or_a_clear_error(read):
    content, random, refused = with_tensor(), np.random.default_rng(0), 0
    for _ in range(200):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] = random.integers(256)
        try:
            read(bytes(damaged))
        except ValueError as error:
            assert "network.pkl is no" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 60


# Other files that people have


def test_a_pickle_of_the_tensorflow_era_names_what_converts_it(read):
    kind = name("dnnlib.tflib.network", "Network")
    with pytest.raises(ValueError, match="TensorFlow"):
        read(b"\x80\3" + (kind + b")\x81" + mapping(version=b"K\4") + b"b") * 3 + b"\x87.")


def save(path, kind):
    state = {"weight": torch.zeros(2)}
    if kind == "torch.save":
        torch.save({"state_dict": state}, path)
    elif kind == "old torch.save":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif kind == "safetensors":
        save_file(state, path)
    else:
        members = {"TorchScript": ["data.pkl", "constants.pkl", "code/__torch__.py"], "zip": ["network.pkl"]}[kind]
        with zipfile.ZipFile(path, "w") as archive:
            for member in members:
                archive.writestr(f"archive/{member}", "x")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("torch.save", "a checkpoint that torch.save or Lightning wrote.*give a network pickle"),
        ("old torch.save", "a checkpoint that torch.save wrote.*give a network pickle"),
        ("safetensors", "a safetensors file, of weights without their settings; give a network pickle"),
        ("TorchScript", "a TorchScript archive, which holds programs; give a network pickle"),
        ("zip", "a zip archive; unpack it"),
    ],
)
def test_another_format_is_named_with_what_to_do(read, tmp_path, kind, words):
    save(tmp_path / "network.pkl", kind)
    with pytest.raises(ValueError, match=rf"network\.pkl is {words}"):
        read((tmp_path / "network.pkl").read_bytes())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty; get it again"),
        (b"PK\3\4 and no directory", "a zip archive; unpack it"),
        (b"\x1f\x8b\x08", "compressed by gzip; decompress it"),
        (b"\n<!DOCTYPE html>", "a web page, not the file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\x89HDF\r\n", "no pickle of protocol 2 to 5"),
        (b"(dp0\n.", "no pickle of protocol 2 to 5"),
        (b"\x80\1}.", "no pickle of protocol 2 to 5"),
        (b"\x80\6}.", "no pickle of protocol 2 to 5"),
        (b"\x80", "no pickle of protocol 2 to 5"),
    ],
)
def test_what_is_no_pickle_is_named_with_what_to_do(read, content, words):
    with pytest.raises(ValueError, match=rf"network\.pkl is {words}"):
        read(content)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="network"):
        read_official_pickle(tmp_path / "none.pkl")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="network"):
        read_official_pickle(tmp_path)


def test_a_file_larger_than_asked_for_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "network.pkl"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no room
    with pytest.raises(ValueError, match="max_bytes"):
        read_official_pickle(path)
    path.write_bytes(with_tensor())
    assert read_official_pickle(str(path), max_bytes=len(with_tensor())).generator is not None
    with pytest.raises(ValueError, match="max_bytes"):
        read_official_pickle(path, max_bytes=len(with_tensor()) - 1)


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OverflowError, KeyError("x"), struct.error("x")])
def test_every_exception_while_reading_is_a_refusal(tmp_path, monkeypatch, error):
    def fail(*arguments, **settings):
        raise error

    (tmp_path / "network.pkl").write_bytes(with_tensor())
    monkeypatch.setattr("fedgen.models.stylegan2.official_pickle.unpickle", fail)
    with pytest.raises(ValueError, match="StyleGAN2"):
        read_official_pickle(tmp_path / "network.pkl")
