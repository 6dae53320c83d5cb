"""Equal recipes are parsed and written once: nodes in one process would parse theirs for every message."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from jsonargparse import Namespace

from fedgen.training import fit
from fedgen.training.fit import FedgenCLI

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]  # an extra


@pytest.fixture(scope="session")
def parsed_before():
    """Parser, and what came of it by settings."""
    return {}


ROUNDS = 10**9  # and more stand for numbers of rounds


def copied(value, change):
    """Parsed settings anew, each single value changed; `copy.deepcopy` takes several times as long."""
    if isinstance(value, Namespace):
        found = Namespace()
        vars(found).update(copied(vars(value), change))
        return found
    if isinstance(value, dict):
        return {key: copied(part, change) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(part, change) for part in value)
    return change(value)


class Places:
    """Tests' files, folders, clients and rounds that settings name, in order; for others alike, others are put in.

    Args:
        root: folder of all tests.
    """

    def __init__(self, root):
        self.root, self.found, self.rounds = str(root), [], []

    def _is_place(self, value):
        """A client has the name of its folder."""
        names = {Path(place).name for place in self.found}
        return isinstance(value, (str, Path)) and (str(value).startswith(self.root) or str(value) in names)

    def take(self, value):
        """Settings with numbers for places; parsed ones are told from plain ones."""
        if isinstance(value, Namespace):
            return {Namespace: self.take(vars(value))}
        if isinstance(value, dict):
            return {key: self._rounds(part) if key == "max_epochs" else self.take(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.take, value))
        if not self._is_place(value):
            return value
        if str(value) not in self.found:
            self.found.append(str(value))
        return type(value)(self._numbered(self.found.index(str(value))))

    def put(self, value):
        """A copy of parsed settings with places for numbers."""
        numbers = {self._numbered(number): place for number, place in enumerate(self.found)}

        def place(value):
            if isinstance(value, (str, Path)) and str(value) in numbers:
                return type(value)(numbers[str(value)])
            is_rounds = type(value) is int and 0 <= value - ROUNDS < len(self.rounds)
            return self.rounds[value - ROUNDS] if is_rounds else value

        return copied(value, place)

    def _rounds(self, value):
        if type(value) is not int:
            return value
        if value not in self.rounds:
            self.rounds.append(value)
        return ROUNDS + self.rounds.index(value)

    @staticmethod
    def _numbered(number):
        return f"/the place of number {number}"


@pytest.fixture(autouse=True, scope="module")
def parsed_once(parsed_before, tmp_path_factory):
    """Equal settings are parsed once; models, data, trainers and strategies are made anew for every message."""
    set_up, parse, write = FedgenCLI.setup_parser, FedgenCLI.parse_arguments, fit.plain_settings

    def set_up_once(self, *arguments):
        if "parser" not in parsed_before:
            set_up(self, *arguments)
            parsed_before["parser"] = self.parser
        self.parser = parsed_before["parser"]

    def parse_once(self, parser, args):
        if not isinstance(args, dict):
            return parse(self, parser, args)
        places = Places(tmp_path_factory.getbasetemp())
        plain = places.take(args)
        key = repr(plain)
        if key not in parsed_before:
            try:
                parse(self, parser, plain)
            except (Exception, SystemExit):
                return parse(self, parser, args)  # whose error names the places
            parsed_before[key] = self.config
        self.config = places.put(parsed_before[key])

    def write_once(parser, config):
        places = Places(tmp_path_factory.getbasetemp())
        key = repr(places.take(config))
        if key not in parsed_before:
            parsed_before[key] = places.take(write(parser, config))
        return places.put(parsed_before[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "plain_settings", write_once)
        patch.setattr(FedgenCLI, "setup_parser", set_up_once)
        patch.setattr(FedgenCLI, "parse_arguments", parse_once)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of digits for each of four clients."""
    from tests.flower.runs import write_images  # which needs the extra

    return write_images(tmp_path_factory.mktemp("clients"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder without modules, which apps of recipes that name some would take with them."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def by_flowers_simulation(monkeypatch):
    """Nodes are simulated: apps run in processes of Ray, and in none of a SuperNode's."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.delitem(sys.modules, "flwr.supernode.runtime.run_clientapp", raising=False)
