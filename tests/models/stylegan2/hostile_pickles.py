"""Network pickles that would run something, or that no official writer makes: the bytes, and the reason to refuse them.

Each is an honest file (`with_tensor`, `with_attribute`, `file`) with one thing changed. What would run leaves a file
`marker` in the working folder.
"""

import io
import os
import struct

import torch

from tests.models.stylegan2.pickle_builder import (
    FOUR,
    LOAD,
    PERSISTENT,
    REBUILD,
    Call,
    call,
    file,
    mapping,
    name,
    network,
    plain,
    tensor,
    text,
    with_attribute,
    with_tensor,
    write_storage,
)

TOUCH, CODE = text("touch marker"), text("open('marker', 'w').close()")
EVIL = b"\x80\2" + call(("os", "system"), TOUCH) + b"."
NOT_ALLOWED = r"it names '{}', which is not allowed"


def names():
    """Files that name something that no official file names: (content, what is named)."""
    calls = {
        "os.system": [TOUCH],
        "posix.system": [TOUCH],
        "nt.system": [TOUCH],
        "os.popen": [TOUCH],
        "subprocess.Popen": [TOUCH, b"NNNNN\x89\x88"],
        "builtins.eval": [CODE],
        "__builtin__.eval": [CODE],
        "builtins.exec": [CODE],
        "builtins.compile": [CODE, text("x"), text("exec")],
        "builtins.open": [text("marker"), text("w")],
        "builtins.__import__": [text("os")],
        "builtins.getattr": [call(("builtins", "__import__"), text("os")), text("system")],
        "builtins.dict": [],
        "builtins.bytearray": [plain(2**40)],
        "importlib.import_module": [text("os")],
        "runpy._run_code": [CODE, b"}"],
        "functools.partial": [name("os", "system"), TOUCH],
        "operator.methodcaller": [text("system"), TOUCH],
        "operator.attrgetter": [text("system")],
        "copyreg._reconstructor": [name("builtins", "object"), name("builtins", "object"), b"N"],
        "copy_reg._reconstructor": [name("__builtin__", "object"), name("__builtin__", "object"), b"N"],
        "copyreg.add_extension": [text("os"), text("system"), b"K\1"],
        "types.FunctionType": [b"N}"],
        "marshal.loads": [plain(b"x")],
        "pickle.loads": [plain(EVIL)],
        "_pickle.loads": [plain(EVIL)],
        "codecs.decode": [plain(b"x"), text("unicode_escape")],
        "_codecs.decode": [plain(b"x"), text("unicode_escape")],
        "ctypes.CDLL": [text("libc.so.6")],
        "numpy.load": [text("marker")],
        "numpy.ndarray": [plain((2,))],
        "numpy.core.multiarray._reconstruct": [name("numpy", "ndarray"), plain((0,)), plain(b"b")],
        "torch.load": [call(("_io", "BytesIO"), plain(EVIL))],
        "torch.serialization.load": [call(("_io", "BytesIO"), plain(EVIL))],
        "torch.jit.load": [text("marker")],
        "torch.hub.load": [text("marker"), text("x")],
        "torch.storage.UntypedStorage": [plain(2**40)],
        "torch._utils._rebuild_tensor": [b"N"],
        "torch._utils._rebuild_device_tensor_from_numpy": [b"N"],
        "torch.nn.modules.linear.Linear": [],
        "torch_utils.persistence.persistent_class": [b"N"],
        "torch_utils.persistence._module_to_src_dict": [],
        "dnnlib.util.call_func_by_name": [text("os.system"), TOUCH],
        "dnnlib.util.open_url": [text("http://localhost")],
    }
    found = {}
    for key, arguments in calls.items():
        module, _, attribute = key.rpartition(".")
        content = with_attribute(call((module, attribute), *arguments))
        found[f"call of {key}"] = content, NOT_ALLOWED.format(key)
    dotted = {
        "collections": "OrderedDict.fromkeys",
        "torch.storage": "_load_from_bytes.__globals__",
        "dnnlib.util": "EasyDict.__class__.__subclasses__",
        "os": "path.join",
        "fedgen.io.files": "os.system",
        "": "eval",
    }
    for module, attribute in dotted.items():
        content = with_attribute(text(module) + text(attribute) + b"\x93")
        found[f"dotted name {module}.{attribute}"] = content, NOT_ALLOWED.format(f"{module}.{attribute}")
    found["name across the dot"] = with_attribute(text("dnnlib") + text("util.EasyDict") + b"\x93"), "dnnlib.util.Easy"
    found["name of other than text"] = with_attribute(b"K\1K\2\x93"), "by other than text"
    return found


