"""Damaged files of text: roles, scores, results, recipes, tables, counts of releases.

People edit these by hand and all but the last carry no checksum: that a digit or a letter became another is not to be
seen. What is asked is that a file is refused, or that what is read has its form; and that files of wrong content are
refused.
"""

import json
import shutil
from pathlib import Path

import pytest

from fedgen.clients.client import Roles, load_roles, save_roles
from fedgen.data.formats.image_folder import read_columns
from fedgen.data.sets.listed_images import read_attribute, read_identities, read_partition
from fedgen.data.sets.small_images import read_writers
from fedgen.evaluation import ScoreRecord, append_records, read_records
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.evaluation.runs.recipe_data import load_federation
from fedgen.experiments.engine.study import read_results, save_results
from fedgen.experiments.engine.trainings import read_recipe
from fedgen.experiments.ranking.paper_table import COLUMNS, read_table
from fedgen.federated.aggregators.private_mean import RELEASES, Participations
from fedgen.io.files import read_csv, read_json, read_yaml
from tests.evaluation.samples import record
from tests.fuzz.damage import Lost, fuzz, overwrite, refuses
from tests.quick import first_and_others

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
NAMES = [f"{number:06d}.jpg" for number in range(1, 21)]


def read_scores(path):
    return read_records(path)


def write_scores(path):
    own = {"per_client": [1.5, 2.5], "client_names": ["a", "b"], "terms": {"mean": 0.5, "covariance": float("inf")}}
    append_records(path, [record(round=None, generator="floor"), *(record(round=r, **own) for r in range(3))])


def write_celeba(path):
    lines = ["2", "Smiling Male", *(f"{name} {1 - 2 * (i % 2)} -1" for i, name in enumerate(NAMES))]
    path.write_text("\n".join([str(len(NAMES)), *lines[1:]]) + "\n")


def write_releases(path):
    """Of six clients, two a round; the last of five rounds was done again."""
    counts = Participations(6, 2, seed=4)
    for round in (*range(5), 4):
        counts.add(round)
    counts.save(path.parent, 1.0)


def read_releases(path):
    found = Participations(6, 2, seed=4)
    found.load(path.parent, 1.0)
    return found.rounds, found.times


def is_records(found, _):
    return all(isinstance(one, ScoreRecord) and isinstance(one.identity, tuple) for one in found)


def has_type_of(found, expected):
    return type(found) is type(expected)


def is_column(found, expected):
    return [type(one) for one in found] == [type(one) for one in expected]


def are_columns(found, expected):
    """Columns of one length; "label" is one that may be there or not."""
    return found.keys() | {"label"} == expected.keys() | {"label"} and len(set(map(len, found.values()))) == 1


def is_writers(found, _):
    return all(images.shape[1:] == (1, 28, 28) and len(images) == len(labels) for _, images, labels in found)


