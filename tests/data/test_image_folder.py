import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.clients.partitions import Natural
from fedgen.data import ImageFolder


def write_image(path, value=0, size=(6, 4), mode="RGB"):
    """An image of one grey level; size is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * len(mode)).save(path)


@pytest.fixture
def pets(tmp_path):
    write_image(tmp_path / "pets" / "dog" / "more" / "b.PNG", 20)
    write_image(tmp_path / "pets" / "dog" / "a.bmp", 10)
    write_image(tmp_path / "pets" / "cat" / "z.png", 0)
    return tmp_path / "pets"


def test_each_folder_is_a_class_in_the_order_of_names(pets):
    write_image(pets / ".thumbnails" / "a.png")
    write_image(pets / "dog" / ".hidden.png")
    examples = ImageFolder(pets).load()
    assert examples.inputs.shape == (3, 3, 4, 6)
    assert examples.inputs[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert examples.labels.tolist() == [0, 1, 1]
    assert (examples.name, examples.classes) == ("pets/train", ("cat", "dog"))


def test_a_flat_folder_has_no_labels(tmp_path):
    for value in (3, 1, 2):
        write_image(tmp_path / f"{value}.png", value)
    examples = ImageFolder(tmp_path, name="flat").load()
    assert examples.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert not examples.is_labelled
    assert examples.name == "flat/train"


def test_channels_and_rows_keep_their_places(tmp_path):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert torch.equal(ImageFolder(tmp_path).load().inputs[0], torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize(("channels", "mode"), [(1, "RGB"), (3, "L"), (1, "L"), (3, "RGBA"), (3, "P")])
def test_images_are_converted_to_the_channels_asked_for(tmp_path, channels, mode):
    image = Image.new("RGB", (4, 4), (9, 9, 9))
    (image.quantize(2) if mode == "P" else image.convert(mode)).save(tmp_path / "a.png")
    examples = ImageFolder(tmp_path, channels=channels).load()
    assert examples.inputs.shape == (1, channels, 4, 4)
    assert examples.inputs.unique().tolist() == [9]


def test_images_are_resized_to_a_square_and_the_name_says_so(tmp_path):
    write_image(tmp_path / "a.png", 7, size=(10, 6))
    write_image(tmp_path / "b.jpg", 7, size=(40, 80))
    examples = ImageFolder(tmp_path, size=8, name="mixed").load()
    assert examples.inputs.shape == (2, 3, 8, 8)
    assert examples.inputs.unique().tolist() == [7]
    assert examples.name == "mixed-8/train"


def test_shrinking_is_antialiased(tmp_path):
    checkerboard = np.indices((32, 32)).sum(0) % 2 * 255
    Image.fromarray(checkerboard.astype(np.uint8)).save(tmp_path / "a.png")
    resized = ImageFolder(tmp_path, size=8, channels=1).load().inputs.float()
    assert (resized - 127.5).abs().max() < 20


def test_images_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (6, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert ImageFolder(tmp_path).load().shape == (3, 6, 4)


def test_different_sizes_are_refused_with_an_example_of_each(tmp_path):
    write_image(tmp_path / "a.png", size=(6, 4))
    write_image(tmp_path / "b.png", size=(5, 5))
    with pytest.raises(ValueError, match="sizes"):
        ImageFolder(tmp_path).load()


def test_all_unreadable_files_are_listed(pets):
    Image.effect_noise((64, 64), 50).save(pets / "dog" / "cut.png")
    (pets / "dog" / "cut.png").write_bytes((pets / "dog" / "cut.png").read_bytes()[:2000])
    (pets / "dog" / "empty.jpg").write_bytes(b"")
    Image.fromarray(np.full((4, 6), -1, np.float32)).save(pets / "dog" / "deep.tif")
    with pytest.raises(ValueError, match="train") as caught:
        ImageFolder(pets).load()
    assert all(name in str(caught.value) for name in ("cut.png", "empty.jpg", "deep.tif", "floats from -1 to -1"))


def test_a_test_split_has_its_own_folder_and_the_same_classes(pets, tmp_path):
    with pytest.raises(ValueError, match="test_root"):
        ImageFolder(pets).load("test")
    write_image(tmp_path / "held" / "cat" / "a.png", 5)
    with pytest.raises(ValueError, match="classes"):
        ImageFolder(pets, test_root=tmp_path / "held").load("test")
    write_image(tmp_path / "held" / "dog" / "a.png", 6)
    examples = ImageFolder(pets, test_root=tmp_path / "held").load("test")
    assert (examples.name, examples.labels.tolist()) == ("pets/test", [0, 1])


def test_missing_and_empty_folders_are_named(pets, tmp_path):
    with pytest.raises(FileNotFoundError, match="folder"):
        ImageFolder(tmp_path / "none").load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        ImageFolder(tmp_path / "empty").load()
    (pets / "bird").mkdir()
    with pytest.raises(FileNotFoundError, match="bird"):
        ImageFolder(pets).load()


@pytest.mark.parametrize("owner_folders", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_what_a_folder_holds_beside_images_is_said_when_it_is_read(pets, tmp_path, owner_folders, in_memory):
    """Videos, tables and archives among images were left out without a word."""
    for name in ("metadata.csv", "cat/film.mp4", "cat/more/notes.txt"):
        (pets / name).parent.mkdir(exist_ok=True)
        (pets / name).write_bytes(b"")
    words = r"not read: 3 other files \(\.csv 1, \.mp4 1, \.txt 1\)$"
    pets = pets.rename(tmp_path / "owners" / "pets") if (tmp_path / "owners").mkdir() or owner_folders else pets
    with pytest.warns(UserWarning, match=words):
        ImageFolder(pets.parent if owner_folders else pets, owner_folders=owner_folders, in_memory=in_memory).load()


def test_frames_are_counted_over_a_folder(tmp_path):
    image = Image.new("L", (4, 4))
    for name in ("a", "b"):
        image.save(tmp_path / f"{name}.tif", save_all=True, append_images=[Image.new("L", (4, 4), 9)])
    with pytest.warns(UserWarning, match="further"):
        ImageFolder(tmp_path).load()


def test_images_beside_class_folders_are_refused(pets):
    write_image(pets / "stray.png")
    with pytest.raises(ValueError, match="folders"):
        ImageFolder(pets).load()


@pytest.mark.parametrize(
    ("options", "message"), [({"channels": 4}, "1 .grey. or 3"), ({"size": 0}, "at least 1 pixel")]
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImageFolder(".", **options)


@pytest.fixture
def hospitals(tmp_path):
    root = tmp_path / "hospitals"
    for value, name in enumerate(["rome/ill/a.png", "rome/well/b.png", "athens/well/deep/c.png", "athens/ill/d.png"]):
        write_image(root / name, 10 * value)
    write_image(root / "oslo" / "well" / "e.png", 50)
    write_image(root / ".trash" / "well" / "f.png", 60)
    return root


def test_owner_folders_are_owners_and_the_folders_in_them_classes(hospitals):
    examples = ImageFolder(hospitals, owner_folders=True).load()
    assert examples.inputs[:, 0, 0, 0].tolist() == [30, 20, 50, 0, 10]
    assert (examples.owners.tolist(), examples.owner_names) == ([0, 0, 1, 2, 2], ("athens", "oslo", "rome"))
    assert (examples.labels.tolist(), examples.classes) == ([0, 1, 1, 0, 1], ("ill", "well"))
    assert (examples.name, Natural().names(examples)) == ("hospitals/train", ["athens", "oslo", "rome"])
    assert [part.tolist() for part in Natural().assign(examples, seed=0)] == [[0, 1], [2], [3, 4]]


def test_owner_folders_without_class_folders_have_no_labels(tmp_path):
    for name in ("rome/a.png", "athens/b.png", "athens/c.png"):
        write_image(tmp_path / name)
    examples = ImageFolder(tmp_path, owner_folders=True, size=4, channels=1).load()
    assert (examples.owners.tolist(), examples.classes, examples.inputs.shape) == ([0, 0, 1], (), (3, 1, 4, 4))
    assert not examples.is_labelled


def test_the_test_split_may_have_other_owners_but_no_other_classes(hospitals, tmp_path):
    for name in ("bern/ill/a.png", "bern/well/b.png"):
        write_image(tmp_path / "test" / name)
    data = ImageFolder(hospitals, test_root=tmp_path / "test", owner_folders=True)
    assert data.load("test").owner_names == ("bern",)
    write_image(tmp_path / "test" / "bern" / "odd" / "b.png")
    with pytest.raises(ValueError, match="classes"):
        data.load("test")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("oslo/g.png", r"oslo holds both images \(such as g.png\) and folders; move them into class folders"),
        ("g.png", "hospitals holds both images .* move them into owner folders"),
        ("bern/g.png", r"bern has no class folders, but other owners have \(ill, well"),
    ],
)
def test_images_in_the_wrong_place_among_owners_are_refused(hospitals, file, message):
    write_image(hospitals / file)
    with pytest.raises(ValueError, match=message):
        ImageFolder(hospitals, owner_folders=True).load()


def test_an_owner_without_images_is_named(hospitals, tmp_path):
    (hospitals / "bern").mkdir()
    with pytest.raises(FileNotFoundError, match="hospitals"):
        ImageFolder(hospitals, owner_folders=True).load()
    with pytest.raises(FileNotFoundError, match="owner_folders"):
        ImageFolder(hospitals / "bern", owner_folders=True).load()
    with pytest.raises(FileNotFoundError, match="folder"):
        ImageFolder(tmp_path / "none", owner_folders=True).load()
