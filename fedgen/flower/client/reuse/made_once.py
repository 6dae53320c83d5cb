"""Parts that a client makes once for all messages of a run, as they come out the same however often they are made.

They are its settings as they are parsed, its images as they are read, and objects of the kit's own that answer
questions and remember nothing. Whoever takes them from here has the numbers of a new process. A module that trains, its
Trainer, strategy and data module remember what they did: each message has copies of those that were made first, which
nobody has used. Whatever comes of somebody's own code or of a file, which may be otherwise another time, is made anew.
"""

import copy
import hashlib
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedgen.data import Examples
from fedgen.embeddings import Embedding
from fedgen.federated.lightning.lightning_internals import look_for_plugins_once
from fedgen.flower.client.reuse.fit_copies import Again, Fit, is_of_kit
from fedgen.training.fit import FedgenCLI

T = TypeVar("T")
RECENT = 2.0  # seconds within which a file may change again without a new time of change
_SEED = "PL_GLOBAL_SEED"  # of the environment, in which Lightning keeps what it was seeded with
MOST_NODES, MOST_BYTES = 64, 2**28  # of one process that several nodes share, as in Flower's simulation


@dataclass(frozen=True)
class _Parsed:
    """The outcome of parsing: the parser, and a configuration that no object has been made of."""

    settings: str
    parser: LightningArgumentParser
    config: Namespace


@dataclass(frozen=True)
class _Read:
    """Images in memory, the state of the files that they were read from, and how often they were written to."""

    examples: Examples
    files: str
    writes: tuple[int, int]


@dataclass(frozen=True)
class _Object:
    """The way to an object, None if it is made anew, and the states of the global generators once it was made."""

    made_of: str
    again: Again | None
    generators: tuple[Any, ...]


