"""A run's config is read before anybody is waited for: what cannot be is refused with key, value and remedy."""

import tomllib

import pytest
from flwr.app import Context, RecordDict

from fedgen.flower.app.app_sides import _client_node, run_server
from fedgen.flower.app.run_config import KEYS, check_config, run_name
from tests.flower.loopback import Loopback
from tests.flower.runs import app_of, recipe
from tests.flower.scripted import Scripted

NUMBER = "give a number from 0, without quotes"
REFUSED = {
    "a word for seconds": ({"wait": "abc"}, f"wait='abc' in the run's config: {NUMBER}"),
    "seconds before now": ({"round-deadline": -1.0}, f"round-deadline=-1.0 in the run's config: {NUMBER}"),
    "no number of seconds": ({"wait": float("nan")}, f"wait=nan in the run's config: {NUMBER}"),
    "a quoted number": ({"update-range": "0.1"}, f"update-range='0.1' in the run's config: {NUMBER}"),
    "endless": ({"range.mean": float("inf")}, f"range.mean=inf in the run's config: {NUMBER}"),
    "a truth value": ({"statistics-epsilon": True}, f"statistics-epsilon=True in the run's config: {NUMBER}"),
    "a quoted truth value": ({"secure-aggregation": "false"}, "secure-aggregation='false' .* give true or false"),
    "nobody": ({"clients": 0}, "clients=0 in the run's config: give a whole number from 1"),
    "half a client": ({"clients": 2.5}, "clients=2.5 in the run's config: give a whole number from 1"),
    "more than all": ({"least-answers": 2.0}, r"least-answers=2 in the run's config: a part .* in \(0, 1\]"),
    "no number of images": ({"most-images": 0.5}, "most-images=0.5 .* give a whole number from 0"),
    "a slip": ({"least-anwsers": 0.5}, "least-anwsers=0.5 .* no such key; did you mean least-answers"),
    "a key of nothing": ({"x": 1}, "x=1 in the run's config: there is no such key; keys are clients, .* and label-cou"),
    "a number for a place": ({"ckpt-path": 3}, "ckpt-path=3 in the run's config: give text in quotes"),
    "a place above": ({"output": "runs/.."}, r"output='runs/\.\.' in the run's config: give a folder with a name"),
    "many images": ({"label-counts": f"1, {10**30}"}, 'label-counts="1, 10+" .* of at most 12 digits'),
    "more digits": ({"label-counts": "9" * 5000}, r'label-counts="9+\.\.\." in the run\'s config: give whole numbers'),
}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return app_of(recipe(1), tmp_path_factory.mktemp("app"), 2)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_anybody_is_asked(name, app, tmp_path):
    config, said = REFUSED[name]
    node = Scripted("a")
    with pytest.raises(ValueError, match=said):
        run_server(app, Loopback({10: node}), {"clients": 1, "output": str(tmp_path), "wait": 0.0, **config})
    assert node.calls == []


def test_the_number_of_clients_is_to_be_said():
    with pytest.raises(ValueError, match="many"):
        check_config({})


def test_an_apps_own_config_has_all_keys_and_is_taken(app):
    tables = tomllib.loads((app.parents[1] / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    ranges = {f"range.{name}": value for name, value in tables.pop("range").items()}
    config = {**tables, **ranges}
    assert config.keys() == set(KEYS)
    check_config(config)
    check_config({**config, "classes": 3, "label-counts": 120, "wait": 5})  # as Flower reads them without quotes


@pytest.mark.parametrize("output", ["runs/..", "..", "/"])
def test_no_server_has_a_client_keep_its_state_elsewhere(output, app, tmp_path):
    """A client's folder of a run is named by the server."""
    own = {"data-path": str(tmp_path), "state-path": str(tmp_path / "state")}
    with pytest.raises(ValueError, match="folder"):
        _client_node(app, Context(0, 10, own, RecordDict(), {"output": output}))
    assert run_name({"output": "a/b"}) == "b"


def test_a_node_without_data_is_told_what_to_say_where_the_run_has_simulated_ones(app, tmp_path):
    with pytest.raises(ValueError, match="data"):
        _client_node(app, Context(0, 10, {}, RecordDict(), {"simulation-data": str(tmp_path)}))