def opcodes():
    """Files with opcodes that official files do not have, or that do other than there."""
    dictionary, function, kind = name("collections", "OrderedDict"), name(*LOAD), name("dnnlib.util", "EasyDict")
    state, slots = mapping(call=b"K\1"), b"N" + mapping(call=b"K\1", function=b"K\1") + b"\x86"
    dtype = call(("numpy", "dtype"), text("f8"), b"\x89\x88")
    takes_none, no_name = "state to something that takes none", "calls something that is no name"
    return {
        "INST": (with_attribute(b"(" + TOUCH + b"ios\nsystem\n"), "opcode INST"),
        "OBJ": (with_attribute(b"(" + dictionary + b"o"), "opcode OBJ"),
        "NEWOBJ_EX": (with_attribute(kind + b")}\x92"), "opcode NEWOBJ_EX"),
        "EXT1": (with_attribute(b"\x82\x01"), "opcode EXT1"),
        "EXT2": (with_attribute(b"\x83\x01\x00"), "opcode EXT2"),
        "EXT4": (with_attribute(b"\x84\x01\x00\x00\x00"), "opcode EXT4"),
        "PERSID": (with_attribute(b"Pos.system\n"), "opcode PERSID"),
        "BINPERSID": (with_attribute(b"K\1Q"), "opcode BINPERSID"),
        "FROZENSET": (with_attribute(b"(K\1\x91"), "opcode FROZENSET"),
        "BYTEARRAY8": (with_attribute(b"\x96" + struct.pack("<Q", 1) + b"x"), "opcode BYTEARRAY8"),
        "NEXT_BUFFER": (with_attribute(b"\x97"), "opcode NEXT_BUFFER"),
        "DUP": (with_attribute(b"K\x012"), "opcode DUP"),
        "protocol 0 text": (with_attribute(b"S'x'\n"), "opcode STRING"),
        "line without quotes": (with_attribute(b"S" + b"x" * 9999 + b"\n"), "cut short or damaged"),
        "unknown opcode": (with_attribute(b"\xff"), "opcode b'.xff' unknown"),
        "NEWOBJ of a function": (with_attribute(function + b")\x81"), "no class"),
        "NEWOBJ of text": (with_attribute(text("os.system") + b")\x81"), no_name),
        "NEWOBJ with arguments": (with_attribute(kind + plain(([1],)) + b"\x81"), "made of something"),
        "REDUCE of text": (with_attribute(text("os.system") + plain((1,)) + b"R"), no_name),
        "REDUCE of a network": (with_attribute(network() + b")R"), no_name),
        "REDUCE without a tuple": (with_attribute(dictionary + b"]R"), no_name),
        "REDUCE with the wrong number of arguments": (with_attribute(call(REBUILD)), "fails with TypeError"),
        "BUILD of a name": (with_attribute(dictionary + state + b"b"), takes_none),
        "BUILD of a name's slots": (with_attribute(function + slots + b"b"), takes_none),
        "BUILD of a class": (with_attribute(kind + state + b"b"), takes_none),
        "BUILD of a dictionary": (with_attribute(kind + b")\x81" + state + b"b"), takes_none),
        "BUILD of a dictionary's slots": (with_attribute(dictionary + b")R" + slots + b"b"), takes_none),
        "BUILD of a network": (with_attribute(network() + mapping(attributes=b"}") + b"b"), takes_none),
        "BUILD of a tensor": (with_attribute(tensor() + mapping(data=b"N") + b"b"), takes_none),
        "BUILD of a storage": (with_attribute(call(LOAD, plain(write_storage(FOUR, 4))) + state + b"b"), takes_none),
        "BUILD of a dtype by attributes": (
            with_attribute(dtype + mapping(code=text("O")) + b"b"),
            "that NumPy does not",
        ),
        "BUILD of a dtype's slots": (
            with_attribute(dtype + b"N" + mapping(code=text("O")) + b"\x86b"),
            "NumPy does not",
        ),
        "BUILD of a dtype's fields": (
            with_attribute(dtype + plain((3, "<", None, ("a",), {}, -1, -1, 0)) + b"b"),
            "fields",
        ),
        "memo slot of 2 ** 31": (
            with_attribute(b"Nr" + struct.pack("<I", 2**31)),
            "memo slot 2147483648 .* out of range",
        ),
        "memo slot never filled": (with_attribute(b"h\x63"), "fails with KeyError"),
        "length of 2 ** 60": (with_attribute(b"\x8e" + struct.pack("<Q", 2**60)), "cut short or damaged"),
        "stack underflow": (b"\x80\3" + b"0" * 10 + b".", "fails with IndexError"),
        "append to a dictionary": (with_attribute(b"}K\1a"), "no list"),
        "items of a list": (with_attribute(b"]K\1K\2s"), "no dict"),
        "items of a name": (with_attribute(dictionary + text("a") + b"K\1s"), "no dict"),
        "key without a value": (with_attribute(b"}(K\1u"), "without a value"),
        "key that is a number": (with_attribute(b"}K\1K\2s"), "1 is not allowed as a key"),
        "key that is a tuple": (with_attribute(b"})K\2s"), "type tuple is not allowed as a key"),
        "key that is a deep tuple": (
            with_attribute(b"})" + b"\x85" * 20000 + b"K\2s"),
            "type tuple is not allowed as a key",
        ),
        "set of deep tuples": (with_attribute(b"\x8f()" + b"\x85" * 20000 + b"\x90"), "not allowed as a key"),
        "set of a list of tuples": (with_attribute(call(("builtins", "set"), b"])a")), "few names"),
        "several values": (b"\x80\3NN.", "other than one value"),
        "open mark": (b"\x80\3(N.", "other than one value"),
    }