class MadeOnce:
    """The parts that one node has made in a run.

    Args:
        made_of: text of all that the node is made of.
    """

    def __init__(self, made_of: str = "") -> None:
        self.made_of = made_of
        self.drop()

    def drop(self) -> None:
        """Forgets everything: after a message that failed nobody knows what it left behind."""
        self._parsed: _Parsed | None = None
        self._read: _Read | None = None
        self._objects: dict[str, _Object] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the images, and of modules that are kept to be copied."""
        images = 0 if self._read is None else self._read.examples.inputs.nbytes
        return images + sum(one.again.num_bytes for one in self._objects.values() if one.again)

    def drop_copies(self) -> None:
        """Forgets the modules that are kept to be copied."""
        self._objects = {name: one for name, one in self._objects.items() if not (one.again and one.again.num_bytes)}

    def fit(self, settings: dict[str, Any]) -> Fit:
        """Module, data, strategy and Trainer of settings, made anew; equal settings are parsed once."""
        text = repr(settings)
        if self._parsed is not None and self._parsed.settings != text:
            self.drop()  # images may have been read otherwise, too
        made = _FromParsed(settings, self._parsed)
        if self._parsed is None and made.config_before is not None:
            self._parsed = _Parsed(text, made.parser, made.config_before)
        return Fit(made.model, made.datamodule, made.trainer)

    def same(self, what: str, made_of: str, make: Callable[[], T], keep: Callable[[T], Again | None]) -> T:
        """An object that is made of the same as before, or a new one; generators are then as if it had just been made.

        Args:
            what: its name.
            made_of: text of all that it is made of.
            make: makes it.
            keep: of one that has just been made returns the way to such a one for later messages: `itself` where its
                use leaves no trace in it, `copies`, or None where it must be made anew.
        """
        found = self._objects.pop(what, None)
        is_same = found is not None and found.made_of == made_of
        if found is not None and is_same and found.again:
            with suppress(Exception):  # whatever keeps it from being copied once more
                value: T = found.again.give()
                self._objects[what] = found
                _set_generators(found.generators)
                return value
        value, generators = make(), _generators()
        self._objects[what] = _Object(made_of, None if is_same else keep(value), generators)
        _set_generators(generators)
        return value

    def read(self, places: Sequence[Path] | None, load: Callable[[], Examples]) -> Examples:
        """The examples, from memory where no file of theirs has changed since they were read.

        Args:
            places: files and folders that they are read from, and nothing else is; None reads them each time.
            load: reads them.
        """
        files = None if places is None else state_of(places)
        kept, self._read = self._read, None
        if kept is not None and kept.files == files and _writes(kept.examples) == kept.writes:
            self._read = kept
            return kept.examples
        found = load()
        if files is not None and type(found) is Examples:  # others read each item when it is needed
            self._read = _Read(found, files, _writes(found))
        return found


_NODES: "OrderedDict[tuple[int, int], MadeOnce]" = OrderedDict()


def made_in(run: int, node: int, made_of: str) -> MadeOnce:
    """Look up what a node has made in a run; nothing yet, where it is made of anything else than before.

    Args:
        run: its number.
        node: likewise.
        made_of: text of all that the node is made of: recipe, policy, its own config and the run's.
    """
    found = _NODES.pop((run, node), None)
    if found is None or found.made_of != made_of:
        found = MadeOnce(made_of)
    _NODES[run, node] = found
    for other in list(_NODES.values())[:-1]:  # copies first: images take longer to read than objects to make
        if _num_bytes() > MOST_BYTES:
            other.drop_copies()
    while len(_NODES) > 1 and (len(_NODES) > MOST_NODES or _num_bytes() > MOST_BYTES):
        _NODES.popitem(last=False)
    return found


def _num_bytes() -> int:
    return sum(one.num_bytes for one in _NODES.values())


def forget(run: int, node: int) -> None:
    """Forgets what a node has made in a run."""
    _NODES.pop((run, node), None)


def state_of(places: Sequence[Path], now: float | None = None) -> str | None:
    """A hash of all files' and folders' identities, sizes and times of change; None if one has just been changed.

    Within a tick of the file system's clock a file may change again without another time. A file that is gone while
    it is looked at is a change, too.

    Args:
        places: files, and folders with all that is below them.
        now: seconds since the epoch.
    """
    now = time.time() if now is None else now
    digest, newest = hashlib.blake2b(digest_size=16), 0.0
    for path in _below(places):
        try:
            found = os.stat(path)
        except OSError:
            return None
        times = found.st_mtime_ns, found.st_ctime_ns
        newest = max(newest, *(one / 1e9 for one in times))
        digest.update(f"{path!r} {found.st_dev} {found.st_ino} {found.st_mode} {found.st_size} {times}\n".encode())
    return None if newest > now - RECENT else digest.hexdigest()


def _below(places: Sequence[Path]) -> Iterator[str]:
    """Each place and whatever is below it, through links, a folder once."""
    seen: set[str] = set()
    for place in places:
        yield str(place)
        for folder, folders, files in os.walk(place, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            yield from (os.path.join(folder, name) for name in (*folders, *sorted(files)))


def is_pure_embedding(embedding: Embedding) -> bool:
    """Whether an embedding is nobody's own, with all of its network: then it is frozen, and remembers nothing."""
    return is_of_kit(embedding, *embedding.network.modules())


def itself(value: T) -> Again:
    """The same object each time."""
    return Again(lambda: value)


def _generators() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), os.environ.get(_SEED)


def _set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    os.environ.pop(_SEED, None)
    if states[3] is not None:
        os.environ[_SEED] = states[3]


def _writes(examples: Examples) -> tuple[int, int]:
    """Count how often the tensors were written to in place, through views of them too."""
    return examples.inputs._version, examples.labels._version


class _FromParsed(FedgenCLI):
    """`FedgenCLI` of settings, of which the parsing may have been done before.

    Args:
        settings: the arguments.
        before: what came of parsing equal ones; None parses.

    Attributes:
        config_before: the configuration before any object was made of it; None where a part of it cannot be copied, so
            that it must be parsed again.
    """

    config_before: Namespace | None = None

    def __init__(self, settings: dict[str, Any], before: _Parsed | None) -> None:
        self._before = before
        look_for_plugins_once()
        super().__init__(args=settings)

    def setup_parser(self, *arguments: Any) -> None:
        if self._before is None:
            super().setup_parser(*arguments)
        else:
            self.parser = self._before.parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, or take a copy of what came of it before."""
        if self._before is not None:
            self.config = copy.deepcopy(self._before.config)
            return
        super().parse_arguments(parser, args)
        try:
            self.config_before = copy.deepcopy(self.config)
        except Exception:  # somebody's object that is a default of a constructor
            self.config_before = None
