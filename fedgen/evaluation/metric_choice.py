"""A torchmetrics class as a score, by its class path: of the model's predictions, of each client and of all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedgen.class_paths import import_by_path

if TYPE_CHECKING:
    from torchmetrics import Metric

PATH = "metric"  # the option that holds the class path


def make_metric(options: Mapping[str, Any]) -> "Metric":
    """The metric of options: its class path under "metric", the others are its own.

    Raises:
        ValueError: for a path of nothing, of no torchmetrics class, options that the class refuses, and a metric that
            does not say whether more is better.
    """
    from torchmetrics import Metric  # slow to import, and used by these scores alone

    own = dict(options)
    path = own.pop(PATH)
    kind = import_by_path(path)
    if not (isinstance(kind, type) and issubclass(kind, Metric)):
        raise ValueError(f"{path} is no torchmetrics class")
    try:
        found = kind(**own)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be made of {own or 'no options'}: {error}") from error
    if found.higher_is_better is None:
        raise ValueError(f"{path} does not say whether more of it is better (higher_is_better); give a class that does")
    return found


def name_of_metric(path: str) -> str:
    """What records and columns call a metric: the name of its class in small letters."""
    return path.rsplit(".", 1)[-1].lower()