# name: file, writer, reader, whether what is read has its form
READERS = {
    "roles": ("split.json", lambda path: save_roles(path, Roles((0, 2), (1,), (3,)), "abcd"), load_roles, None),
    "scores": ("scores.jsonl", write_scores, read_scores, is_records),
    "results": (
        "results.json",
        lambda path: save_results(path.parent, "name", {"a": 1}, {"b": [1.0, 2.0]}),
        lambda path: read_results(path.parent, {"a": 1}),
        has_type_of,
    ),
    "recipe": ("recipe.yaml", lambda path: shutil.copy(RECIPE, path), read_recipe, lambda *_: True),
    "recipe's clients": (
        "recipe.yaml",
        lambda path: shutil.copy(RECIPE, path),
        lambda path: load_federation(path).partition.settings(),
        has_type_of,
    ),
    "run": (
        "recipe.yaml",
        lambda path: shutil.copy(RECIPE, path),
        lambda path: rebuild(path.parent)[1].partition.settings(),
        has_type_of,
    ),
    "manifest": (
        "images.csv",
        lambda path: path.write_text("path,client,label\n" + "".join(f"{i}.png,c{i % 3},l{i % 2}\n" for i in range(9))),
        read_columns,
        are_columns,
    ),
    "published table": (
        "table.csv",
        lambda path: path.write_text(
            f"# x\nclass,{','.join(COLUMNS)}\n" + "".join(f"{c},1.5,2,3,4\n" for c in "abcde")
        ),
        read_table,
        are_columns,
    ),
    "celeba partition": (
        "list_eval_partition.txt",
        lambda path: path.write_text("".join(f"{name} {i % 3}\n" for i, name in enumerate(NAMES))),
        lambda path: read_partition(path, "0"),
        lambda found, _: all(isinstance(name, str) for name in found),
    ),
    "celeba attributes": (
        "list_attr_celeba.txt",
        write_celeba,
        lambda path: read_attribute(path, "Smiling", NAMES),
        is_column,
    ),
    "celeba identities": (
        "identity_CelebA.txt",
        lambda path: path.write_text("".join(f"{name} {i * 7}\n" for i, name in enumerate(NAMES))),
        lambda path: read_identities(path, NAMES),
        is_column,
    ),
    "releases": (RELEASES, write_releases, read_releases, None),
    "femnist": (
        "all_data_0.json",
        lambda path: path.write_text(
            json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [3]}}}),
        ),
        read_writers,
        is_writers,
    ),
}
# what any reader of YAML, or of an empty list of records, takes
ANY = ("empty", "text", "web page", "git-lfs", "JSON number", "JSON null", "JSON list", "JSON object")
VALID = {"scores": ("empty",), "recipe": (*ANY, "pickle 0 with a trap")}


@pytest.mark.filterwarnings("ignore:.* the last line was cut off")
@pytest.mark.parametrize("kind", READERS)
def test_damaged_texts_are_refused_or_have_their_form(kind, tmp_path, copies):
    name, write, read, form = READERS[kind]
    write(tmp_path / name)
    fuzz(read, tmp_path / name, form, valid=VALID.get(kind, ()), copies=copies, least=200)


LOST = Lost()
ROLES = [
    *[{"version": version} for version in (LOST, 0, 2, "1", 1.0, True, None)],
    *[{key: LOST} for key in ("participating", "unparticipating", "left_out")],
    *[{"participating": part} for part in (None, 3, "02", [0, 2], [{}], [{"client": 0}], {"client": 0})],
    *[{"participating": [{"client": 0}, {"client": two}]} for two in (0, 1, 4, -1, 2.0, "2", None, True, 10**30, [2])],
    {"participating": [{"client": 2}, {"client": 0}]},
]
TEXTS = (
    "score",
    "aggregate",
    "split",
    "embedding",
    "embedding_fingerprint",
    "reference",
    "weights",
    "generator",
    "note",
)
SCORES = [
    *[{key: value} for key in TEXTS for value in (3, None, ["fid"], {"a": 1})],
    *[{key: value} for key in TEXTS[:6] for value in (LOST,)],
    *[{"value": value} for value in (LOST, None, "high", "1.5", [1.5], True, {}, 10**400)],
    *[{key: value} for key in ("num_generated", "num_clients") for value in (LOST, -1, "50", 2.5, None, True, 10**30)],
    *[{key: value} for key in ("standard_error", "error_over_clients") for value in (-0.5, "0.1", [0.1], "-inf")],
    *[{"seed": value} for value in (LOST, "0", 0.5, None, True)],
    *[{"round": value} for value in (-2, "3", 1.5, True, [1], 10**30)],
    *[{"checkpoint": value} for value in (3, ["a"], True)],
    *[{"higher_is_better": value} for value in ("yes", 1, 0.0, [])],
    *[{key: value} for key in ("optimised_on", "client_names") for value in (None, "vgg16", [3], {"a": 1}, [None])],
    *[{key: value} for key in ("per_client", "per_client_errors") for value in (None, "1, 2", ["a", "b"], [[1], [2]])],
    *[{key: value} for key in ("terms", "error_parts") for value in (None, [1], {"mean": "a"}, {"mean": None})],
    *[{key: value} for key in ("embedding_settings", "score_settings", "sampling") for value in (None, [], "x", 3)],
    {"client_names": ["a"]},
    {"per_client_errors": [0.1, 0.2, 0.3]},
]
RESULTS = [{key: value} for key in ("settings", "numbers") for value in (LOST, None, [], 3, "x")]
RESULTS += [{"settings": settings} for settings in ({}, {"a": 2}, {"a": "1"}, {"a": 1, "b": 2}, {"b": 1})]
WRITERS = [
    *[{key: value} for key in ("users", "user_data") for value in (LOST, None, 3, ["b"], "b")],
    *[{"user_data": {"a": value}} for value in (None, [], {}, {"x": []}, {"x": [[0.5] * 784]}, {"x": [], "y": [3]})],
    *[{"user_data": {"a": {"x": [[0.5] * 783 + [value]], "y": [3]}}} for value in (-1, 1.5, "a", None, [0], 10**400)],
    *[{"user_data": {"a": {"x": [[0.5] * size], "y": [3]}}} for size in (783, 785, 0)],
    *[{"user_data": {"a": {"x": [[0.5] * 784], "y": value}}} for value in ([62], [-1], [1.5], ["3"], [3, 3], 3, None)],
]
CHANGES = {"roles": ROLES, "scores": SCORES, "results": RESULTS, "femnist": WRITERS}


