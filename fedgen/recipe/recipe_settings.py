"""A recipe's complete settings as the plain values that a run keeps."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from fedgen.recipe.recipe_keys import UNABLE

PLAIN = (bool, int, float, str)
_LOST = object()


def plain_settings(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """The complete settings as plain values that the parser reads back to the same.

    jsonargparse has no text for some values (a number under the annotation `numbers.Number`, an object that is a
    constructor's default), and reads others back as their names (a function as a default without an annotation). A
    number stays as it was written; an argument whose value no text stands for is left out, so that it has its default
    again: what is written in a recipe always has a text.
    """
    with warnings.catch_warnings(), _text_for_anything():
        warnings.filterwarnings("ignore", message=r"\s*(Unable to serialize|Dump of a value that does not round-trip)")
        dumped = yaml.safe_load(parser.dump(config, skip_unset=False, format="yaml"))
    settings = _kept(dumped, config, dumped, _has_no_text)
    again = parser.parse_object(copy.deepcopy(settings))  # it changes what it is given
    return dict(_kept(settings, config, again, _reads_otherwise))


@contextmanager
def _text_for_anything() -> Iterator[None]:
    """Lets PyYAML write what it has no text for, such as objects in a list without annotation, as jsonargparse does."""
    known = yaml.SafeDumper.yaml_representers
    own = {None: lambda dumper, value: dumper.represent_str(f"{UNABLE}{value}")}
    yaml.SafeDumper.yaml_representers = {**known, **own}
    try:
        yield
    finally:
        yaml.SafeDumper.yaml_representers = known


def _kept(text: Any, own: Any, again: Any, is_lost: Callable[[Any, Any], bool]) -> Any:
    """The plain value for a setting, or `_LOST`.

    Args:
        text: the plain value so far.
        own: the setting's value.
        again: the plain value, or what it is read back to.
        is_lost: whether that, beside the setting's value, does not stand for it.
    """
    if isinstance(text, dict) and isinstance(own, (dict, Namespace)) and isinstance(again, (dict, Namespace)):
        parts = {key: _kept(part, own.get(key), again.get(key), is_lost) for key, part in text.items()}
        kept = {key: part for key, part in parts.items() if part is not _LOST}
        return kept if isinstance(own, Namespace) or len(kept) == len(parts) else _LOST  # an argument is kept whole
    if isinstance(text, list) and isinstance(own, list) and isinstance(again, list):
        items = [_kept(*three, is_lost) for three in zip(text, own, again, strict=True)]
        return _LOST if any(item is _LOST for item in items) else items
    if not is_lost(again, own):
        return text
    return own if type(own) in PLAIN else _LOST


def _has_no_text(text: Any, own: Any) -> bool:
    return isinstance(text, str) and text.startswith(UNABLE) and not isinstance(own, str)


def _reads_otherwise(again: Any, own: Any) -> bool:
    return not _same(own, again)


def _same(own: Any, again: Any) -> bool:
    """Whether two values are of one type and mean the same; arrays, which answer for each element, do not."""
    if type(own) is not type(again):
        return False
    same = own is again or own == again
    return same is True or (isinstance(own, float) and own != own)
