"""The rules of `make check` find what goes against them, and nothing else."""

import pytest

from benchmarks.house import rules
from benchmarks.house.rules import INTERNALS, ROOT, RULES, Source

TURN, EXPERIMENT, STRATEGY = "clients/turn.py", "experiments/ranking/sample_size.py", "federated/strategy.py"
LISTED = "_listed = 0\nclass A:\n    x: int = 0\n"
# rule: [(files by their paths, words of its only fault)]
FOUND = {
    rules.every_part_is_listed: [
        ({"helpers/numbers.py": "", "data/digits.py": "", "__init__.py": ""}, "fedgen/helpers is not"),
        ({"tools.py": ""}, "fedgen/tools is not"),
    ],
    rules.folders_are_packages_of_few_files: [
        ({"__init__.py": "", "data/digits.py": ""}, "fedgen/data has no __init__.py"),
        ({"__init__.py": "", "data/sets/__init__.py": ""}, "fedgen/data has no __init__.py"),
        ({"__init__.py": "", **{f"{number}.py": "" for number in range(20)}}, "holds 21 files"),
    ],
    rules.imports_point_up: [
        ({file: source}, f"fedgen/{file}:{source.count(chr(10)) + 1} imports fedgen.")
        for file, source in [
            (TURN, "from fedgen.federated import FedAvgStrategy"),
            (TURN, "from fedgen.federated.strategy import FedAvgStrategy"),
            (TURN, "import fedgen.federated.strategy as strategy"),
            (TURN, "from fedgen import federated"),
            (TURN, "from ..federated import FedAvgStrategy"),
            (TURN, "from .. import federated"),
            ("clients/partitions/iid.py", "from ...federated.strategy import FedAvgStrategy"),
            (TURN, "def f():\n    import fedgen.evaluation"),
            (TURN, "if TYPE_CHECKING:\n    from fedgen.federated import Mean"),
            (TURN, "from importlib import import_module\nimport_module('fedgen.federated')"),
            (TURN, "import os, fedgen.training.fit"),
            ("images.py", "from fedgen.data import Examples"),
            ("evaluation/__init__.py", "from fedgen.callbacks import FederatedEvaluation"),
            (TURN, "from fedgen import FedAvgStrategy"),
            (TURN, "from fedgen.helpers import anything"),
        ]
    ],
    rules.experiments_import_public_names_and_rooms_above: [
        ({EXPERIMENT: "from fedgen.scores.aggregate import _check"}, "not a public name"),
        ({EXPERIMENT: "def f():\n    from fedgen.clients._wire import x"}, "not a public name"),
        ({EXPERIMENT: "from fedgen.experiments.paired import privacy"}, "paired is below ranking"),
        ({"experiments/more/a.py": ""}, "fedgen/experiments/more is not"),
    ],
    rules.no_module_imports_itself: [
        (
            {"a.py": "try:\n    from fedgen import b\nexcept E:\n    pass", "b.py": "class B:\n    import fedgen.a"},
            "each other",
        ),
        ({"p/__init__.py": "import fedgen.b", "p/d.py": "", "b.py": "from fedgen.p import d"}, "fedgen.p"),
        (
            {
                "p/__init__.py": "load_on_use\nif TYPE_CHECKING:\n    from fedgen.p.a import A",
                "p/a.py": "import fedgen.c",
                "c.py": "from fedgen.p import A",
            },
            "fedgen.c",
        ),
    ],
    rules.libraries_are_declared: [
        ({"a.py": "import torch\nimport os\nfrom nowhere.at import all"}, "a.py:3 imports nowhere"),
    ],
    rules.public_types_mean_one_thing_each: [({"a.py": "class A: ...", "b.py": "class A: ..."}, "a.py and b.py")],
    rules.one_file_touches_internals: [
        *[
            ({STRATEGY: f"x = 1\n{source}"}, f"{STRATEGY}:2: ")
            for source in [
                "trainer._results",
                "self.trainer._results",
                "x.loop._combined_loader = None",
                "del part._modules[key]",
                "getattr(scaler, '_per_optimizer_states', {})",
                "hasattr(part, '_initialize_hook')",
                "vars(module)['_current_fx_name'] = name",
                "from torch.nn.modules.batchnorm import _NormBase",
                "self.federation._counts",
            ]
        ],
        ({INTERNALS: "def f():\n    trainer._results"}, "f has no docstring"),
    ],
    rules.attributes_asked_by_name_have_a_comment: [
        ({"a.py": "x = 1\ny = getattr(x, 'real', 0)"}, "a.py:2: `getattr(x, 'real', 0)`"),
    ],
    rules.optional_attributes_are_declared: [
        ({"a.py": LISTED, "b.py": "optional(one, A, 'y')"}, "A declares no y"),
        ({"b.py": "optional(one, A, 'y')"}, "A declares no y"),
    ],
    rules.docstrings_begin_with_a_verb_or_a_noun: [
        ({"a.py": 'def f():\n    """What it does."""'}, "of f begins with What"),
        ({"a.py": '"""How, and why."""'}, "of the file begins with How"),
    ],
    rules.no_warning_counts_its_frames: [({"a.py": "warnings.warn('x', stacklevel=2)"}, "a.py names stacklevel")],
    rules.experiments_leave_settings_and_quick_options_to_the_engine: [
        ({EXPERIMENT: "def settings(): ..."}, "settings by itself"),
        ({EXPERIMENT: "def f(output, quick): ..."}, "from a `Choice`"),
    ],
}
PASSES = {
    rules.imports_point_up: [
        {TURN: "from fedgen.data import Examples\nfrom fedgen.images import from_uint8"},
        {TURN: "from fedgen.clients.client import Client"},
        {TURN: "from .client import Client\nfrom ..data import Examples"},
        {"clients/partitions/iid.py": "from .partition import Partition\nfrom ..client import Client"},
        {"images.py": "from fedgen.io.files import atomic_write"},
        {"io/files.py": "from fedgen import __version__\nimport fedgen"},
        {"cli/deploy.py": "import fedgen.flower, fedgen.__main__"},
        {"__init__.py": "from fedgen.federated import FedAvgStrategy"},
        {TURN: "import torch\nfrom lightning.pytorch import Trainer\nfrom fedgenerator import x"},
    ],
    rules.experiments_import_public_names_and_rooms_above: [
        {EXPERIMENT: "from fedgen.scores import aggregate\nfrom fedgen.experiments.engine.study import _keep"},
    ],
    rules.no_module_imports_itself: [
        {"a.py": "from fedgen import b", "b.py": "from fedgen.c import C", "c.py": "def later():\n    import fedgen.a"},
        {"p/__init__.py": "load_on_use\nif TYPE_CHECKING:\n    from fedgen.p.a import A", "p/a.py": "import fedgen.p"},
    ],
    rules.one_file_touches_internals: [
        {STRATEGY: "class A:\n    def f(self):\n        return self._x + super()._y + A._z"},
        {STRATEGY: "class A:\n    @classmethod\n    def f(cls):\n        return cls._x"},
        {STRATEGY: "module.__class__, vars(x)['name'], federation._replace(round=0)"},
        {STRATEGY: "from fedgen.ranks import _heard"},
        {STRATEGY: "torch._foreach_add_(tensors, 1.0)"},
        {INTERNALS: 'def f():\n    """Give the results."""\n    return trainer._results'},
    ],
    rules.attributes_asked_by_name_have_a_comment: [
        {"a.py": "# Python's\ny = getattr(x, 'real', 0)\nz = getattr(x, name)"},
    ],
    rules.optional_attributes_are_declared: [{"a.py": f"{LISTED}optional(one, A, 'x')\noptional(one, A, name)"}],
    rules.experiments_leave_settings_and_quick_options_to_the_engine: [
        {EXPERIMENT: "def f(**options): ...", "experiments/engine/study.py": "def settings(): ..."},
    ],
}


def faults(rule, files):
    return list(rule([Source(file, text) for file, text in files.items()]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_planted_faults_and_nothing_else(rule):
    for files, words in FOUND[rule]:
        (fault,) = faults(rule, files)
        assert words in fault
    for files in PASSES.get(rule, ()):
        assert faults(rule, files) == [], files


def test_all_files_of_the_package_are_read_and_a_fault_fails_the_check(monkeypatch, capsys):
    monkeypatch.setattr(rules, "RULES", (rules.no_warning_counts_its_frames,))
    assert rules.main() == 0
    assert f" {len(list((ROOT / 'fedgen').rglob('*.py')))} files, 0 faults" in capsys.readouterr().out
    monkeypatch.setattr(rules, "read_package", lambda _: [Source(INTERNALS, "stacklevel")])
    assert rules.main() == 1
    assert "stacklevel" in capsys.readouterr().err
