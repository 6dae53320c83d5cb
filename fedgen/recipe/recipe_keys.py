"""The keys and texts of a recipe's settings: one level of dotted keys, and those that lack what belongs below them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgen.class_paths import nearest

PARTS = ("trainer", "model", "data", "seed_everything", "ckpt_path", "threads", "explain", "local_only", "centralised")
WRITTEN = ("optimizer", "lr_scheduler")  # by LightningCLI, into the recipes that runs keep
INCLUDED = ("config",)  # another recipe, below this one
UNABLE = "Unable to serialize instance "  # what jsonargparse writes in the place of a value that it has no text for


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted keys; of lists of classes, each by its class's name or its place."""
    if isinstance(settings, Mapping) and settings:
        items = [flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in settings.items()]
    elif isinstance(settings, list) and any(isinstance(part, Mapping) for part in settings):
        items = [flatten(part, f"{prefix}.{name}") for name, part in zip(_names(settings), settings)]
    else:
        return {prefix: settings}
    return {key: value for item in items for key, value in item.items()}


def _names(parts: list[Any]) -> list[str]:
    """Names of a list's parts: the class's, where no other part has it, or the place."""
    paths = [part.get("class_path") if isinstance(part, Mapping) else None for part in parts]
    return [
        path.rsplit(".", 1)[-1] if isinstance(path, str) and paths.count(path) == 1 else str(place)
        for place, path in enumerate(paths)
    ]


def check_parts(path: Any, settings: Mapping[Any, Any]) -> None:
    """Raises ValueError, with the nearest, for the first of a recipe's keys that is no part of recipes."""
    for key in settings:
        if str(key).partition(".")[0] not in (*PARTS, *WRITTEN, *INCLUDED):
            raise ValueError(
                f"{path}: Option {str(key)!r} is not accepted{nearest(str(key), PARTS)}; a recipe has"
                f" {', '.join(PARTS)}"
            )


def check_arguments(path: Any, settings: Any) -> None:
    """Raises ValueError, naming the key, where a recipe's `init_args:` has nothing below it, or a value was lost."""
    check_lost(path, settings)
    for key in _empty(settings):
        raise ValueError(f"{path}: {key} is empty; give the class's arguments below it, or leave the line out")


def check_lost(path: Any, settings: Any) -> None:
    """Raises ValueError, naming the key, where a recipe has the words that earlier releases wrote for an object."""
    for key, value in flatten(settings).items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one.startswith(UNABLE):
                raise ValueError(
                    f"{path}: {key} is {one!r}: the release that wrote this file had no text for the value; write its"
                    " class_path and init_args there by hand (of a number, the number), or leave the line out"
                )


def _empty(settings: Any, prefix: str = "") -> list[str]:
    """The dotted keys of each `init_args:` with nothing below it."""
    if isinstance(settings, list):
        return [key for place, part in enumerate(settings) for key in _empty(part, f"{prefix}.{place}")]
    if not isinstance(settings, Mapping):
        return []
    here = "class_path" in settings and "init_args" in settings and settings["init_args"] is None
    below = [
        key for name, part in settings.items() for key in _empty(part, f"{prefix}.{name}" if prefix else str(name))
    ]
    return [*([f"{prefix}.init_args"] if here else []), *below]


def texts_in(settings: Any) -> Iterator[str]:
    """All texts in nested settings but keys."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from texts_in(value)
    elif isinstance(settings, Sequence):
        for value in settings:
            yield from texts_in(value)