def numbers():
    """Files whose NumPy numbers or texts are none."""

    def scalar(code, raw, order="<"):
        dtype = call(("numpy", "dtype"), text(code), b"\x89\x88")
        dtype += plain((3, order, None, None, None, -1, -1, 0)) + b"b"
        return with_attribute(call(("numpy.core.multiarray", "scalar"), dtype, raw))

    def encode(*arguments):
        return with_attribute(call(("_codecs", "encode"), *arguments))

    return {
        "object": (scalar("O8", plain(b"12345678")), "code of dtype is 'O8'"),
        "objects": (scalar("O", plain([1])), "code of dtype is 'O'"),
        "text": (scalar("U4", plain(b"1234")), "code of dtype is 'U4'"),
        "record": (scalar("V8", plain(b"12345678")), "code of dtype is 'V8'"),
        "date": (scalar("M8", plain(b"12345678")), "code of dtype is 'M8'"),
        "code that is a list": (with_attribute(call(("numpy", "dtype"), b"]")), "code of dtype is \\[\\]"),
        "too few bytes": (scalar("f8", plain(b"1234567")), "other than the 8 bytes"),
        "list for bytes": (scalar("f8", b"]"), "other than the 8 bytes"),
        "order of neither": (scalar("f8", plain(b"12345678"), "!"), "state that NumPy does not write"),
        "no dtype": (with_attribute(call(("numpy.core.multiarray", "scalar"), b"NN")), "that NumPy does not write"),
        "codec rot13": (encode(text("a"), text("rot13")), "encoding of encode is 'rot13'"),
        "codec idna": (encode(text("a"), text("idna")), "encoding of encode is 'idna'"),
        "default codec": (encode(text("a")), "fails with TypeError"),
        "bytes": (encode(plain(b"a"), text("latin1")), "text of encode is b'a'"),
        "text beyond latin1": (encode(text("\u20ac"), text("latin1")), "latin-1"),
    }