@pytest.mark.parametrize(("kind", "changes"), first_and_others(CHANGES))
def test_whole_texts_of_wrong_content_are_refused(kind, changes, tmp_path):
    name, write, read, _ = READERS[kind]
    path = tmp_path / name
    write(path)
    *first, last = path.read_text().splitlines() if kind == "scores" else [path.read_text()]
    for change in changes:
        changed = {key: value for key, value in (json.loads(last) | change).items() if value is not LOST}
        path.write_text("\n".join([*first, json.dumps(changed)]) + "\n")
        refuses(read, path, what=change)


@pytest.mark.filterwarnings("ignore:.* the last line was cut off")
def test_a_file_that_holds_no_record_is_neither_read_nor_cut_to_take_one(tmp_path):
    path = tmp_path / "scores.jsonl"
    for content in (b"PK\x03\x04 an archive", b"\x00" * 100, b"hello", b"hello\nhello", b'["fid"]'):
        path.write_bytes(content)
        for use in (read_records, lambda path: append_records(path, [record()])):
            with pytest.raises(ValueError, match=r"scores\.jsonl(, line 1)? is not a (file of score records|score)"):
                use(path)
        assert path.read_bytes() == content


TABLES = [
    *['a,b\n"1,2\n3,4\n', 'a,b\n1,"2"x\n', "a,b\n1,2,3\n", "a,b\n1\n", "a,a\n1,2\n", "a,b\n" + "x" * 200_000 + ",2\n"],
]


def test_tables_that_would_lose_rows_or_fields_are_refused(tmp_path):
    """A quote that is never closed swallows all rows behind it."""
    for text in TABLES:
        (tmp_path / "a.csv").write_text(text)
        refuses(read_csv, tmp_path / "a.csv", what=text)


NO_TEXT, DEEP = (b"\xff\xfe\xfa", b"a\n\xc3\x28"), b"[\n" * 50_000


@pytest.mark.slow
def test_text_that_is_none_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    for read, contents in ((read_json, (*NO_TEXT, DEEP)), (read_yaml, (*NO_TEXT, DEEP)), (read_csv, NO_TEXT)):
        for content in contents:
            path.write_bytes(content)
            refuses(read, path, what=content)


def test_a_recipe_that_names_an_object_or_itself_is_refused(tmp_path):
    path = tmp_path / "a.yaml"
    path.touch()
    for text in ("a: !!python/object/apply:os.getcwd []", "a: !!python/name:os.system", "a: &a [*a]", "a: b: c"):
        overwrite(path, text.encode())
        refuses(read_yaml, path)
    overwrite(path, b"a: &a {b: 1}\nc: *a\n")
    assert read_yaml(path) == {"a": {"b": 1}, "c": {"b": 1}}
