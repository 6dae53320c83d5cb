"""Entries whose claims are not what their stored runs show, or that were made otherwise than the suite says."""

import copy
import json
import math

import pytest

from fedgen.benchmark.claims import check
from fedgen.benchmark.entry import entry_files, read_entry
from fedgen.benchmark.suite import SMALL
from fedgen.experiments.engine.trainings import fingerprint
from tests.benchmark.entry_files import FEDERATED, LOCAL, make_form, write_form


def test_the_attack_is_the_mean_over_clients_and_runs(tmp_path):
    """Clients of 0.2 and 0.1, and 0.01 more with the second seed; ends at -0.03 and +0.04 of each, in squares."""
    attack = read_entry(write_form(tmp_path)).claims["attack"]
    down, up = (math.hypot(end, end) / 2 for end in (0.03, 0.04))
    assert attack == pytest.approx({"value": 0.155, "low": 0.155 - down, "high": 0.155 + up})


def test_an_honest_entry_is_read_back(tmp_path):
    entry = read_entry(write_form(tmp_path))
    check(entry)
    assert (entry.name, entry.task, entry.parts) == (FEDERATED, ("tiny", "digits/by-class"), ("wgan-gp", "fedavg"))
    assert entry.claims["number"] == pytest.approx(2.0)
    assert entry.claims["sent_bytes"] == 300 * 1000
    audits = {"memorisation": 0.51, "authenticity": 0.44, "authenticity floor": 0.46, "fld": 3.0}
    assert entry.claims["beside"] == {"recall": 0.5, "coverage": 0.6, **audits, "mifid": 70.0, "mifid floor": 20.0}


def change(form, keys, value):
    """A copy with one value changed; of a function, the value that it makes of the old one."""
    changed = copy.deepcopy(form)
    place = changed
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value(place[keys[-1]]) if callable(value) else value
    return changed


def rehashed(form):
    return {**form, "recipe_hash": fingerprint(form["recipe"])}


def without(score, generator="model"):
    return lambda records: [one for one in records if (one["score"], one["generator"]) != (score, generator)]


