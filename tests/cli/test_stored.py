"""`fedgen evaluate --generated ...`, as somebody with two folders of images would use it."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedgen.__main__ import main
from fedgen.evaluation import Reading, ScoreRecord, StoredOptions, score_stored
from tests.evaluation.folders import COUNTS, client_paths, make_folders, save_grey

DRAW = Figure.savefig


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of sets of images to work in; figures have a beginning alone, as most of the time would go to them."""
    make_folders(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: file.write(b"\x89PNG"))
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """Figures are drawn."""
    monkeypatch.setattr(Figure, "savefig", DRAW)


def evaluate(*arguments):
    return main(["evaluate", "--generated", "generated", *map(str, arguments)])


def against_clients(*arguments):
    return evaluate("--clients", *client_paths(Path()), "--embedding", "pixels", *arguments)


@pytest.mark.slow
def test_folders_give_a_table_a_json_file_and_a_figure(root, drawn, capsys):
    assert against_clients() == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*COUNTS, "avg", "all", "worst", "written: scores.json", "written: scores.png"))
    assert len(Path("scores.png").read_bytes()) > 5_000
    content = json.loads(Path("scores.json").read_text())
    assert [(part["name"], part["count"]) for part in content["sets"]] == [("generated", 30), *COUNTS.items()]
    assert content["settings"]["clients"] == [f"data/{name}" for name in COUNTS]
    records = [ScoreRecord.from_json(record) for record in content["records"]]
    assert records == score_stored("generated", client_paths(Path()), "pixels")


@pytest.mark.slow
def test_a_file_of_before_is_not_overwritten_unless_asked(root, capsys):
    Path("scores.png").write_text("precious")
    assert against_clients() == 2
    assert "scores.png exists" in capsys.readouterr().err
    assert not Path("scores.json").exists()
    assert against_clients("--overwrite") == 0
    assert against_clients("--output", "second/scores.json") == 0
    assert Path("second/scores.png").exists()


@pytest.mark.slow
def test_statistics_and_features_are_written_and_scored_again(root, capsys):
    assert against_clients("--save_statistics", "statistics", "--save_features", "features") == 0
    first = json.loads(Path("scores.json").read_text())["records"]
    capsys.readouterr()
    files = sorted(map(str, Path("statistics").iterdir()))
    assert evaluate("--clients", *files, "--embedding", "pixels", "--output", "a.json") == 0
    assert "the generated set is client statistics/generated, whose" in " ".join(capsys.readouterr().out.split())
    for folder, names in (("statistics", {"fid"}), ("features", {"fid", "kid"})):
        files = [f"{folder}/{name}.npz" for name in COUNTS]
        assert main(["evaluate", "--generated", f"{folder}/generated.npz", "--clients", *files, "--overwrite"]) == 0
        again = json.loads(Path("scores.json").read_text())["records"]
        expected = [record["value"] for record in first if record["score"] in names]
        assert [record["value"] for record in again] == pytest.approx(expected, rel=1e-8)
    assert against_clients("--overwrite", "--output", "b.json") == 0
    assert against_clients("--save_features", "features", "--output", "c.json") == 2
    assert "features/generated.npz exists" in capsys.readouterr().err
    inputs = ["--clients", "features/alpha.npz", "--save_statistics", "features", "--overwrite"]
    assert main(["evaluate", "--generated", "features/beta.npz", *inputs]) == 2
    assert "features/beta.npz is one of the sets to score and would be overwritten" in capsys.readouterr().err


