"""An unpickler that can only build data: numbers, text, bytes, tuples, lists, dictionaries, sets.

Python's own unpickler calls what a stream names, sets the attributes that it says, hashes whatever it is given (a deep
tuple as a key overflows the C stack) and sizes its memo as told. This one is an interpreter of the opcodes that
`pickletools.genops` reads. It imports nothing and looks no attribute up: a name in the stream is an entry of the
reader's own table or an error, REDUCE and NEWOBJ call methods of that entry, and BUILD gives a state to objects of the
types that the reader lists. Time and memory are of the order of the stream's length, whatever the stream says.

Three readers use it: of files of torch.save (`torch_files`), and, with the names that NumPy's numbers are pickled with,
of data sets (`fedgen.data.sets.pickled_images`) and StyleGAN2's networks (`fedgen.models.stylegan2.official_pickle`).
"""

import inspect
import io
import math
import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np

from fedgen.io.field_types import Between, checker, conforms

_LITERALS = """
INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
"""
_BUILDERS = """
PROTO FRAME STOP MARK POP POP_MARK EMPTY_LIST LIST APPEND APPENDS TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM
SETITEMS GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
"""
_OLD = "INT LONG FLOAT STRING BINSTRING SHORT_BINSTRING UNICODE LIST DICT GET PUT"
_PUSHED = frozenset(_LITERALS.split())
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"])

DATA_OPCODES = _PUSHED | _CONSTANTS.keys() | _PUTS | frozenset(_BUILDERS.split())
"""The opcodes of data as NumPy and Python write them. EMPTY_SET, ADDITEMS, NEWOBJ and BINPERSID can be added."""

BINARY_OPCODES = DATA_OPCODES - frozenset(_OLD.split())
"""Those of them that Python 3 writes in protocols 2 to 5."""

_REUSE = 4  # times the stream's length that all calls together may be given; protocol 2 gives bytes to two calls

KEYS = (str, bytes, int, float, bool, type(None), tuple)
"""Types of dictionary keys; a tuple may hold up to eight values of the others."""

_PERIOD = 2**61 - 1  # of Python's hashes of whole numbers: those below it have different ones
# the hashes of large numbers and of tuples can be chosen, so that each key is looked for in the places of all others:
# a dictionary of 20,000 such keys takes a minute
LEAST_CHOSEN, MOST_BESIDE_CHOSEN = 2**24, 500


class Name:
    """Something that a pickle may name. What it does when called is code of this project; by itself, nothing."""

    __slots__ = ()

    def call(self, *arguments: Any) -> Any:
        raise ValueError("it calls a name that cannot be called")

    def new(self, *arguments: Any) -> Any:
        raise ValueError("it makes an object of a name that is no class")


Natural = Annotated[int, Between(0, 2**60 - 1)]
"""Whole numbers of which sums and products stay finite: shapes, strides and places."""


class Function(Name):
    """A name that stands for a function, which is called if its annotations, or `types`, allow the arguments."""

    __slots__ = ("_checks", "_function", "_name")

    def __init__(self, function: Callable[..., Any], name: str = "", /, **types: Any) -> None:
        self._function, self._name = function, name or function.__name__.strip("_")
        hints = types or get_type_hints(function, include_extras=True)
        self._checks = [
            (name, checker(hints.get(name, Any))) for name in types or inspect.signature(function).parameters
        ]

    def call(self, *arguments: Any) -> Any:
        for (name, check), value in zip(self._checks, arguments):
            if wrong := check(value):
                raise ValueError(f"{name} of {self._name} {wrong}")
        return self._function(*arguments)


class NotAllowedError(ValueError):
    """A pickle names something that is not in the reader's table."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(f"it names {short(f'{module}.{name}')}, which is not allowed")
        self.module, self.name = module, name


def unpickle(
    stream: io.BytesIO,
    names: Mapping[tuple[str, str], Any],
    opcodes: frozenset[str] = DATA_OPCODES,
    key_types: tuple[type, ...] = KEYS,
    max_opcodes: int | None = None,
    persistent: Callable[[Any], Any] | None = None,
    states: Mapping[type, Callable[[Any, Any], None]] | None = None,
) -> Any:
    """The value of one pickle, up to its STOP; NotAllowedError for a name not in `names`, else ValueError."""
    start = stream.tell()
    allowance = _REUSE * (stream.seek(0, io.SEEK_END) - start)
    stream.seek(start)
    machine = _Machine(names, key_types, allowance, persistent, {DataType: DataType.set_state, **(states or {})})
    for count, (name, argument, position) in enumerate(_read_opcodes(stream), start=1):
        if name not in opcodes:
            raise ValueError(f"opcode {name} at byte {position} is not allowed")
        if max_opcodes is not None and count > max_opcodes:
            raise ValueError(f"it has more than {max_opcodes} opcodes")
        # Writers number their memo as they go. A slot is a key here and costs nothing, but no honest file has this one.
        if name in _PUTS and int(argument or 0) > count:
            raise ValueError(f"memo slot {argument} at byte {position} is out of range")
        try:
            machine.step(name, argument)
        except ValueError:
            raise
        except Exception as error:  # an empty stack, an unknown memo slot, a call with the wrong number of arguments
            raise ValueError(f"opcode {name} at byte {position} fails with {type(error).__name__}") from error
    if len(machine.stack) != 1 or machine.outer:
        raise ValueError("it ends with something other than one value")
    return machine.stack[0]


def short(value: Any) -> str:
    """A value of a pickle as an error may show it: in full only where that is short and prints on one line."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= 60 else repr(value[:60]) + "..."
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() <= 64):
        return repr(value)
    return f"a value of type {type(value).__name__}"  # the text of nested values can be longer than any memory


