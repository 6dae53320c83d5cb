import pytest

from fedgen.clients.partitions import Natural
from fedgen.data import ImageManifest
from tests.data.test_image_folder import write_image

ROWS = "path,client,label\na/1.png,eve,dog\nb.png, adam ,cat\na/2.png,eve,cat\n"


@pytest.fixture
def listed(tmp_path):
    for value, name in enumerate(["a/1.png", "b.png", "a/2.png"]):
        write_image(tmp_path / name, 10 * value)
    (tmp_path / "pets.csv").write_text(ROWS)
    return tmp_path / "pets.csv"


def test_rows_tell_images_owners_and_labels(listed):
    examples = ImageManifest(listed).load()
    assert examples.inputs[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert (examples.owners.tolist(), examples.owner_names) == ([1, 0, 1], ("adam", "eve"))
    assert (examples.labels.tolist(), examples.classes) == ([1, 0, 0], ("cat", "dog"))
    assert examples.name == "pets/train"
    assert [client.tolist() for client in Natural().assign(examples, seed=0)] == [[1], [0, 2]]


def test_labels_are_optional_and_other_columns_are_left_alone(listed):
    listed.write_text("client,date,path\neve,,b.png\n")
    examples = ImageManifest(listed, size=4, channels=1, name="zoo").load()
    assert not examples.is_labelled
    assert (examples.name, examples.inputs.shape, examples.owner_names) == ("zoo-4/train", (1, 1, 4, 4), ("eve",))


def test_labels_that_are_numbers_keep_them(listed):
    for labels, expected, classes in (("7,3,7", [7, 3, 7], "01234567"), ("07,3,7", [0, 1, 2], ("07", "3", "7"))):
        rows = [f"b.png,eve,{label}\n" for label in labels.split(",")]
        listed.write_text("path,client,label\n" + "".join(rows))
        examples = ImageManifest(listed).load()
        assert (examples.labels.tolist(), examples.classes) == (expected, tuple(classes))


def test_paths_start_from_the_root_and_stay_within_it(listed):
    listed.write_text("path,client\n1.png,eve\n")
    assert len(ImageManifest(listed, root=listed.parent / "a").load()) == 1
    listed.write_text("path,client\n../b.png,eve\n")
    with pytest.raises(ValueError, match="leads"):
        ImageManifest(listed, root=listed.parent / "a").load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nb.png,cat\n", r"has no column client; its first line is \['path', 'label'\]"),
        ("", "has no column client or path"),
        ("path,client\n", "lists no images"),
        ("path,client\nb.png,eve\nb.png,\n", "line 3: there is no client"),
        ("path,client\nb.png\n", "line 2 has not the 2 fields that the first line names"),
        ("path,client\nnone.png,eve\n", "1 of 1 images of pets/train cannot be read"),
    ],
)
def test_a_file_that_lacks_something_is_refused(listed, text, message):
    listed.write_text(text)
    with pytest.raises(ValueError, match=message):
        ImageManifest(listed).load()


def test_a_missing_file_says_what_is_wanted(tmp_path):
    with pytest.raises(FileNotFoundError, match="CSV"):
        ImageManifest(tmp_path / "none.csv").load()
