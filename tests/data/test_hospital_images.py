import pytest

from fedgen.clients.partitions import Natural
from fedgen.data import Camelyon17, FedISIC2019
from tests.data.test_image_folder import write_image

PATCHES = """,patient,node,x_coord,y_coord,tumor,slide,center,split
0,004,4,3328,21792,1,0,0,0
1,020,4,3328,21792,0,10,1,0
2,004,4,96,0,0,0,0,0
3,040,2,0,960,1,20,2,1
"""
LESIONS = """image,MEL,NV,target,center,fold,fold2
ISIC_0065613,0.0,1.0,1,4,train,train_4
ISIC_0058767,1.0,0.0,0,0,train,train_0
ISIC_0012669_downsampled,0.0,1.0,1,4,test,test_4
"""


@pytest.fixture
def camelyon(tmp_path):
    folder = tmp_path / "camelyon17_v1.0"
    sections = {"004_node_4": ["3328_y_21792", "96_y_0"], "020_node_4": ["3328_y_21792"], "040_node_2": ["0_y_960"]}
    files = [f"patient_{name}/patch_patient_{name}_x_{place}.png" for name in sections for place in sections[name]]
    for value, file in enumerate(files):
        write_image(folder / "patches" / file, 10 * value, size=(96, 96))
    (folder / "metadata.csv").write_text(PATCHES)
    return tmp_path


@pytest.fixture
def isic(tmp_path):
    for value, name in enumerate(["ISIC_0065613", "ISIC_0058767", "ISIC_0012669_downsampled"]):
        write_image(tmp_path / "ISIC_2019_Training_Input_preprocessed" / f"{name}.jpg", 10 * value, size=(300, 224))
    (tmp_path / "train_test_split").write_text(LESIONS)
    return tmp_path


@pytest.mark.parametrize("in_memory", [True, False])
def test_patches_have_hospitals_for_owners_and_the_tables_split(camelyon, in_memory):
    train = Camelyon17(camelyon, size=32, in_memory=in_memory).load()
    images = train.inputs[[0, 1, 2]]
    assert images.shape == (3, 3, 32, 32)
    assert images[:, 0, 16, 16].tolist() == [0, 20, 10]
    assert train.labels.tolist() == [1, 0, 0]
    assert (train.classes, train.owner_names) == (("normal", "tumor"), ("hospital 0", "hospital 1"))
    assert [part.tolist() for part in Natural().assign(train, seed=0)] == [[0, 2], [1]]
    test = Camelyon17(camelyon / "camelyon17_v1.0").load("test")
    assert (test.name, test.inputs.shape, test.owner_names) == ("camelyon17-64/test", (1, 3, 64, 64), ("hospital 2",))


def test_lesions_have_centres_for_owners_and_flambys_folds(isic):
    train, test = FedISIC2019(isic, size=16).load(), FedISIC2019(isic, size=16).load("test")
    assert train.inputs[:, 0, 8, 8].tolist() == [0, 10]
    assert (train.inputs.shape, train.name) == ((2, 3, 16, 16), "fed-isic2019-16/train")
    assert (train.owners.tolist(), train.owner_names) == ([1, 0], ("BCN", "MSK"))
    assert train.labels.tolist() == [1, 0]
    assert train.classes[:2] == ("MEL", "NV")
    assert (len(test), test.owner_names) == (1, ("MSK",))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("4,004,4,97,0,2,0,0,0", "line 6: tumor is '2', not a number from 0 to 1"),
        ("4,../4,4,96,0,1,0,0,0", r"line 6: patient is '\.\./4', not a number"),
        ("4,004,4,97,0,1,0,5,0", "line 6: center is '5', not a number from 0 to 4"),
        ("4,004,4,97,0,1,0,0,x", "line 6: split is 'x', not a number from 0 to 3"),
    ],
)
def test_a_damaged_line_of_patches_is_named(camelyon, line, message):
    path = camelyon / "camelyon17_v1.0" / "metadata.csv"
    path.write_text(PATCHES + line + "\n")
    with pytest.raises(ValueError, match=message):
        Camelyon17(camelyon).load()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../../etc,0,1,1,0,train,train_0", r"line 5: '\.\./\.\./etc' is no name of an image"),
        ("ISIC_1,0,1,8,0,train,train_0", "line 5: target is '8', not a number from 0 to 7"),
        ("ISIC_1,0,1,1,6,train,train_6", "line 5: center is '6', not a number from 0 to 5"),
        ("ISIC_1,0,1,1,0,val,val_0", "line 5: fold is 'val', neither train nor test"),
    ],
)
def test_a_damaged_line_of_lesions_is_named(isic, line, message):
    (isic / "train_test_split").write_text(LESIONS + line + "\n")
    with pytest.raises(ValueError, match=message):
        FedISIC2019(isic).load()


def test_missing_columns_images_and_tables_are_named(isic, tmp_path):
    (isic / "train_test_split").write_text(LESIONS + "ISIC_9,0,1,1,0,train,train_0\n")
    with pytest.raises(FileNotFoundError, match="ISIC_9"):
        FedISIC2019(isic).load()
    (isic / "train_test_split").write_text("image,target\n")
    with pytest.raises(ValueError, match="column"):
        FedISIC2019(isic).load()
    (isic / "train_test_split").write_text("image,target,center,fold\n")
    with pytest.raises(ValueError, match="lists"):
        FedISIC2019(isic).load()
    with pytest.raises(FileNotFoundError, match="camelyon17"):
        Camelyon17(tmp_path / "nowhere").load()


@pytest.mark.parametrize(
    ("kind", "place", "table", "words"),
    [
        (
            Camelyon17,
            "camelyon",
            "camelyon17_v1.0/metadata.csv",
            "line 6: the image '004, 4, 96, 0' is in line 4 already",
        ),
        (FedISIC2019, "isic", "train_test_split", "line 5: the image 'ISIC_0065613' is in line 2"),
    ],
)
def test_a_table_that_names_an_image_in_both_splits_is_refused(kind, place, table, words, request):
    root = request.getfixturevalue(place)
    text = (root / table).read_text()
    row = "9,004,4,96,0,0,0,0,1\n" if kind is Camelyon17 else "ISIC_0065613,0.0,1.0,1,4,test,test_4\n"
    (root / table).write_text(text + row)
    with pytest.raises(ValueError, match=words):
        kind(root).load()