def check_key(key: Any, types: tuple[type, ...] = KEYS, beside: int = 0) -> Any:
    """The key itself, if hashing it is quick and no file can hold many of one hash; ValueError for others."""
    if type(key) is int:
        allowed = abs(key) < (_PERIOD if beside < MOST_BESIDE_CHOSEN else LEAST_CHOSEN)
    elif type(key) is float:
        allowed = beside < MOST_BESIDE_CHOSEN
    elif type(key) is tuple:
        flat = len(key) <= 8 and all(type(one) in KEYS[:-1] for one in key)
        allowed = flat and beside < MOST_BESIDE_CHOSEN
    else:
        allowed = True
    if type(key) not in types or not allowed:
        raise ValueError(f"{short(key)} is not allowed as a key")
    return key


def add_items(target: set[Any], items: Sequence[Any], types: tuple[type, ...] = KEYS) -> None:
    for item in items:
        target.add(check_key(item, types, len(target)))


def check_unfolding(value: Any, children: Callable[[Any], Sequence[Any]], most: int, deepest: int) -> None:
    """Refuses nested containers that hold themselves, or unfold into more than `most` parts or `deepest` levels."""
    # a thing that is named twice is written once, so that sixty lines can stand for 2^60 parts
    sizes: dict[int, tuple[int, int]] = {}  # by identity: parts and depth, (0, 0) while it is open
    left: list[tuple[Any, Sequence[Any] | None]] = [(value, None)]
    while left:
        part, inner = left.pop()
        if inner is not None:  # all that it holds is counted
            found = [sizes[id(one)] for one in inner]
            size = 1 + sum(count for count, _ in found), 1 + max((depth for _, depth in found), default=0)
            if size[0] > most:
                raise ValueError(f"it unfolds into more than {most} parts")
            if size[1] > deepest:
                raise ValueError(f"it is nested more than {deepest} deep")
            sizes[id(part)] = size
        elif id(part) not in sizes:
            inner = children(part)
            sizes[id(part)] = (0, 0) if inner else (1, 0)
            if inner:
                left.append((part, inner))
                left.extend((one, None) for one in inner)
        elif sizes[id(part)] == (0, 0):  # open: what is popped now lies within it
            raise ValueError("it holds itself")


