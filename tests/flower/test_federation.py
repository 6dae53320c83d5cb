"""A recipe on a real SuperLink and SuperNodes: TLS, authenticated nodes, each client's folder its own.

Two runs show what a loopback cannot: a run that goes on, in which a node vanishes, and one of sums under masks, for
which that node is back.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedgen.evaluation import read_records
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from tests.flower.federation import Federation, wait_for
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import HIDDEN, app_of, read, recipe, same_weights, simulate, write_images

SCORES = {"every_n_rounds": 10, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid"]}
ADAM = {"class_path": "fedgen.federated.FedAdam", "init_args": {"lr": 0.01}}
VARIANT = {"cohort_size": 2, "personal": ["critic.*"], "optimizer_state": "keep", "server_optimizer": ADAM}
NUMBERED = {"partition-id": 0, "num-partitions": 2, "name": None}  # what Flower's simulation tells a node


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


@pytest.fixture(scope="module")
def federation(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with Federation(folder, {name: images / name for name in "abc"}) as running:
        yield running


def app(rounds, folder, evaluation=None, **strategy):
    """The folder of a recipe's app."""
    return app_of(recipe(rounds, evaluation, **strategy), folder, 3).parent.parent


def begin(images, folder, output):
    """The first round, over a loopback of nodes that keep what the real ones find; the server loses what was told."""
    path, run = app(1, folder, SCORES, **VARIANT) / "federation" / "recipe.yaml", {"clients": 3, "output": str(output)}
    own = {number: {"name": name, "data-path": str(images / name)} for number, name in enumerate("abc", 10)}
    run_server(path, Loopback({number: Node(client_app(path), config, run) for number, config in own.items()}), run)
    shutil.rmtree(output / "told")


@pytest.fixture(scope="module")
def went_on(federation, images, tmp_path_factory):
    """The output of a run's second round, in whose turn b's node is killed, and what it said."""
    folder = tmp_path_factory.mktemp("run")
    output = folder / "run"
    begin(images, folder / "one", output)
    before = federation.log("b").count("Receiving: train message")
    options = {"output": str(output), "round-deadline": 20.0}
    with ThreadPoolExecutor() as pool:
        run = pool.submit(federation.run, app(2, folder / "two", SCORES, **VARIANT), **options)
        wait_for(lambda: run.done() or federation.log("b").count("Receiving: train message") > before)
        federation.kill("b")
        return output, run.result(timeout=600)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
def test_a_deployed_recipe_goes_on_as_its_simulation_without_a_node_that_vanishes(
    federation, went_on, images, tmp_path
):
    """Clients a and c trained in the first round, a and b in the second: server and clients went on from others'."""
    output, said = went_on
    assert "3 clients: a, b, c" in said, said[-3000:]
    assert "after round 0 (1 done)" in " ".join(said.split())
    for name in "ac":  # one process for all messages of a run
        assert federation.log(name).count("a worker answers") == 1
    settings = recipe(2, SCORES, **VARIANT)
    settings["trainer"]["callbacks"].append({"class_path": "tests.flower.test_flower_strategy.FailsInRoundOne"})
    simulated, found = simulate(settings, images, tmp_path / "simulated"), read(output)
    assert [(one["round"], one["name"]) for one in found["fedavg"]["left_out"]] == [(1, "b")]
    # on a busy machine Flower may say first that no heartbeat came
    assert found["fedavg"]["left_out"][0]["reason"].endswith(("it did not answer within 20 seconds", "interval."))
    assert found["epoch"] == 1
    assert found["fedavg"]["iterations"] == simulated["fedavg"]["iterations"]
    assert found["fedavg"]["iterations"][0] == 2 * 3
    same_weights(simulated, found)
    scores = [
        {(r.split, r.name): r.value for r in read_records(run / "scores.jsonl") if r.round == 1 and r.is_model}
        for run in (output, tmp_path / "simulated")
    ]
    assert {name for _, name in scores[0]} == {"fid_avg", "fid_all", "fid_worst"}
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


@pytest.fixture(scope="module")
def masked(federation, went_on, images, tmp_path_factory):
    """The output of a run under masks, what it said, and a folder of images that it named; b is started again before.

    A further node says by the keys that Flower's simulation sets which client it is, and nothing of its data.
    """
    folder = tmp_path_factory.mktemp("masked")
    named = shutil.copytree(images / "a", folder / "clients" / "a").parent
    federation.clients["d"] = NUMBERED
    federation.make_key("d")
    federation.register("d")
    federation.start_node("d")
    while federation.connections("b") < 2:  # the SuperLink takes it back when it has missed the one before for a while
        federation.start_node("b")
        wait_for(lambda: federation.connections("b") == 2 or federation.processes["b"].poll() is not None, 60)
        if federation.connections("b") < 2:
            federation.kill("b")
    wait_for(lambda: federation.connections("d"), 60)
    told = {"output": str(folder / "run"), "simulation-data": str(named), **HIDDEN}
    return folder / "run", federation.run(app(1, folder / "app"), **told), named


@pytest.mark.slow
def test_weights_are_summed_under_masks_and_a_node_that_vanished_before_takes_part(masked, images, tmp_path):
    """A step of the weights is 2^-22 of the range 0.5, for each of three clients."""
    output, said, _ = masked
    found = read(output)
    assert found["fedavg"]["left_out"] == [], said[-3000:]
    same_weights(simulate(recipe(1), images, tmp_path / "simulated"), found, atol=6 * 2 * 0.5 / 2**22, interval=3)


@pytest.mark.slow
def test_a_node_that_says_only_which_client_it_is_takes_no_folder_from_the_run(masked):
    """The server names a folder on the node's disk."""
    _, said, named = masked
    assert "this node's config does not say where its data lie" in " ".join(said.split()), said[-3000:]
    assert "3 clients: a, b, c" in said
    assert not list(named.glob(".*"))  # what a client keeps between turns


@pytest.mark.slow
def test_a_node_whose_key_is_not_registered_is_refused(federation, images):
    federation.clients["stranger"] = images / "a"
    try:
        federation.make_key("stranger")
        federation.start_node("stranger")
        wait_for(lambda: "stranger" not in federation.processes or federation.processes["stranger"].poll() is not None)
        assert federation.processes["stranger"].returncode != 0
    finally:
        federation.kill("stranger")
        del federation.clients["stranger"]
