"""Equal recipes are parsed once: nodes in one process would parse theirs for every message, most of the time."""

import copy
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from fedgen.training.fit import FedgenCLI

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]  # an extra


@pytest.fixture(scope="session")
def parsed_before():
    """Parser, and what came of it by settings."""
    return {}


@pytest.fixture(autouse=True)
def parsed_once(parsed_before, monkeypatch):
    """Equal settings are parsed once; models, data, trainers and strategies are made anew for every message."""
    set_up, parse = FedgenCLI.setup_parser, FedgenCLI.parse_arguments

    def set_up_once(self, *arguments):
        if "parser" not in parsed_before:
            set_up(self, *arguments)
            parsed_before["parser"] = self.parser
        self.parser = parsed_before["parser"]

    def parse_once(self, parser, args):
        key = repr(args)
        if not isinstance(args, dict) or key not in parsed_before:
            parse(self, parser, args)
            parsed_before[key] = self.config
        self.config = copy.deepcopy(parsed_before[key])

    monkeypatch.setattr(FedgenCLI, "setup_parser", set_up_once)
    monkeypatch.setattr(FedgenCLI, "parse_arguments", parse_once)


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
