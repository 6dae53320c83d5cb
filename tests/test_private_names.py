"""Private names of Lightning and torch stand in one file; attributes are asked for by name where a comment says why."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedgen

ROOT = Path(fedgen.__file__).parent
INTERNALS = Path("federated/lightning/lightning_internals.py")
OWN = ("self", "cls")
PUBLIC = ("_replace", "_asdict", "_fields", "_make")  # of named tuples: Python documents them
FUNCTIONS = "torch._foreach_"  # many tensors in one call, as torch's own optimizers: there is no public name for them
BY_NAME = ("getattr", "hasattr", "setattr", "delattr")


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def owns(base: ast.expr, classes: set[str]) -> bool:
    """Whether private attributes are a file's own: of the object itself, its class or parents, or one of the file."""
    if isinstance(base, ast.Call):
        return isinstance(base.func, ast.Name) and base.func.id == "super"
    return isinstance(base, ast.Name) and base.id in {*OWN, *classes}


def named(node: ast.AST, classes: set[str]) -> Iterator[str]:
    """The private names of other objects that a piece of code touches, one way or another."""
    if isinstance(node, ast.Attribute) and not owns(node.value, classes):
        yield node.attr
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "fedgen":
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
        yield from (part.value for part in node.args[1:2] if isinstance(part, ast.Constant))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield node.slice.value


def touched(source: str) -> list[str]:
    """ "line: code" of all that touches a private name of an object that is not the file's own."""
    tree = ast.parse(source)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return [
        f"{node.lineno}: {code}"
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.stmt)
        and any(map(is_private, named(node, classes)))
        and not (code := ast.unparse(node)).startswith(FUNCTIONS)
    ]


def files_of(folder: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def test_one_file_touches_what_lightning_and_torch_keep_to_themselves():
    found = {file.as_posix(): touched((ROOT / file).read_text()) for file in files_of("federated")}
    assert len(found) > 40
    assert len(found.pop(INTERNALS.as_posix())) > 20  # which also shows that the search finds them
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_each_function_of_that_file_says_what_for():
    functions = [node for node in ast.parse((ROOT / INTERNALS).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if not node.name.startswith("_") and not ast.get_docstring(node)] == []


@pytest.mark.parametrize(
    "source",
    [
        "trainer._results",
        "self.trainer._results",
        "x.loop._combined_loader = None",
        "del part._modules[key]",
        "getattr(scaler, '_per_optimizer_states', {})",
        "hasattr(part, '_initialize_hook')",
        "vars(module)['_current_fx_name'] = name",
        "from torch.nn.modules.batchnorm import _NormBase",
        "self.federation._counts",
    ],
)
def test_a_private_name_of_another_object_is_found(source):
    assert touched(f"x = 1\n{source}")[0].startswith("2: ")


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        return self._x + super()._y + A._z",
        "class A:\n    @classmethod\n    def f(cls):\n        return cls._x",
        "module.__class__, vars(x)['name'], federation._replace(round=0)",
        "from fedgen.ranks import _heard",
        "torch._foreach_add_(tensors, 1.0)",
    ],
)
def test_a_files_own_private_names_pass(source):
    assert touched(source) == []


def uncommented(source: str) -> list[str]:
    """ "line: code" of calls of getattr with an attribute's name, without a comment there or on the line above."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        if not comments & {node.lineno - 1, node.lineno}
    ]


def test_an_attribute_asked_for_by_name_has_a_comment_that_says_who_may_have_it():
    """Others are declared: in their class, or in one with defaults (`fedgen.data.optional_attributes`)."""
    files = [file for file in files_of(".") if file.parts[0] != "experiments"]
    found = {file.as_posix(): uncommented((ROOT / file).read_text()) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_call_without_a_comment_is_found():
    assert uncommented("x = 1\ny = getattr(x, 'real', 0)") == ["2: getattr(x, 'real', 0)"]
    assert uncommented("# Python's\ny = getattr(x, 'real', 0)\nz = getattr(x, name)") == []
