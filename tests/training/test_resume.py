"""Damaged checkpoints, and disks that are full or can only be read: one message, and the way on to the same end."""

import errno
import logging
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.training.fit import naming_write_errors, resumes_at
from tests.cli.test_run import recipe_of
from tests.full_disk import spoil
from tests.killed_runs import RECIPE

RUN = Path("checkpoints/tiny")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities"),
    pytest.mark.usefixtures("blank_curves"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a recipe and its run of four rounds, each evaluated and kept."""
    folder = tmp_path_factory.mktemp("trained")
    path = Path(recipe_of(folder))
    recipe = yaml.safe_load(path.read_text())
    recipe["trainer"] |= {"max_epochs": 4, "logger": True}
    path.write_text(yaml.safe_dump(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedgen"])
        assert main(["fit", "--config", "tiny.yaml"]) == 0
    return folder


@pytest.fixture
def work(trained, tmp_path, monkeypatch):
    """A new folder with the recipe alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    shutil.copy(trained / "tiny.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def run(trained, work):
    """The run itself, to be damaged: the links between its checkpoints are kept."""
    RUN.parent.mkdir()
    shutil.copytree(trained / RUN, RUN)
    (RUN / "last.ckpt").unlink()
    os.link(RUN / "round=00003.ckpt", RUN / "last.ckpt")
    return RUN


def fit(*arguments):
    return main(["fit", "--config", "tiny.yaml", *arguments])


def assert_same(trained):
    """The run here ended as the undisturbed one: weights to the bit, scores to the byte."""
    a, b = (torch.load(folder / "last.ckpt", weights_only=True) for folder in (trained / RUN, RUN))
    assert a["epoch"] == b["epoch"] == 3
    assert all(torch.equal(a["state_dict"][name], b["state_dict"][name]) for name in a["state_dict"])
    assert (trained / RUN / "scores.jsonl").read_bytes() == (RUN / "scores.jsonl").read_bytes()


def truncate(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path):
    """One bit of the archive's table of contents, which lists its files."""
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 1] ^= 4
    with open(path, "rb+") as file:  # in place: links see it
        file.write(content)


def flip_weight(path):
    """The lowest bit of one weight."""
    state = torch.load(path, weights_only=True)["state_dict"]
    content, weight = path.read_bytes(), max(state.values(), key=torch.numel).numpy().tobytes()
    place = content.index(weight)
    with open(path, "rb+") as file:
        file.seek(place)
        file.write(bytes([content[place] ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [truncate, flip, flip_weight])
def test_a_damaged_last_checkpoint_is_named_and_the_one_before_it_is_used_when_asked(run, trained, capsys, damage):
    damage(run / "last.ckpt")
    scores = (run / "scores.jsonl").read_bytes()
    assert fit() == 2
    message = capsys.readouterr().err
    assert f"{RUN}/last.ckpt is not a file of torch.save" in message
    assert "or it is damaged" in message
    assert "--ckpt_path previous resumes from round=00002.ckpt, the one before it" in message
    assert (run / "scores.jsonl").read_bytes() == scores
    assert fit("--ckpt_path", "previous") == 0
    assert "Resuming checkpoints/tiny after round 2 (3 done)." in capsys.readouterr().out
    assert_same(trained)
    assert fit() == 0
    assert "is finished: 4 rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_damaged_checkpoints_before_it_are_passed_over(run, trained, capsys):
    truncate(run / "last.ckpt")
    truncate(run / "round=00002.ckpt")
    with pytest.warns(UserWarning, match="passed"):
        assert fit("--ckpt_path", "previous") == 0
    assert "after round 1 (2 done)" in capsys.readouterr().out
    assert_same(trained)


@pytest.mark.slow
def test_where_links_are_not_possible_the_copy_of_the_last_is_sound(run, trained, capsys):
    (run / "last.ckpt").unlink()
    shutil.copy(run / "round=00003.ckpt", run / "last.ckpt")
    truncate(run / "last.ckpt")
    assert fit() == 2
    assert "previous resumes from round=00003.ckpt" in capsys.readouterr().err
    assert fit("--ckpt_path", "previous") == 0
    assert fit() == 0  # the finished run has a last checkpoint again
    assert capsys.readouterr().out.count("is finished: 4 rounds") == 2


@pytest.mark.slow
def test_with_a_sound_last_checkpoint_it_is_the_round_before(run, trained, capsys):
    assert fit("--ckpt_path", "previous") == 0
    assert "after round 2 (3 done)." in capsys.readouterr().out
    assert_same(trained)


@pytest.mark.slow
def test_where_none_is_left_the_message_says_what_remains_to_do(run, capsys):
    for path in run.glob("*.ckpt"):
        truncate(path)
    with_two = f"{RUN} has no round's checkpoint before last.ckpt; round=00001.ckpt, round=00000.ckpt cannot be read"
    (run / "round=00002.ckpt").unlink()
    assert fit("--ckpt_path", "previous") == 2
    assert with_two in capsys.readouterr().err
    assert fit() == 2
    assert f"no earlier checkpoint is left: remove {RUN} to train again" in capsys.readouterr().err
    assert resumes_at(run / "last.ckpt") == "where this run resumed"


def test_there_is_nothing_before_the_first(work, capsys):
    assert fit("--ckpt_path", "previous") == 2
    assert "checkpoints/tiny has no round's checkpoint before last.ckpt" in capsys.readouterr().err


def full_after(rounds, names):
    """What `spoil` asks: whether a file of one of these names is written after so many rounds."""
    return lambda folder, prefix: (
        any(name in prefix for name in names) and len(list(RUN.glob("round=*.ckpt"))) >= rounds
    )


def one_message(capsys):
    """What was printed as an error: a single line without a traceback."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("fedgen: error:")]
    return line.removeprefix("fedgen: error: ")


PLACES = {  # of one run, in its order
    "recipe.yaml": (0, "from the start"),
    "partition.npz": (0, "from the start"),
    "scores.jsonl": (0, "from the start"),
    "round=00001.png": (1, "after round 0 (1 done)"),
    "last.ckpt": (2, "after round 1 (2 done)"),
    "curves.png": (4, "after round 3 (4 done)"),
}


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_message_wherever_and_it_goes_on_to_the_same_end(
    work, trained, capsys, monkeypatch
):
    for name, (rounds, start) in PLACES.items():
        with monkeypatch.context() as patch:
            spoil(patch, full_after(rounds, [name]))
            assert fit() == 2, name
        said = f"no space left for {RUN}; free some, and the same command resumes {start}"
        assert one_message(capsys) == said, name
        assert not [path for path in RUN.rglob("*") if path.name.startswith(".") and path.name.endswith(".tmp")]
    assert fit() == 0
    assert_same(trained)


@pytest.mark.slow
def test_a_disk_that_fills_up_while_loggers_write_ends_the_run_in_one_message_too(work, trained, capsys, monkeypatch):
    """TensorBoard writes in a thread of its own, whose traceback would be shown as well."""
    from tensorboard.compat.tensorflow_stub.io import gfile

    plain = gfile.LocalFileSystem.append

    def append(self, *args, **options):
        if len(list(RUN.glob("round=*.ckpt"))) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(gfile.LocalFileSystem, "append", append)
        assert fit() == 2
    assert "resumes after round" in one_message(capsys)
    assert fit() == 0
    assert_same(trained)


@pytest.mark.slow
def test_a_folder_that_can_no_longer_be_written_ends_the_run_likewise(work, trained, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        spoil(patch, full_after(2, [".ckpt", ".jsonl", ".png"]), errno.EROFS)
        assert fit() == 2
    said = f"{RUN} is now read-only; make it writable, and the same command resumes after round 1 (2 done)"
    assert one_message(capsys) == said
    assert fit() == 0
    assert_same(trained)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (errno.EFBIG, "a file is larger than allowed for {}; raise the limit (ulimit -f), or use another file system"),
        (errno.EDQUOT, "the quota is used up for {}; free some space"),
    ],
)
def test_so_do_limits_and_quotas(tmp_path, answer, said):
    with pytest.raises(OSError, match="same command") as raised, naming_write_errors(tmp_path, tmp_path / "last.ckpt"):
        raise OSError(answer, os.strerror(answer), str(tmp_path / "scores.jsonl"))
    assert str(raised.value) == f"{said.format(tmp_path)}, and the same command resumes from the start"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["/proc/run", "/sys/run"])
def test_a_folder_that_can_only_be_read_is_named_before_training(work, folder, capsys):
    """These two can be written by nobody, the superuser included."""
    if not Path(folder).parent.is_dir():
        pytest.skip(f"no {Path(folder).parent} on this system")
    assert fit("--trainer.default_root_dir", folder) == 2
    assert one_message(capsys).startswith(f"cannot write in {folder}: ")


def test_a_file_elsewhere_is_named_itself_and_other_errors_are_left_alone(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache" / "features.npy"
    with (
        pytest.raises(OSError, match=rf"no space left for {cache}; free some, .* resumes from the start"),
        naming_write_errors(run, run / "last.ckpt"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cache))
    with pytest.raises(FileNotFoundError, match="No such"), naming_write_errors(run, run / "last.ckpt"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(cache))


@pytest.mark.slow
def test_a_finished_run_still_says_who_was_left_out_when(work, capsys, caplog):
    recipe = {**RECIPE, "trainer": {**RECIPE["trainer"], "max_epochs": 2}}
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    caplog.set_level(logging.INFO)
    said = ["left out: 1 client, 1 turn", "  'class 7', round 1: RuntimeError: no sevens today"]
    with pytest.warns(UserWarning, match="RuntimeError"):
        assert fit() == 0
    assert [line for line in (r.getMessage() for r in caplog.records) if line in said] == said
    capsys.readouterr()
    assert fit() == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [f"{RUN} is finished: 2 rounds. Remove the folder to train again.", *said]
