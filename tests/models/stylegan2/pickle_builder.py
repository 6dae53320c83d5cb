"""Network pickles of the official shape, and pieces to spoil them with.

Two ways of writing: `write_official` lets Python's pickler and torch write small networks whose classes pickle
themselves as the official ones do; the functions from `text` on write single opcodes, for what no pickler would write.
"""

import pickle
import pickletools
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from torch import nn

PERSISTENT = ("torch_utils.persistence", "_reconstruct_persistent_obj")
REBUILD = ("torch._utils", "_rebuild_tensor_v2")
LOAD = ("torch.storage", "_load_from_bytes")


class EasyDict(dict):
    """Named like the official dictionary of attributes, and pickled like it."""

    __module__ = "dnnlib.util"


def _reconstruct_persistent_obj(meta):
    raise AssertionError("the reader calls nothing that the file names")


_reconstruct_persistent_obj.__module__ = PERSISTENT[0]


@contextmanager
def official_modules() -> Iterator[None]:
    """The modules that the pickler wants to see before it writes their names; gone when files are read."""
    modules = {name: types.ModuleType(name) for name in ("dnnlib", "dnnlib.util", "torch_utils", PERSISTENT[0])}
    assert not modules.keys() & sys.modules.keys()
    modules["dnnlib.util"].EasyDict = EasyDict
    modules[PERSISTENT[0]]._reconstruct_persistent_obj = _reconstruct_persistent_obj
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Persistent(nn.Module):
    """A module that pickles itself as a call with its class's name, its source code and its attributes."""

    source = "raise SystemExit"

    def __init__(self, *args, **kwargs):
        super().__init__()
        self._init_args, self._init_kwargs = args, EasyDict(kwargs)

    def __reduce__(self):
        meta = {
            "type": "class",
            "version": 6,
            "module_src": Persistent.source,
            "class_name": type(self).__name__,
            "state": dict(self.__dict__),
        }
        return _reconstruct_persistent_obj, (meta,)


class Layer(Persistent):
    pass


class Generator(Persistent):
    pass


class Discriminator(Persistent):
    pass


class AugmentPipe(Persistent):
    pass


def make_layer(seed):
    """Every kind of tensor and attribute that official layers have, and some that torch allows."""
    random = torch.Generator().manual_seed(seed)
    layer = Layer(4, 8, activation="lrelu")
    layer.weight = nn.Parameter(torch.randn(4, 3, 2, 2, generator=random).to(memory_format=torch.channels_last))
    layer.bias = nn.Parameter(torch.randn(5, generator=random).half())
    layer.noise_strength = nn.Parameter(torch.randn([], generator=random))
    layer.register_parameter("missing", None)
    layer.register_buffer("transposed", torch.randn(3, 4, generator=random).t())
    layer.register_buffer("part", torch.randn(6, 6, generator=random)[2:4, 1::2])
    layer.register_buffer("count", torch.tensor([2**40, -1, seed]))
    layer.register_buffer("exact", torch.randn(2, dtype=torch.float64, generator=random))
    layer.register_buffer("odd", torch.tensor([float("nan"), float("-inf"), -0.0]))
    layer.register_buffer("scratch", torch.zeros(2), persistent=False)
    layer.weight_gain, layer.act_gain = np.float64(0.125), np.sqrt(2)
    layer.names, layer.use_noise = {"a", "b"}, np.bool_(True)
    return layer.requires_grad_(False).eval()


GENERATOR_SETTINGS = {
    "z_dim": 512,
    "mapping_kwargs": EasyDict(num_layers=8),
    "synthesis_kwargs": EasyDict(conv_clamp=None, resample_filter=[1, 3, 3, 1], gain=np.float64(0.5)),
    "shape": (1, 2.5, True),
}
TRAINING_SET = {"class_name": "training.dataset.ImageFolderDataset", "path": "images.zip", "resolution": 32}


def make_networks():
    """The dictionary that the official training saves, of networks of a few layers."""
    networks = {"training_set_kwargs": dict(TRAINING_SET)}
    for seed, (name, kind) in enumerate([("G", Generator), ("D", Discriminator), ("G_ema", Generator)]):
        settings = GENERATOR_SETTINGS if kind is Generator else {"block_kwargs": EasyDict(freeze_layers=0)}
        network = kind(**settings)
        network.synthesis = Layer()
        network.synthesis.b4 = make_layer(seed)
        network.synthesis.nothing = None
        network.mapping = make_layer(seed + 10)
        network.register_buffer("w_avg", torch.arange(3.0))
        networks[name] = network.requires_grad_(False).eval()
    networks["augment_pipe"] = AugmentPipe(xflip=1)
    networks["augment_pipe"].register_buffer("p", torch.tensor(0.375))
    return networks


