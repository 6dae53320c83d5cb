"""The measures of the package: calls and files on the ways through it, lines and files of its rooms, circles.

The ways are those of `benchmarks.house.traces`: the third round of two clients' three steps, of a linear model and of
the quickstart's WGAN-GP, an FID with errors of a generated set to four clients and their pool, and an evaluation.
"""

from collections.abc import Iterator

from benchmarks.house.budgets import ROOMS
from benchmarks.house.source_counts import (
    count_lines,
    find_circles,
    import_graph,
    lonely_protocols,
    read_sources,
    room_of,
)
from benchmarks.house.traces import (
    CLIENTS,
    ROOT,
    ROUNDS,
    STEPS,
    Stretch,
    Trace,
    trace_evaluation,
    trace_gan,
    trace_linear,
    trace_score,
)

FIRST = (ROUNDS - 1) * CLIENTS * STEPS  # the number of the last round's first step


def measure_all() -> tuple[dict[str, int], dict[str, Stretch]]:
    """Each measure by its name; and the traced ways by theirs."""
    traces = {"linear": trace_linear(), "WGAN-GP": trace_gan()}
    ways = {f"{way}, {name}": found for name, trace in traces.items() for way, found in _ways(trace).items()}
    ways["an FID with errors"] = trace_score()
    steps = [depth for name, _, depth in traces["linear"].marks if name == "step"]
    found = {"the package's frames at the user's step": max(steps[FIRST:])}
    ways["images to fid_all"], frames, files = trace_evaluation()
    found |= {"the evaluation's frames at model.sample": frames, "the evaluation's files at model.sample": files}
    for name, way in ways.items():
        found |= {f"calls: {name}": len(way.calls), f"files: {name}": len(way.files)}
    found["depth: an FID with errors"] = ways["an FID with errors"].depth
    return found | dict(_of_source()), ways


def _ways(trace: Trace) -> dict[str, Stretch]:
    """The ways of one training.

    A further batch: after a step of the module to the next step of the same turn. A round: from the end of the round
    before to its own, the module's hooks `on_train_epoch_end`. The set-up: `Trainer.fit` to the first round.
    """
    return {
        "a further batch": trace.between(("after step", FIRST), ("step", FIRST + 1)),
        "a round's start to its first step": trace.between(("end of round", ROUNDS - 2), ("step", FIRST)),
        "a round": trace.between(("end of round", ROUNDS - 2), ("end of round", ROUNDS - 1)),
        "the set-up": trace.between(("fit", 0), ("round", 0)),
    }


def _of_source() -> Iterator[tuple[str, int]]:
    """Counts of the source: of each group of rooms, and of all."""
    sources, lines = read_sources(ROOT), count_lines(ROOT)
    circles = find_circles(import_graph(sources, "fedgen"))
    for title, rooms in {**ROOMS, "all rooms": {room_of(file) for file in lines}}.items():
        own = [file for file in lines if room_of(file) in rooms]
        yield f"files: {title}", len(own)
        yield f"lines: {title}", sum(lines[file] for file in own)
        yield f"circles: {title}", sum(any(room_of(file) in rooms for file in circle) for circle in circles)
    yield "protocols with one implementation", len(lonely_protocols(sources))
