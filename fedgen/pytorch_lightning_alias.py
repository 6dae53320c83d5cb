"""Modules that import `pytorch_lightning`, Lightning's other package of the same code, run with `lightning.pytorch`.

The two packages hold the same classes twice, and a Trainer of one refuses the modules of the other.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

OTHER, OWN = "pytorch_lightning", "lightning.pytorch"
REMEDY = (
    f"put `import fedgen; fedgen.alias_pytorch_lightning()` before the first import of {OTHER}, or import {OWN} in the"
    " module"
)


def alias_pytorch_lightning() -> None:
    """Lets `pytorch_lightning` and all its submodules mean `lightning.pytorch` from now on, in this process.

    Call it before anything imports `pytorch_lightning`, which need not be installed. A second call does nothing.

    Raises:
        ImportError: if another `pytorch_lightning` has been imported already.

    Examples:
        >>> from fedgen import alias_pytorch_lightning
        >>> alias_pytorch_lightning()
        >>> import pytorch_lightning, lightning.pytorch
        >>> pytorch_lightning.LightningModule is lightning.pytorch.LightningModule
        True
    """
    if any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        return
    if OTHER in sys.modules:
        place = getattr(sys.modules[OTHER], "__file__", None)  # Python's, of modules that have a file
        raise ImportError(f"{OTHER} has been imported already, from {place}; {REMEDY}", name=OTHER)
    sys.meta_path.insert(0, _Aliases())


def alias_if_unused() -> None:
    """Alias as `alias_pytorch_lightning` does, for commands: does nothing where the other package is in use."""
    if OTHER not in sys.modules:
        alias_pytorch_lightning()


class _Aliases(MetaPathFinder, Loader):
    """Finds `pytorch_lightning.X` as `lightning.pytorch.X`; what is not there is not found here either."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != OTHER and not fullname.startswith(f"{OTHER}."):
            return None
        found = find_spec(OWN + fullname.removeprefix(OTHER))
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=found.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(OWN + spec.name.removeprefix(OTHER))
        spec.loader_state = module.__spec__  # which importing it under the other name replaces
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__ and module.__spec__.loader_state
