"""Text from strangers (files, records, clients) made fit for a terminal and for a message."""

import unicodedata
from collections.abc import Iterable

_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the order or the look of other text, or show nothing."""


def printable_lines(text: str) -> str:
    """A text of several lines, each as `printable` shows it, in full; tabs and ends of lines stay."""
    hidden = [character for character in set(text) - set("\n\t") if is_hidden(character)]
    return text.translate({ord(character): ascii(character)[1:-1] for character in hidden}) if hidden else text


def printable(text: str, limit: int = 200) -> str:
    """A text on one line of at most `limit` characters, hidden ones as escapes ("\\x1b"), cut by "..."."""
    if len(text) <= limit and text.isprintable():  # which nothing hidden is
        return text
    shown = "".join(ascii(one)[1:-1] if is_hidden(one) else one for one in text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits, which `int` takes: thousands it refuses."""
    return text.isascii() and text.isdigit() and len(text) < 19


def is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN


def listed(parts: Iterable[object], most: int = 5) -> str:
    """Different parts with commas between, and of more than `most` how many there are."""
    words = list(dict.fromkeys(map(str, parts)))
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