def geometries():
    """Files whose tensor is not inside its storage of four elements."""
    beyond, odd = "reaches beyond its storage of 4 elements", "negative, huge or odd number"
    return {
        "offset out of range": (with_tensor(1), beyond),
        "offset at the end": (with_tensor(4, (1,), (1,)), beyond),
        "offset behind the end": (with_tensor(5, (0,), (1,)), beyond),
        "huge offset": (with_tensor(2**59), beyond),
        "offset beyond 64 bits": (with_tensor(2**64), odd),
        "negative offset": (with_tensor(-1, (1,), (1,)), odd),
        "stride out of range": (with_tensor(0, (2,), (4,)), beyond),
        "negative stride": (with_tensor(3, (4,), (-1,)), odd),
        "negative size": (with_tensor(0, (-1,), (1,)), odd),
        "negative sizes": (with_tensor(0, (-2, -2), (1, 1)), odd),
        "huge size": (with_tensor(0, (2**59,), (1,)), beyond),
        "sizes that overflow to zero": (with_tensor(0, (2**32, 2**32), (1, 0)), beyond),
        "size beyond 64 bits": (with_tensor(0, (2**64,), (1,)), odd),
        "strides of zero": (with_tensor(0, (2**40,), (0,)), beyond),
        "many strides of zero": (with_tensor(0, (5, 1), (0, 0)), beyond),
        "true for one": (with_tensor(0, (True,), (1,)), odd),
        "true for an offset": (with_tensor(True, (1,), (1,)), odd),
        "float for an offset": (with_tensor(0.0), odd),
        "float for a size": (with_tensor(0, (4.0,), (1,)), odd),
        "text for a size": (with_tensor(0, "4", (1,)), "shape that torch does not write"),
        "list for a size": (with_tensor(0, [4], (1,)), "shape that torch does not write"),
        "fewer strides": (with_tensor(0, (2, 2), (1,)), "shape that torch does not write"),
        "nine dimensions": (with_tensor(0, (1,) * 9, (1,) * 9), "shape that torch does not write"),
        "tensor for an offset": (with_tensor(tensor()), odd),
        "no storage": (with_attribute(call(REBUILD, b"N", plain(0), b"))\x89N")), "no storage"),
        "dictionary for a storage": (with_attribute(call(REBUILD, b"}", plain(0), b"))\x89N")), "no storage"),
        "parameter that is no tensor": (
            with_attribute(call(("torch._utils", "_rebuild_parameter"), b"N\x89N")),
            "no tensor",
        ),
    }


def storages():
    """Files whose tensor's bytes are no storage of four elements."""
    no_storage, odd = "not a storage as torch writes it", "persistent id that torch does not write"
    good = write_storage(FOUR, 4)
    evil = {f"call in the {key}": {key: call(("os", "system"), TOUCH)} for key in ("version", "machine", "id", "keys")}
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    pieces = {
        "nothing": (b"", no_storage),
        "wrong magic": (write_storage(FOUR, 4, magic=plain(0x1950A86A20F9469CFC6D)), no_storage),
        "magic of another protocol": (good.replace(b"\x80\2", b"\x80\3", 1), no_storage),
        "hostile pickle": (EVIL, no_storage),
        "torch.save of what runs": (_saved_by_torch(zip_archive=False), "opcode REDUCE|names 'posix.system'"),
        "torch.save of what runs, as a zip archive": (_saved_by_torch(zip_archive=True), no_storage),
        "TorchScript archive": (b"PK\3\4" + bytes(26) + b"archive/code/__torch__.py", no_storage),
        "hostile pickle behind the magic": (good[:15] + EVIL, "opcode REDUCE|names 'os.system'"),
        **{key: (write_storage(FOUR, 4, **change), "names 'os.system'") for key, change in evil.items()},
        "wrong version": (write_storage(FOUR, 4, version=plain(1002)), "version 1002, not 1001"),
        "version that is true": (write_storage(FOUR, 4, version=b"\x88"), "version True"),
        "big-endian": (write_storage(FOUR, 4, machine=plain(machine | {"little_endian": False})), "little-endian"),
        "machine of another version": (
            write_storage(FOUR, 4, machine=plain(machine | {"protocol_version": 1})),
            "little",
        ),
        "no machine": (write_storage(FOUR, 4, machine=b"N"), "version"),
        "type bfloat16": (write_storage(FOUR, 4, "BFloat16Storage"), NOT_ALLOWED.format("torch.BFloat16Storage")),
        "type quantised": (write_storage(FOUR, 4, "QInt8Storage"), NOT_ALLOWED.format("torch.QInt8Storage")),
        "type untyped": (
            write_storage(FOUR, 4, type=name("torch.storage", "UntypedStorage")),
            "torch.storage.UntypedStor",
        ),
        "type that is text": (write_storage(FOUR, 4, type=text("FloatStorage")), odd),
        "word module": (write_storage(FOUR, 4, word=text("module")), odd),
        "key that is a number": (write_storage(FOUR, 4, key=b"K\1"), odd),
        "location that is none": (write_storage(FOUR, 4, location=b"N"), odd),
        "view": (write_storage(FOUR, 4, view=plain(("1", 0, 4))), odd),
        "id of five": (write_storage(FOUR, 4, view=b""), odd),
        "id that is text": (write_storage(FOUR, 4, id=text("storage") + b"Q"), odd),
        "no id": (write_storage(FOUR, 4, id=b"N"), "other than one storage"),
        "storage for the keys": (write_storage(FOUR, 4, keys=b"N"), "another key"),
        "another key": (write_storage(FOUR, 4, keys=plain(["1"])), "another key"),
        "two keys": (write_storage(FOUR, 4, keys=plain(["94113120037776"] * 2)), "another key"),
        "count that overflows": (write_storage(FOUR, 4, count=plain(2**62 + 4)), odd),
        "count beyond 64 bits": (write_storage(FOUR, 4, count=plain(2**64 + 4)), odd),
        "count of 2 ** 59": (write_storage(FOUR, 2**59), "has 16 bytes of data, not"),
        "negative count": (write_storage(FOUR, 4, count=plain(-4)), odd),
        "count that is true": (write_storage(FOUR[:4], 1, count=b"\x88"), odd),
        "count that is a float": (write_storage(FOUR, 4, count=plain(4.0)), odd),
        "count other than the data's": (
            write_storage(FOUR, 4, length=struct.pack("<q", 5)),
            "another number of elements",
        ),
        "no data": (write_storage(b"", 4), "has 0 bytes of data, not 16"),
        "garbage behind the data": (write_storage(FOUR + b"x", 4), "has 17 bytes of data, not 16"),
        "another storage behind the data": (good + good, "bytes of data, not 16"),
        "persistent id in the keys": (write_storage(FOUR, 4, keys=b"NQ"), odd),
        "endless header": (write_storage(FOUR, 4, machine=b"}" + b"N0" * 100), "more than 100 opcodes"),
        **{
            f"cut at {n}": (good[:n], "cut short|bytes of data|not a storage")
            for n in (3, 14, 15, 16, 20, 150, -25, -17, -16, -1)
        },
    }
    found = {key: (with_tensor(payload=payload), reason) for key, (payload, reason) in pieces.items()}
    for key, opcodes in {"text": text("x"), "none": b"N", "list": b"]"}.items():
        found[f"{key} for bytes"] = with_tensor(payload=[opcodes]), no_storage
    return found


