"""Entries of the suite `tiny` written by hand, without a training."""

import json
from pathlib import Path

from fedgen.benchmark.claims import claims_of
from fedgen.benchmark.suite import DATA, TINY
from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.experiments.engine.trainings import fingerprint

FEDERATED, LOCAL, CENTRALISED = (cell.name for cell in TINY.cells)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def make_record(embedding, aggregate, value, seed=0, floor=False, **changes):
    """A score on held-out images of the suite's last round."""
    options = {
        "standard_error": 0.0,
        "split": "report",
        "embedding": embedding,
        "embedding_fingerprint": f"of {embedding}",
        "reference": "digits/train held out, 10 clients, 896 images",
        "num_generated": DATA["digits"].num_images,
        "num_clients": 10,
        "seed": seed,
        "round": None if floor else TINY.cells[0].budget.rounds - 1,
        "generator": "floor" if floor else "model",
        "error_parts": {"generated": 0.0, "real": 0.0},
        **changes,
    }
    return ScoreRecord(options.pop("score", "fid"), aggregate, value, **options)


def make_records(seed, ratio, control=None):
    """A run whose scores are all so many times the floor, its recall and coverage, and audits that find no memory."""
    keys = [(embedding, aggregate) for embedding in DATA["digits"].embeddings for aggregate in ("avg", "all")]
    first, floor, note = (keys[0][0], "all"), 2.0, {"note": LOCAL_NOTE if control == "local_only" else ""}
    scores = [make_record(*key, ratio * floor, seed, **note) for key in keys]
    floors = [make_record(*key, floor, seed, floor=True) for key in keys]
    beside = {"recall": 0.5, "coverage": 0.6}
    scores += [make_record(*first, value, seed, score=score, **note) for score, value in beside.items()]
    audit = {"split": "train", "reference": "digits/train, 10 clients, 901 images"}
    found = {"memorisation": 0.51, "authenticity": 0.44, "fld": 3.0, "mifid": 70.0}
    audits = [make_record(*first, value, seed, score=score, **audit, **note) for score, value in found.items()]
    floors += [
        make_record(*first, value, seed, score=score, floor=True, **audit)
        for score, value in {"authenticity": 0.46, "mifid": 20.0}.items()
    ]
    return [*scores, *floors, *audits]


def make_cost(control=None, **changes):
    """The costs of a run of five clients in each of 30 rounds, or of two iterations on pooled images."""
    made = {"turns": 60 if control == "centralised" else 150, "message_bytes": 2000 if control is None else 0}
    return {**made, "client_seconds": 12.0, "peak_memory": 800_000_000, **changes}


def make_attack(seed=0):
    """Membership inference on two clients, one of whose models tells twice as much as the other's."""
    clients = [("client a", 0.2 + seed / 100), ("client b", 0.1 + seed / 100)]
    return {"signal": "critic", "clients": [make_attack_on(*client) for client in clients]}


def make_attack_on(name, advantage):
    own = {"value": advantage, "low": advantage - 0.03, "high": advantage + 0.04}
    return {"name": name, "pairs": 90, "auc": {"value": 0.55, "low": 0.45, "high": 0.65}, "advantage": own}


def make_form(cell=FEDERATED, ratios=(2.0, 2.0), suite=TINY, **changes):
    """The contents of an entry's file: a run a ratio."""
    own = suite.cell(cell)
    runs = [make_records(seed, ratio, own.control) for seed, ratio in enumerate(ratios)]
    costs = [make_cost(own.control) for _ in ratios]
    attacks = [make_attack(seed) for seed, _ in enumerate(ratios)]
    machine = {"system": "Linux", "architecture": "x", "processor": "y", "cores": 2, "memory": 8_000_000_000}
    recipe = own.recipe()
    form = {
        "format": 2,
        "suite": suite.name,
        "cell": cell,
        "beside": cell,
        "own": None,
        "recipe": recipe,
        "recipe_hash": fingerprint(recipe),
        "seeds": list(range(len(ratios))),
        "provenance": {"fedgen": "1.0", "commit": None, "versions": {"torch": "2"}, "machine": machine},
        "runs": [
            {"seed": seed, "records": [record.to_json() for record in run], "membership": attack, "costs": cost}
            for seed, (run, attack, cost) in enumerate(zip(runs, attacks, costs))
        ],
        "claims": claims_of(own, runs, attacks, costs),
        "samples": PIXEL,
        "nearest": PIXEL,
    }
    return {**form, **changes}


def write_form(folder: Path, form=None, **options) -> Path:
    """The file of an entry in a folder of results."""
    form = form or make_form(**options)
    path = folder / "entries" / f"{form['cell'].replace('/', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(form))
    return path
