"""Settings that a model's images depend on beside its weights: a solver, its steps, the guidance.

The protocol: a model that can sample in several ways has an attribute `sampling`, a dictionary of plain types that its
`sample()` honours, e.g. {"solver": "dpm-solver++", "steps": 25}; assigning a dictionary changes the settings that it
names, and what depends on them.
"""

import json
from collections.abc import Mapping
from typing import Any

from fedgen.data.optional_attributes import optional
from fedgen.models.optional_hooks import GenerativeModel


def sampling_of(model: Any) -> dict[str, Any]:
    """A copy of a model's sampling settings; none for a model that samples in one way only."""
    settings = optional(model, GenerativeModel, "sampling")
    if settings is None:
        return {}
    try:
        copied = json.loads(json.dumps(settings, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{type(model).__name__}.sampling must hold plain types alone: {error}") from error
    if not isinstance(copied, dict):
        raise TypeError(f"{type(model).__name__}.sampling must be a dictionary, got {settings!r}")
    return copied


def change_sampling(model: Any, settings: Mapping[str, Any]) -> None:
    """Changes some of a model's sampling settings, or none if one is refused."""
    before = sampling_of(model)
    known = {name: value for name, value in settings.items() if name in before}
    _change(model, known)
    try:
        _change(model, {name: value for name, value in settings.items() if name not in before})
    except ValueError:
        if known:
            model.sampling = before
        raise


def _change(model: Any, settings: Mapping[str, Any]) -> None:
    """Raises ValueError for a setting that the model does not have now, or a value that it refuses."""
    if not settings:
        return
    have = sampling_of(model)
    unknown = [name for name in settings if name not in have]
    if unknown:
        listed = ", ".join(f"{name} ({value})" for name, value in have.items())
        raise ValueError(
            f"{type(model).__name__} has no sampling setting {unknown[0]!r}; "
            + (f"it has: {listed}" if have else "it samples in one way only, so leave them out")
        )
    try:
        model.sampling = dict(settings)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{type(model).__name__} refuses sampling={dict(settings)}: {error}") from error


def say_sampling(settings: Mapping[str, Any]) -> str:
    """Settings in words: "sampled with solver dpm-solver++, steps 25"; "" for none."""
    words = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"sampled with {words}" if words else ""
