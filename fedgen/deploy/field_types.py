"""Whether what came for a message's field is what the field's annotation says."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from fedgen.files import is_count


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value has a type; whole numbers are counts, and no truth value is a number.

    Args:
        value: from a stranger.
        hint: a field's annotation: Any, Tensor, a plain type, or a tuple, list, dict, Mapping or Sequence of such.
    """
    parts, origin = get_args(hint), get_origin(hint)
    if hint is Any:
        return True
    if hint is int:
        return is_count(value)
    if hint is float:
        return type(value) is float or is_count(value)
    if hint is str:
        return type(value) is str and value.encode(errors="replace").decode() == value  # no half of a surrogate pair
    if origin is None:
        return type(value) is hint  # exactly: what a subclass of tensors says of itself is its own
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(key, parts[0]) and conforms(item, parts[1]) for key, item in value.items()
        )
    kinds = (list, tuple) if origin is Sequence else (origin,)
    return isinstance(value, kinds) and all(conforms(item, parts[0]) for item in value)