def write_official(networks, protocol, source="raise SystemExit", by_hand=False):
    """The bytes of a file; `by_hand` writes the tensors as torch 1.7 does instead of letting this torch write them."""
    with official_modules(), mock.patch.object(Persistent, "source", source):
        if by_hand:
            networks = {name: _with_tensors_by_hand(value) for name, value in networks.items()}
        return pickle.dumps(networks, protocol)


def _with_tensors_by_hand(network):
    for module in network.modules() if isinstance(network, nn.Module) else ():
        written = {name: p if p is None else _write_parameter(p) for name, p in module._parameters.items()}
        module.__dict__["_parameters"] = OrderedDict(written)
        module.__dict__["_buffers"] = OrderedDict((name, _write_tensor(b)) for name, b in module._buffers.items())
    return network


def _write_parameter(parameter):
    return Call(torch._utils._rebuild_parameter, _write_tensor(parameter), False, OrderedDict())


def _write_tensor(tensor):
    tensor = tensor.detach()
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    everything = torch.as_strided(tensor, (numel,), (1,), 0)
    payload = write_storage(everything.numpy().tobytes(), numel, STORAGES[tensor.dtype])
    geometry = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    storage = Call(torch.storage._load_from_bytes, payload)
    return Call(torch._utils._rebuild_tensor_v2, storage, *geometry, False, OrderedDict())


STORAGES = {
    torch.float32: "FloatStorage",
    torch.float16: "HalfStorage",
    torch.float64: "DoubleStorage",
    torch.int64: "LongStorage",
}


# Opcodes of single values


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def plain(content):
    """Any plain value."""
    return pickletools.optimize(pickle.dumps(content, 3))[2:-1]


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def call(function, *arguments):
    """A call of (module, name), or of what opcodes leave on the stack, with arguments as opcodes."""
    function = name(*function) if isinstance(function, tuple) else function
    return function + b"(" + b"".join(arguments) + b"tR"


def mapping(**items):
    return b"}(" + b"".join(text(key) + item for key, item in items.items()) + b"u"


def network(**attributes):
    """A network; attributes as opcodes."""
    usual = {"_init_args": b")", "_init_kwargs": b"}", "_parameters": b"}", "_buffers": b"}", "_modules": b"}"}
    state = mapping(**(usual | attributes))
    meta = {"type": text("class"), "version": b"K\x06", "module_src": text("raise SystemExit")}
    return call(PERSISTENT, mapping(**meta, class_name=text("Generator"), state=state))


def file(g, protocol=3):
    """A file whose G is as the opcodes say."""
    return b"\x80" + bytes([protocol]) + mapping(G=g, D=b"N", G_ema=b"N") + b"."


def write_storage(raw, numel, kind="FloatStorage", **changes):
    """A storage as torch 1.7 and later write it into a pickle: five pickles, the number of elements, the elements.

    Args:
        raw: the elements.
        numel: their number.
        kind: class of the storage.
        changes: other opcodes for the pickles `magic`, `version`, `machine`, `id` and `keys`, or for one part of the id
            (`word`, `type`, `key`, `location`, `count`, `view`); other bytes for `length`.
    """
    key = text("94113120037776")
    part = {
        "word": text("storage"),
        "type": name("torch", kind),
        "key": key,
        "location": text("cpu"),
        "count": plain(numel),
        "view": b"N",
    } | changes
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    whole = {
        "magic": plain(0x1950A86A20F9469CFC6C),
        "version": plain(1001),
        "machine": plain(machine),
        "id": b"(" + b"".join(part[k] for k in ("word", "type", "key", "location", "count", "view")) + b"tQ",
        "keys": b"]" + key + b"a",
    } | changes
    pickles = b"".join(b"\x80\2" + whole[k] + b"." for k in ("magic", "version", "machine", "id", "keys"))
    return pickles + changes.get("length", struct.pack("<q", numel)) + raw


FOUR = np.arange(4, dtype="<f4").tobytes()


def tensor(offset=0, size=(4,), stride=(1,), payload=None):
    """A tensor over four elements; its numbers, or opcodes in their place."""
    payload = write_storage(FOUR, 4) if payload is None else payload
    storage = call(LOAD, plain(payload) if isinstance(payload, bytes) else payload[0])
    geometry = [part if isinstance(part, bytes) else plain(part) for part in (offset, size, stride)]
    return call(REBUILD, storage, *geometry, b"\x89", call(("collections", "OrderedDict")))


def with_tensor(*arguments, **settings):
    """A file of one tensor, `weight`."""
    return file(network(_parameters=mapping(weight=tensor(*arguments, **settings))))


def with_attribute(opcodes):
    """A file of one network with one more attribute."""
    return file(network(more=opcodes))