@dataclass
class _Machine:
    """The stack machine that a pickle is a programme for; `outer` holds the stacks below the open marks."""

    names: Mapping[tuple[str, str], Any]
    key_types: tuple[type, ...]
    allowance: int
    persistent: Callable[[Any], Any] | None
    states: Mapping[type, Callable[[Any, Any], None]]
    stack: list[Any] = field(default_factory=list)
    outer: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case _ if opcode in _PUSHED:
                stack.append(argument)
            case _ if opcode in _CONSTANTS:
                stack.append(_CONSTANTS[opcode])
            case _ if opcode in _PUTS:
                self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "MARK":
                self.outer.append(stack)
                self.stack = []
            case "POP":  # of a mark, if there is nothing above it
                stack.pop() if stack else self._pop_mark()
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_SET":
                stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}[opcode]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3" | "APPEND" | "SETITEM":
                count = {"APPEND": 1, "SETITEM": 2}.get(opcode) or int(opcode[-1])
                self._put([stack.pop() for _ in range(count)][::-1], opcode)
            case "TUPLE" | "LIST" | "DICT" | "APPENDS" | "SETITEMS" | "ADDITEMS" | "POP_MARK":
                self._put(self._pop_mark(), opcode)
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                self._name_or_call(opcode, argument)

    def _put(self, items: list[Any], opcode: str) -> None:
        match opcode.rstrip("123S"):
            case "TUPLE":
                self.stack.append(tuple(items))
            case "LIST":
                self.stack.append(items)
            case "APPEND":
                self._top(list).extend(items)
            case "ADDITEM":
                add_items(self._top(set), items, self.key_types)
            case "DICT" | "SETITEM":
                if opcode == "DICT":
                    self.stack.append({})
                target = self._top(dict, OrderedDict, Counter)
                if len(items) % 2:
                    raise ValueError("a dictionary has a key without a value")
                for key, value in zip(items[::2], items[1::2]):  # a counter's update would add
                    target[check_key(key, self.key_types, len(target))] = value

    def _name_or_call(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "GLOBAL":
                module, _, name = argument.partition(" ")
                stack.append(self._find(module, name))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(self._find(module, name))
            case "REDUCE" | "NEWOBJ":
                arguments, name = stack.pop(), stack.pop()
                if not isinstance(name, Name) or type(arguments) is not tuple:
                    raise ValueError("it calls something that is no name")
                self._spend(arguments)
                stack.append(name.call(*arguments) if opcode == "REDUCE" else name.new(*arguments))
            case "BUILD":
                state = stack.pop()
                self._spend(state if type(state) is tuple else (state,))
                if type(stack[-1]) not in self.states:
                    raise ValueError("it gives a state to something that takes none")
                self.states[type(stack[-1])](stack[-1], state)
            case "BINPERSID" if self.persistent is not None:
                stack.append(self.persistent(stack.pop()))
            case _:
                raise ValueError(f"opcode {opcode} is not allowed")

    def _spend(self, arguments: tuple[Any, ...]) -> None:
        """Counts what a call may copy: a stream can write it once and use it a million times."""
        self.allowance -= sum(len(a) for a in arguments if type(a) in (str, bytes, list, tuple) and len(a) > 64)
        if self.allowance < 0:
            raise ValueError("it uses the same data again and again")

    def _pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def _top(self, *kinds: type) -> Any:
        if type(self.stack[-1]) not in kinds:
            raise ValueError(f"it adds items to something that is no {kinds[0].__name__}")
        return self.stack[-1]

    def _find(self, module: Any, name: Any) -> Any:
        if type(module) is not str or type(name) is not str:
            raise ValueError("it names something by other than text")
        if (module, name) not in self.names:
            raise NotAllowedError(module, name)
        return self.names[module, name]


def _read_opcodes(stream: io.BytesIO) -> Iterator[tuple[str, Any, int]]:
    """(name, argument, position) of each opcode up to STOP."""
    try:
        for opcode, argument, position in pickletools.genops(stream):
            yield opcode.name, argument, int(position or 0)
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"it is cut short or damaged: {reason[:120]}") from error  # some quote a line in full


@dataclass(eq=False)
class DataType:
    """A NumPy dtype in the making: code such as "u1", and byte order."""

    code: str
    order: str = "|"

    def set_state(self, state: Any) -> None:
        if type(state) is not tuple or not conforms(state[1:5], _ORDER_WITHOUT_FIELDS):
            raise ValueError("a dtype has a state that NumPy does not write, or fields, which are not allowed")
        self.order = state[1]


_ORDER_WITHOUT_FIELDS = tuple[Literal["<", ">", "|", "="], None, None, None]
_Code = Literal["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def make_array(shape: tuple[int, ...], kind: DataType, column_major: Any, raw: Any) -> np.ndarray:
    """An array over a copy of raw bytes; ValueError unless shape, dtype and length agree."""
    if not conforms((shape, kind), tuple[tuple[int, ...], DataType]) or len(shape) > 32:
        raise ValueError("an array has a shape or a dtype that NumPy does not write")
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    dtype = np.dtype(("" if kind.order == "|" else kind.order) + kind.code)
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(raw, bytes) or len(raw) != size:
        raise ValueError(
            f"an array of dtype {dtype} has other than the {short(size)} bytes of data that its shape needs"
        )
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if column_major else "C").copy(order="K")


def _scalar(kind: Any, raw: Any) -> bool | int | float:
    return make_array((), kind, False, raw).item()


ENCODE = Function(lambda text, _: text.encode("latin1"), "encode", text=str, encoding=Literal["latin1", "latin-1"])
"""Stands for `codecs.encode`, in which Python 3 wraps bytes for protocol 2."""

NUMBER_NAMES: dict[tuple[str, str], Name] = {
    ("numpy", "dtype"): Function(lambda code, *options: DataType(code), "dtype", code=_Code),
    ("_codecs", "encode"): ENCODE,
    **{(f"numpy.{core}.multiarray", "scalar"): Function(_scalar) for core in ("core", "_core")},
}
"""What NumPy's numbers and dtypes, and the bytes of protocol 2, are pickled with."""