def _saved_by_torch(zip_archive):
    content = io.BytesIO()
    torch.save(Call(os.system, "touch marker"), content, _use_new_zipfile_serialization=zip_archive)
    return content.getvalue()


def structures():
    """Files that hold no networks, or other ones."""

    def persistent(**changes):
        usual = {"type": text("class"), "version": b"K\6", "class_name": text("Generator"), "state": b"}"}
        return file(call(PERSISTENT, mapping(**(usual | changes))))

    def top(items):
        return b"\x80\3" + items + b"."

    foreign = "not of a persistent class"
    return {
        "a list": (top(b"]"), "does not hold G, D and G_ema"),
        "no G_ema": (top(mapping(G=b"N", D=b"N")), "does not hold G, D and G_ema"),
        "no network": (file(b"N"), "holds no network"),
        "text for a network": (file(text("G")), "G is no network"),
        "name for a network": (file(name("collections", "OrderedDict")), "G is no network"),
        "tensor for a network": (file(tensor()), "G is no network"),
        "arguments without names": (file(network(_init_args=plain((1,)))), "arguments without names"),
        "no arguments": (file(network(_init_args=b"N")), "arguments without names"),
        "no settings": (file(network(_init_kwargs=b"N")), "_init_kwargs is no dictionary"),
        "setting that is a tensor": (file(network(_init_kwargs=mapping(a=tensor()))), "holds a value of type Tensor"),
        "setting that is a name": (file(network(_init_kwargs=mapping(a=name(*LOAD)))), "value of type Function"),
        "setting that is bytes": (file(network(_init_kwargs=mapping(a=plain(b"x")))), "holds b'x'"),
        "setting that is a network": (file(network(_init_kwargs=mapping(a=network()))), "holds a value of type"),
        "no parameters": (file(network(_parameters=b"N")), "has no _parameters"),
        "parameter that is a number": (file(network(_parameters=mapping(a=b"K\1"))), "'a' is no tensor"),
        "buffer that is a storage": (
            file(network(_buffers=mapping(a=call(LOAD, plain(write_storage(FOUR, 4)))))),
            "no tensor",
        ),
        "module that is a tensor": (file(network(_modules=mapping(a=tensor()))), "'a' is no module"),
        "two tensors of one name": (
            file(network(_parameters=mapping(a=tensor()), _buffers=mapping(a=tensor()))),
            "are two",
        ),
        "name with a dot": (file(network(_parameters=b"}" + text("a.b") + tensor() + b"s")), "is no name"),
        "name with control characters": (
            file(network(_buffers=b"}" + text("\x1b[2J") + tensor() + b"s")),
            r"'\\x1b\[2J'",
        ),
        "name of a thousand characters": (
            file(network(_buffers=b"}" + text("a" * 1000) + tensor() + b"s")),
            "is no name",
        ),
        "no class": (persistent(type=text("function")), foreign),
        "no class name": (persistent(class_name=b"N"), foreign),
        "no attributes": (persistent(state=b"N"), foreign),
        "no meta": (file(call(PERSISTENT, b"N")), foreign),
        "version 7": (persistent(version=b"K\7"), "version 7, not 6"),
        "version that is true": (persistent(version=b"\x88"), "version True, not 6"),
        "augmentation without p": (
            top(mapping(G=network(), D=b"N", G_ema=b"N", augment_pipe=network())),
            "no probability",
        ),
        "augmentation that is a number": (
            top(mapping(G=network(), D=b"N", G_ema=b"N", augment_pipe=b"K\1")),
            "no prob",
        ),
        "training set that is a number": (
            top(mapping(G=network(), D=b"N", G_ema=b"N", training_set_kwargs=b"K\1")),
            "no dict",
        ),
        "data behind the end": (with_tensor() + b"\0", "data behind its end"),
        "second pickle behind the end": (with_tensor() + EVIL, "data behind its end"),
    }


