"""Several processes share an evaluation's work, and scores are those of one to the last bit."""

import json

import pytest

from tests.launched import Imported, end

CHUNKS = 2 * 3  # of 100 images: 260 for each of two splits, before training and after it


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the same evaluation on one process and on three."""
    found, script = {}, Imported("tests.evaluation.rank_scores")
    for devices in (1, 3):
        found[devices] = tmp_path_factory.mktemp(f"ranks-{devices}")
        end(script.start(devices, found[devices], ranks=devices))
    return found


def records(folder):
    found = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("time", "seconds")} for record in found]


def of_no_training(record):
    """Whether it is of real images or of the first weights, which are the same everywhere to the last bit."""
    return record["generator"] == "floor" or record["round"] == -1


@pytest.mark.slow
def test_scores_are_those_of_one_process(folders):
    one, several = records(folders[1]), records(folders[3])
    assert {record["generator"] for record in one} == {"model", "floor"}
    before = [record for record in one if of_no_training(record)]
    assert len(before) >= 2 * 6 * 3
    assert [record for record in several if of_no_training(record)] == before
    after = [[record["value"] for record in of if not of_no_training(record)] for of in (one, several)]
    assert len(after[0]) == 2 * 6 * 3
    assert after[0] == pytest.approx(after[1], rel=1e-3)  # the model is the same to rounding, which may move a level


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_each_process_draws_its_share_of_the_chunks(folders, devices):
    calls = [int((folders[devices] / f"calls-{rank}.txt").read_text()) for rank in range(devices)]
    drawn = [number - 1 for number in calls]  # each tries the model out
    assert sum(drawn) == 2 * CHUNKS
    assert max(drawn) - min(drawn) <= 4


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "slack"), [("images", 0.05), ("traces", 0.0), ("critics", 0.0)])
def test_each_process_embeds_and_scores_its_share_of_images_and_clients(folders, kind, slack):
    """Nothing is done twice, but for an image or two that tell how many features there are."""
    one, *several = (
        json.loads((folders[number] / f"done-{rank}.json").read_text())[kind]
        for number, rank in [(1, 0), (3, 0), (3, 1), (3, 2)]
    )
    assert one >= 2 * 2 * 4  # two splits, twice: three clients and their pool, or many more images
    assert one <= sum(several) <= one * (1 + slack)
    assert max(several) < 0.8 * one
    assert min(several) > 0.1 * one


@pytest.mark.slow
def test_work_that_fails_on_one_process_fails_on_all_and_says_where(folders):
    said = [(folders[3] / f"failure-{rank}.txt").read_text() for rank in range(3)]
    assert said[1] == "KeyError: 'the share of rank 1'"
    assert said[0] == said[2] == "RuntimeError: rank 1 failed: KeyError: 'the share of rank 1'"


@pytest.mark.slow
def test_each_process_leaves_its_group_before_python_ends(folders):
    """Gloo's threads abort a process whose tensors they free after Python has ended."""
    assert [(folders[3] / f"group-{rank}.txt").read_text() for rank in range(3)] == ["False"] * 3