RUN = ("runs", 1)
RECORD, RECALL, FLOOR, AUDIT = ((*RUN, "records", place) for place in (0, 6, 8, 16))
LIES = {
    "a better number": (("claims", "number"), 1.5, "it claims number 1.5, and its stored records show 2"),
    "a narrower interval": (("claims", "high"), 1.0, "it claims high 1, and its stored records show 2"),
    "a better part": (("claims", "parts", "all"), 1.0, "it claims parts.all 1, and its stored records show 2"),
    "no number": (("claims", "number"), None, "it claims number nothing, and its stored records show 2"),
    "fewer bytes": (("claims", "sent_bytes"), 1, "it claims sent_bytes 1, and its stored records show 300000"),
    "less time": (("claims", "client_seconds"), 1.0, "it claims client_seconds 1, and"),
    "less memory": (("claims", "peak_memory"), 1, "it claims peak_memory 1, and"),
    "another score": (("claims", "beside", "coverage"), 1.0, "it claims beside.coverage 1, and its .* show 0.6"),
    "a score that nobody measured": (
        ("claims", "beside", "kid"),
        1.0,
        "it claims beside.kid 1, and its .* show nothing",
    ),
    "less memory of images": (("claims", "beside", "memorisation"), 0.5, "it claims beside.memorisation 0.5, and"),
    "a weaker attack": (
        ("claims", "attack", "value"),
        0.0,
        "it claims attack.value 0, and its stored records show 0.155",
    ),
    "an attack of one client alone": (
        (*RUN, "membership", "clients"),
        lambda clients: clients[:1],
        "it claims attack.high 0.183284, and its stored records show",
    ),
    "two values to choose from": (
        (*RUN, "records"),
        lambda records: [{**records[6], "value": 0.9}, *records],
        "the model's recall_all in efficientnet-lite0-32 of seed 1 is there 2 times",
    ),
    "an embedding of one's own": (
        (*RUN, "records"),
        lambda records: [{**records[6], "embedding": "mine"}, *records],
        r"it was scored in \[.*'mine'.*\], not \('efficientnet-lite0-32', ",
    ),
    "no recall": ((*RUN, "records"), without("recall"), "seed 1 has no model's recall_all in efficientnet-lite0-32"),
    "no coverage": ((*RUN, "records"), without("coverage"), "seed 1 has no model's coverage_all in"),
    "no audit": ((*RUN, "records"), without("memorisation"), "seed 1 has no model's memorisation_all in"),
    "no audit of real images": ((*RUN, "records"), without("mifid", "floor"), "seed 1 has no floor's mifid_all in"),
    "a floor of a round": ((*FLOOR, "round"), 3, "seed 1 has records of other scores, splits or rounds"),
    "an audit of other images' split": ((*AUDIT, "split"), "report", "records of other scores, splits or rounds"),
    "a better record": ((*RECORD, "value"), 1.0, "it claims high 2, and its stored records show"),
    "another round": ((*RECORD, "round"), 3, "seed 1 has records of other scores, splits or rounds than the last one"),
    "another split": ((*RECORD, "split"), "train", "records of other scores, splits or rounds"),
    "more images": ((*RECORD, "num_generated"), 9000, "fid_avg of seed 1 is of seed 1 and 9000 images, not 890"),
    "another seed's images": ((*RECORD, "seed"), 0, "fid_avg of seed 1 is of seed 0"),
    "a loss of the number": (
        (*RECORD, "optimised_on"),
        ["efficientnet-lite0-32"],
        "a loss of its training used efficientnet-lite0-32, which the number is made of, too",
    ),
    "one seed left out": (("runs",), lambda runs: runs[:1], r"its runs have the seeds \[0\], the suite \[0, 1\]"),
    "a seed twice": ((*RUN, "seed"), 0, r"its runs have the seeds \[0, 0\], the suite \[0, 1\]"),
    "another suite": (("suite",), "mine", "there is no suite 'mine'"),
    "another cell": (("beside",), "digits/iid/wgan-gp/fedavg", "suite tiny of this fedgen has no cell digits/iid"),
    "another name": (("cell",), LOCAL, f"its parts are those of {FEDERATED}"),
    "another recipe's hash": (("recipe_hash",), "0", "its recipe is not the one that recipe_hash stands for"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_the_entrys_name(lie, tmp_path):
    keys, value, said = LIES[lie]
    form = change(make_form(), keys, value)
    entry = read_entry(write_form(tmp_path, form))
    with pytest.raises(ValueError, match=rf"^entry {form['cell']} \(.*json\) is refused: .*{said}"):
        check(entry)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("recipe", "trainer", "max_epochs"), 6000),
        (("recipe", "model", "init_args", "n_critic"), 5),
        (("recipe", "data", "init_args", "held_out"), 0.1),
        (("recipe", "trainer", "strategy", "init_args", "cohort_size"), 10),
    ],
)
def test_another_recipe_than_the_suites_is_refused_with_the_key(keys, value, tmp_path):
    entry = read_entry(write_form(tmp_path, rehashed(change(make_form(), keys, value))))
    with pytest.raises(ValueError, match=rf"not that of the suite's cell .*: {'.'.join(keys[1:])} is {value}, there"):
        check(entry)


def own_form(slot, part, name, **options):
    """The form of an entry of a class of one's own."""
    form = copy.deepcopy(make_form(**options))
    place = form["recipe"] if slot == "model" else form["recipe"]["trainer"]["strategy"]["init_args"]
    place[slot] = part
    return rehashed({**form, "cell": name, "own": {"class_path": "my_kit.Mine", "slot": slot}})