def bombs():
    """Files that unfold into more than they are: (content, reason)."""

    def doubled(first, double, steps):
        """A value, and in turn `double` of it; each step kept in the memo from slot 9 on."""
        slots = [b"q" + bytes([9 + step]) for step in range(steps + 1)]
        gets = [b"h" + slot[1:] for slot in slots]
        return first + slots[0] + b"".join(b"0" + double(get) + put for get, put in zip(gets, slots[1:]))

    def children(get):
        return network(_modules=b"}(" + b"".join(text(key) + get for key in "abcdefghij") + b"u")

    def repeated(function, argument):
        """Calls of one function with one argument, which is in the stream once."""
        return with_attribute(start + argument + b"q\x090" + (name(*function) + b"h\x09R0") * 9 + b"N")

    start = b"N0" * 40  # so that the memo's slots are not out of range
    settings = doubled(b"]", lambda get: b"](" + get * 10 + b"e", 12)
    modules = doubled(network(), children, 12)
    data = write_storage(bytes(40000), 10000)
    one = call(REBUILD, b"h\x09", plain(0), plain((1,)), plain((1,)), b"\x89N")
    own_child = mapping(
        type=text("class"),
        version=b"K\6",
        class_name=text("Generator"),
        state=mapping(_init_args=b")", _init_kwargs=b"}", _parameters=b"}", _buffers=b"}", _modules=b"h\x09"),
    )
    circle = b"}q\x090" + call(PERSISTENT, own_child) + b"q\x0a0h\x09" + text("a") + b"h\x0as0h\x0a"
    return {
        "settings that unfold": (file(start + network(_init_kwargs=mapping(a=settings))), "more than 50000 parts"),
        "modules that unfold": (file(start + modules), "more than 50000 parts"),
        "deep settings": (file(network(_init_kwargs=mapping(a=b"(" * 3000 + b"t" * 3000))), "nested too deeply"),
        "deep lists": (file(network(_init_kwargs=mapping(a=b"]" * 3000 + b"a" * 2999))), "nested too deeply"),
        "list that holds itself": (file(start + network(_init_kwargs=mapping(a=b"]q\x09h\x09a"))), "nested too deeply"),
        "deep modules": (file(_nested(30)), "modules are nested too deeply"),
        "module that holds itself": (file(start + circle), "modules are nested too deeply"),
        "one storage, many tensors": (
            with_attribute(start + call(LOAD, plain(data)) + b"q\x090" + (one + b"0") * 3 + b"N"),
            "tensors hold more than the file does",
        ),
        "one storage, read again": (repeated(LOAD, plain((data,))), "again and again"),
        "one text, encoded again": (
            repeated(("_codecs", "encode"), text("a" * 9999) + text("latin1") + b"\x86"),
            "again and again",
        ),
        "large set": (with_attribute(call(("builtins", "set"), plain([str(n) for n in range(101)]))), "few names"),
        "more opcodes than any file": (with_attribute(b"N0" * 250_000 + b"N"), "more than 500000 opcodes"),
    }


def _nested(depth):
    return network() if depth == 0 else network(_modules=mapping(a=_nested(depth - 1)))


HOSTILE = {
    f"{group.__name__}: {key}": case
    for group in (names, opcodes, numbers, geometries, storages, structures, bombs)
    for key, case in group().items()
}
"""By what is wrong: (content of the file, expression that finds the reason in the refusal)."""