@pytest.mark.slow
def test_a_generated_set_may_be_one_of_the_clients(root, capsys):
    assert main(["evaluate", "--generated", "data/beta", "--clients", *map(str, client_paths(Path()))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the generated set is client beta, whose score compares images with themselves" in out
    content = json.loads(Path("scores.json").read_text())
    assert [part["name"] for part in content["sets"]] == ["beta", *COUNTS]
    per_client = dict(zip(COUNTS, content["records"][0]["per_client"]))
    assert per_client["beta"] == pytest.approx(0, abs=1e-9 * per_client["alpha"])


@pytest.mark.slow
def test_an_output_that_is_no_json_file_is_a_folder(root, capsys):
    assert against_clients("--output", "out_emb", "--scores", "fid") == 0
    Path("version-1.2").mkdir()
    assert against_clients("--output", "version-1.2", "--scores", "fid") == 0
    for folder in ("out_emb", "version-1.2"):
        assert sorted(path.name for path in Path(folder).iterdir()) == ["scores.json", "scores.png"]
    assert against_clients("--output", "out_emb") == 2
    assert "out_emb/scores.json exists" in capsys.readouterr().err


@pytest.mark.slow
def test_names_are_shown_as_they_are(root, drawn, capsys):
    strange, bytes_ = Path("data/[red] $x$ :smile: 日"), Path("data/caf\udce9")  # the latter is no text
    Path("data/alpha").rename(strange)
    Path("data/beta").rename(bytes_)
    assert against_clients("--output", "[out].json") == 0
    out = capsys.readouterr().out
    assert strange.name in out
    assert r"caf\udce9" in out
    assert json.loads(Path("[out].json").read_text())["sets"][2]["path"] in map(str, (strange, bytes_))
    assert "written: [out].json" in out


def test_ctrl_c_leaves_nothing_and_is_one_line(root, capsys, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgen.evaluation.stored.stored_images.read_image", interrupted)
    assert against_clients() == 130
    assert capsys.readouterr().err == "fedgen: interrupted; files are written whole or not at all\n"
    assert {path.name for path in Path().iterdir()} == {"generated", "data"}


def test_options_reach_the_scores(root):
    options = ["--client_weights", "uniform", "--scores", "kid", "--resize", "8", "--batch_size", "7"]
    assert against_clients(*options, "--cache", "cache") == 0
    found = json.loads(Path("scores.json").read_text())["records"]
    options = StoredOptions(scores=["kid"], weights="uniform", reading=Reading(resize=8))
    expected = score_stored("generated", client_paths(Path()), "pixels", options=options)
    assert [record["value"] for record in found] == [record.value for record in expected]
    assert len(list(Path("cache").glob("*.safetensors"))) == 4


def test_scores_with_options_and_power_means_are_asked_for_by_name(root, capsys):
    scores = "[fid, {name: precision, k: 3}]"
    assert against_clients("--scores", scores, "--aggregates", "power-2") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "higher is better for precision, lower for fid" in out
    assert "power-2" in out
    found = [ScoreRecord.from_json(r) for r in json.loads(Path("scores.json").read_text())["records"]]
    assert [r.name for r in found if r.aggregate in ("all", "power-2")] == ["fid_all", "fid_power-2", "precision_all"]
    assert found[-1].score_settings == {"k": 3}
    options = StoredOptions(scores=["fid", {"name": "precision", "k": 3}], aggregates=["power-2"])
    assert found == score_stored("generated", client_paths(Path()), "pixels", options=options)


def test_a_preset_is_one_name(root, capsys, clip_weights):
    clients = ["--clients", *client_paths(Path())]
    assert evaluate(*clients, "--preset", "cmmd", "--weights", clip_weights) == 0
    records = json.loads(Path("scores.json").read_text())["records"]
    assert {(r["score"], r["embedding"]) for r in records} == {("cmmd", "clip-vit-l-14-336px-cmmd-unit")}
    assert evaluate("--reference", "data/alpha", "--preset", "cmmd", "--overwrite") == 2
    assert "--preset cmmd needs --clients" in capsys.readouterr().err
    assert evaluate(*clients, "--preset", "cmmd", "--embedding", "pixels", "--overwrite") == 2
    assert "preset cmmd has its own embedding" in capsys.readouterr().err


def test_one_reference_in_place_of_clients(root, capsys):
    options = ["--reference", "data/beta", "--embedding", "pixels", "--kid_subset_size", "20"]
    assert evaluate(*options) == 0
    out = capsys.readouterr().out
    assert "kid_subsets" in out
    assert not Path("scores.png").exists()
    records = json.loads(Path("reference.json").read_text())["records"]
    assert [(r["score"], r["aggregate"]) for r in records] == [(s, "all") for s in ("fid", "kid", "kid_subsets")]
    assert evaluate("--reference", "data/beta", "--embedding", "pixels", "--overwrite") == 0
    assert "torch-fidelity's kid needs 1000 images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_scores_of_clients_and_of_a_reference_stand_in_one_folder(root, drawn, capsys):
    """As README lists the two commands."""
    assert against_clients() == 0
    first = Path("scores.json").read_bytes()
    assert evaluate("--reference", "data/beta", "--embedding", "pixels") == 0
    assert "written: reference.json" in said(capsys)
    assert Path("scores.json").read_bytes() == first
    assert main(["report", "reference.json", "--output", "reference.html"]) == 0
    assert main(["report", "."]) == 0
    Path("scores.json").unlink()
    Path("report.html").unlink()
    assert main(["report", "."]) == 0  # of the one that is left
    assert evaluate("--reference", "data/beta", "--embedding", "pixels") == 2
    assert "reference.json exists; choose another place" in capsys.readouterr().err


def test_counts_are_given_by_name(root, capsys):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    for name in ("a", "b", "made"):
        np.savez(f"{name}.npz", mu=rows.mean(0), sigma=np.cov(rows, rowvar=False))
    command = ["evaluate", "--generated", "made.npz", "--clients", "a.npz", "b.npz"]
    assert main(command) == 2
    assert "--counts a=N b=N" in capsys.readouterr().err
    assert main([*command, "--counts", "a=40", "b=80", "made=40"]) == 0
    (record, *_) = json.loads(Path("scores.json").read_text())["records"]
    assert record["standard_error"] is not None
    assert main([*command, "--counts", "a:40", "--overwrite"]) == 2
    assert "--counts takes NAME=N, e.g. hospital=5000, got 'a:40'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --clients (one path each) or --reference"),
        (["--clients", "data/alpha", "--reference", "data/beta"], "give either --clients"),
        (["--clients", "data/*x"], "a pattern that matched nothing?"),
        (["--clients", "data/alpha", "data/../data/alpha"], "data/../data/alpha, which is data/alpha, is given twice"),
        (["--clients", "data/alpha", "--output", "generated/x.json"], "lies among the images of generated"),
        (["--clients", "data/alpha", "--output", "data/x/y.json", "--embedding", "pixel"], "did you mean pixels"),
        (["--clients", "data/alpha", "--save_statistics", "s", "--save_features", "s"], "give two folders"),
        (["--reference", "data/alpha", "--aggregates", "power-2"], "--aggregates are means over --clients"),
        (["--reference", "data/alpha", "--preset", "clean-fid", "--kid_subset_size", "9"], "without a seed"),
        (["--clients", "data/alpha", "--embedding", "pixel"], "did you mean pixels"),
        (["--clients", "data/alpha", "--output", "generated/000.png/x.json"], "cannot write in generated/000.png"),
        (["--clients", "data/alpha", "--output", "scores.png"], "must be a file for JSON"),
        (["--clients", "data/alpha", "--preset", "clean-fid"], "are for --reference"),
        (["--clients", "data/alpha", "--scores", "fid,fdi"], "unknown score 'fdi'"),
        (["--clients", "data/alpha", "--scores", "[fid"], "--scores takes fid,kid or '[fid, {name: precision, k: 3}]'"),
        (["--clients", "data/alpha", "--scores", "{name: recall, k: 25}"], "data/alpha has 20 image(s), and recall"),
        (["--clients", "data/alpha", "--scores", "ll"], "ll needs a model's density"),
        (["--clients", "data/alpha", "--device", "cuda:99", "--output", "x/y.json"], "choose --device cpu"),
        (["--clients", "data/alpha", "--weights", "none.pth"], "no file of weights at none.pth"),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(root, capsys, arguments, message):
    assert evaluate(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 2
    assert {path.name for path in Path().iterdir()} == {"generated", "data"}
    assert {path.name for path in Path("data").iterdir()} == set(COUNTS)


def test_unreadable_files_are_an_error_and_then_a_record(root, capsys):
    Path("data/alpha/999.png").write_bytes(b"cut")
    assert against_clients() == 2
    assert "1 of 95 image files cannot be read; --skip_unreadable" in capsys.readouterr().err
    assert against_clients("--skip_unreadable") == 0
    out = capsys.readouterr().out
    assert "left out:\n  data/alpha/999.png (no image of PNG, JPEG, " in out
    assert "unreadable files left out: 1" in " ".join(out.split())  # beside the numbers
    content = json.loads(Path("scores.json").read_text())
    assert ["alpha/999.png" in reason for reason in content["skipped"]] == [True]


def test_subfolders_and_mixed_sizes_need_their_flags(root, capsys):
    save_grey(Path("data/alpha/more/x.png"), 24, 20)
    assert against_clients("--recursive") == 2
    assert "(--resize N) all are fitted" in capsys.readouterr().err
    assert against_clients("--recursive", "--resize", "16") == 0
    assert json.loads(Path("scores.json").read_text())["sets"][1]["count"] == 21


def test_help_explains_both_forms(root, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "--help-all"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--generated PATH" in out
    assert "<function" not in out
    assert "run [embeddings]" in out
    with pytest.raises(SystemExit):
        main(["evaluate", "--clients", "a", "--help"])
    assert "run [embeddings]" not in capsys.readouterr().out


@pytest.mark.slow
def test_scores_that_a_generator_was_trained_on_are_marked_where_its_maker_says_so(root, capsys):
    assert against_clients("--optimised_on", "pixels", "--output", "marked.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fid *" in out
    assert "look at another embedding" in out
    records = json.loads(Path("marked.json").read_text())["records"]
    assert all(record["optimised_on"] == ["pixels"] for record in records)
    assert against_clients("--optimised_on", "vgg16", "--output", "other.json") == 0
    assert "*" not in capsys.readouterr().out
    reference = client_paths(Path())[0]
    assert evaluate("--reference", reference, "--embedding", "pixels", "--optimised_on", "pixels", "--overwrite") == 0
    assert "fid *" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_folder_of_clients_suggests_its_folders_and_does_not_advise_to_pool_them(root, capsys):
    assert evaluate("--clients", "data", "--embedding", "pixels") == 2
    err = capsys.readouterr().err
    assert "it has 3 sets such as alpha: if each is a client, give data/* (--recursive would pool them into one" in err
    assert evaluate("--reference", "data", "--embedding", "pixels") == 2
    told = "it has folders such as alpha, which --recursive includes (to score each as a client: --clients data/*)"
    assert told in capsys.readouterr().err
    assert evaluate("--clients", "data", "--embedding", "pixels", "--recursive") == 0
    assert "data with its subfolders is one client, so avg and all are equal" in said(capsys)


def test_fewer_images_than_features_are_said_beside_the_numbers(root, capsys):
    assert against_clients() == 0  # 16 x 16 pixels in three colours
    few = "fewer samples than features (768): 3 of 3 clients (the smallest has 10), their pool of 64, 30 generated"
    assert few in said(capsys)
    assert few in json.loads(Path("scores.json").read_text())["records"][0]["note"]
    assert evaluate("--reference", "data/beta", "--embedding", "pixels", "--overwrite") == 0
    assert "fewer samples than features (768): 34 real, 30 generated" in said(capsys)


def test_an_embedding_of_ones_own_is_a_class_path(root, capsys):
    own = "tests.embeddings.own.Halves"
    assert evaluate("--clients", *client_paths(Path()), "--embedding", own) == 0
    assert "embedding halves of None" in said(capsys)
    given = f"{{class_path: {own}, init_args: {{weights: mine}}}}"
    assert evaluate("--reference", "data/beta", "--embedding", given, "--overwrite") == 0
    assert "embedding halves of mine" in said(capsys)


def said(capsys):
    """What was printed, without line breaks."""
    return " ".join(capsys.readouterr().out.split())
