"""Changes to Lightning itself, for want of a hook: each function says what and why."""

from functools import wraps
from typing import Any

from lightning.pytorch.trainer import trainer as trainer_module

from fedgen.pytorch_lightning_alias import OTHER, REMEDY


def explain_other_lightning() -> None:
    """Makes Lightning's error of a module that derives from `pytorch_lightning`'s classes name the remedy.

    A Trainer looks at the module's type before it asks its strategy for anything, and says of such a one no more than
    that it is no LightningModule.
    """
    given = trainer_module._maybe_unwrap_optimized
    if hasattr(given, "explains"):
        return

    @wraps(given)
    def explained(model: Any) -> Any:
        try:
            return given(model)
        except TypeError as error:
            bases = type(model).__mro__
            if not any(base.__module__.split(".")[0] == OTHER for base in bases):
                raise
            raise TypeError(
                f"{error}; {type(model).__qualname__} derives from {OTHER}, whose classes are not those of the Trainer:"
                f" {REMEDY}"
            ) from error

    explained.explains = True  # type: ignore[attr-defined]
    trainer_module._maybe_unwrap_optimized = explained
