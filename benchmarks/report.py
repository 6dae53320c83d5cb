"""One JSON line per figure of a benchmark."""

import json


def report(name: str, value: float, unit: str, limit: float | None = None) -> bool:
    """Prints {"name", "value", "unit", "limit", "within"}; returns whether the value is within its limit, if any."""
    within = limit is None or value <= limit
    print(
        json.dumps({"name": name, "value": float(f"{value:.5g}"), "unit": unit, "limit": limit, "within": within}),
        flush=True,
    )
    return within