def test_an_own_class_changes_its_place_in_the_recipe_and_nothing_else(tmp_path):
    part = {"class_path": "my_kit.Mine", "init_args": {"image_size": 8}}
    for slot, name in (("model", "my_kit.Mine/fedavg"), ("client_algorithm", "wgan-gp/my_kit.Mine")):
        form = own_form(slot, part, f"digits/by-class/{name}")
        check(read_entry(write_form(tmp_path / slot, form)))
        longer = rehashed(change(form, ("recipe", "trainer", "max_epochs"), 70))
        with pytest.raises(ValueError, match="max_epochs"):
            check(read_entry(write_form(tmp_path / slot, longer)))
    other = own_form("model", {"class_path": "my_kit.Other"}, "digits/by-class/my_kit.Mine/fedavg")
    with pytest.raises(ValueError, match="my_kit"):
        check(read_entry(write_form(tmp_path, other)))


@pytest.mark.parametrize("slot", ["model", "client_algorithm"])
def test_an_own_class_stands_beside_a_cell_that_the_suite_gives_it(slot, tmp_path):
    name = "wgan-gp/my_kit.Mine" if slot == "client_algorithm" else "my_kit.Mine/local"
    form = own_form(slot, {"class_path": "my_kit.Mine"}, f"digits/by-class/{name}", cell=LOCAL)
    with pytest.raises(ValueError, match=f"an own {slot} stands beside {FEDERATED}, not {LOCAL}"):
        check(read_entry(write_form(tmp_path, form)))


def test_an_own_generator_stands_beside_the_first_cell_of_averaging_of_a_task(tmp_path):
    second = {"cell": "digits/by-class/ddpm/fedavg", "suite": SMALL, "ratios": (2.0, 2.0, 2.0)}
    form = own_form("model", {"class_path": "my_kit.Mine"}, "digits/by-class/my_kit.Mine/fedavg", **second)
    with pytest.raises(ValueError, match="stylegan2"):
        check(read_entry(write_form(tmp_path, form)))


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("format",), 1, "is no entry of the benchmark in format 2: its format is 1"),
        (("seeds",), "0", "has seeds, which is '0'"),
        (("claims", "number"), -1.0, "has claims, which has number, which"),
        (("runs", 0, "costs", "turns"), -1, "has runs, which is .* where one has costs, which has turns"),
        (("runs", 0, "membership", "signal"), "guess", "has membership, which has signal, which is 'guess'"),
        (("runs", 0, "membership", "clients", 0, "advantage", "high"), 2, "has high, which is 2 and is not -1 to 1"),
        (("nearest",), "https://x/y.png", "has nearest, which is .* picture in a data URI"),
        (("samples",), "https://x/y.png", "has samples, which is .* picture in a data URI"),
        (("samples",), 'data:image/png;base64,"><script>', "has samples, which is .* picture in a data URI"),
        (("beside",), "a/b", "'a/b' names no cell"),
        (("own",), {"class_path": "a b", "slot": "model"}, "has own, which has class_path, which is .* no class path"),
        (
            ("own",),
            {"class_path": "a.B", "slot": "trainer"},
            "has own, which has slot, which is 'trainer'",
        ),
        (("provenance", "machine"), {}, "has provenance, which has machine"),
        (
            ("provenance", "commit"),
            "my best one",
            "has commit, which is 'my best one' and is no commit of 40 hex digits",
        ),
        (("runs", 0, "records", 0, "value"), "much", "not a score record: its value"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_field(keys, value, said, tmp_path):
    path = write_form(tmp_path, change(make_form(), keys, value) if keys != ("beside",) else make_form(beside=value))
    with pytest.raises(ValueError, match=said) as refused:
        read_entry(path)
    assert str(path) in str(refused.value)


def test_results_are_folders_or_files(tmp_path):
    path = write_form(tmp_path / "a")
    assert entry_files([tmp_path / "a", path, tmp_path / "a" / "entries"]) == [path]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="entries"):
        entry_files([tmp_path / "empty"])
    (tmp_path / "other.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="benchmark"):
        read_entry(tmp_path / "other.json")
