"""Numbers as the kit prints them, by one rule in tables, sentences, figures and pages (there `formatted`)."""

import math

SMALL, LARGE = 1e-4, 1e6  # between these nothing is in scientific notation


def say_number(value: float, error: float | None = None, digits: int = 4) -> str:
    """ "12.34±0.56": an error to two digits and the value to the error's last; a value alone to `digits` of them."""
    if not math.isfinite(value) or error == 0 or (error is not None and not math.isfinite(error)):
        error = None
    size = max(abs(value), error or 0.0)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    if not SMALL <= size < LARGE:
        return f"{value:.{digits - 1}g}" if error is None else f"{value:.2e}±{error:.1e}"
    if error is None:
        text = f"{value:z.{_places(value, digits)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    places = _places(error, 2)
    return f"{value:z.{places}f}±{error:.{places}f}"


def say_interval(low: float, high: float, *, sign: str = "") -> str:
    """ "1.80 to 2.20": both ends to two digits of half their distance; with `sign` "+" positive ones show theirs."""
    half = (high - low) / 2
    if not SMALL <= half < LARGE:
        return f"{low:{sign}.3g} to {high:{sign}.3g}"
    places = _places(half, 2)
    return f"{low:{sign}z.{places}f} to {high:{sign}z.{places}f}"


def _places(number: float, digits: int) -> int:
    """Decimal places that leave a number so many digits, as it is rounded; none where it has more before the point."""
    return max(0, digits - 1 - int(f"{number:.{digits - 1}e}".partition("e")[2]))
