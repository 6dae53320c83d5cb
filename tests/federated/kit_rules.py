"""The kit's aggregators as its package lists them, so that tests which name each one say when one is missing."""

import inspect

import fedgen.federated
from fedgen.federated import Aggregator


def aggregators():
    """The public aggregators that can be made, by name: {name: class}."""
    found = {name: getattr(fedgen.federated, name) for name in fedgen.federated.__all__}
    return {name: kind for name, kind in found.items() if _is_rule(kind)}


def _is_rule(kind):
    return inspect.isclass(kind) and issubclass(kind, Aggregator) and not inspect.isabstract(kind)
