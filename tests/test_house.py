"""`make house`: what counts as a call, a circle, a lonely protocol, on sources that can be counted by hand."""

import ast
from pathlib import Path

import pytest

from benchmarks.house import traces
from benchmarks.house.source_counts import find_circles, import_graph, lonely_protocols
from benchmarks.house.traces import Stretch, Trace


def count_up(number):
    yield from range(number)


def outer():
    return [inner(k) for k in count_up(3)] + [max([3], key=lambda k: inner(k))]


def inner(number):
    return number


def test_named_functions_are_counted_once_a_call_and_generators_once_a_pass(monkeypatch):
    monkeypatch.setattr(traces, "ROOT", Path(__file__).parent)
    trace = Trace()
    with trace.running():
        trace.mark("begin")
        outer()
        trace.mark("end")
    found = Stretch([call for call in trace.calls if call.code.co_name in ("outer", "inner", "count_up")])
    assert found.functions == {"test_house.py": {"outer": 1, "count_up": 1, "inner": 4}}
    depths = {call.code.co_name: call.depth for call in found.calls}
    assert depths["inner"] - depths["outer"] == 1  # neither the comprehension nor the lambda is a frame of its own
    assert trace.between(("begin", 0), ("end", 0)).files == ["test_house.py"]


SOURCES = {
    "__init__.py": "from kit.a import A\n__version__ = '1'",
    "a.py": "from kit.room import B",
    "alone.py": "from kit import __version__, A",
    "room/__init__.py": "from .b import B",
    "room/b.py": "def f():\n    from ..c import C",
    "c.py": "import typing\nif typing.TYPE_CHECKING:\n    import kit.a",
}


def test_circles_are_found_through_packages_in_functions_and_in_types():
    graph = import_graph({name: ast.parse(text) for name, text in SOURCES.items()}, "kit")
    assert graph["a.py"] == {"room/b.py"}
    assert graph["alone.py"] == {"__init__.py", "a.py"}
    assert find_circles(graph) == [["a.py", "c.py", "room/b.py"]]
    assert find_circles({name: found - {"a.py"} for name, found in graph.items()}) == []


@pytest.mark.parametrize(
    ("classes", "lonely"),
    [
        ("class One:\n    def run(self): ...", ["Runs"]),
        ("class One:\n    def run(self): ...\nclass Two(One): ...", []),
        ("class One:\n    run: int\nclass Two:\n    def walk(self): ...", ["Runs"]),
    ],
)
def test_a_protocol_that_one_class_alone_has_is_lonely(classes, lonely):
    source = f"class Runs(Protocol):\n    def run(self): ...\n{classes}"
    assert lonely_protocols({"a.py": ast.parse(source)}) == lonely
