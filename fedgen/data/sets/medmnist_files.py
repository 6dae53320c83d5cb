"""The files of MedMNIST's sets of 2D images, as published in its package (medmnist 3.0.2, info.py)."""

URL = "https://zenodo.org/records/10519652/files/{file}"
SIZES = (28, 64, 128, 224)
CLASSES = {
    **{"pathmnist": 9, "dermamnist": 7, "octmnist": 4, "pneumoniamnist": 2, "retinamnist": 5, "breastmnist": 2},
    **{"bloodmnist": 8, "tissuemnist": 8, "organamnist": 11, "organcmnist": 11, "organsmnist": 11},
}
"""set -> its number of classes; ChestMNIST's images have several findings"""
MD5: dict[str, tuple[str, str, str, str]] = {
    "pathmnist": (
        "a8b06965200029087d5bd730944a56c1",
        "55aa9c1e0525abe5a6b9d8343a507616",
        "ac42d08fb904d92c244187169d1fd1d9",
        "2c51a510bcdc9cf8ddb2af93af1eadec",
    ),
    "chestmnist": (
        "02c8a6516a18b556561a56cbdd36c4a8",
        "9de6cd0b934ebb5b7426cfba5efbae16",
        "db107e5590b27930b62dbaf558aebee3",
        "45bd33e6f06c3e8cdb481c74a89152aa",
    ),
    "dermamnist": (
        "0744692d530f8e62ec473284d019b0c7",
        "b70a2f5635c6199aeaa28c31d7202e1f",
        "2defd784463fa5243564e855ed717de1",
        "8974907d8e169bef5f5b96bc506ae45d",
    ),
    "octmnist": (
        "c68d92d5b585d8d81f7112f81e2d0842",
        "e229e9440236b774d9f0dfef9d07bdaf",
        "0a97e76651ace45c5d943ee3f65b63ae",
        "abc493b6d529d5de7569faaef2773ba3",
    ),
    "pneumoniamnist": (
        "28209eda62fecd6e6a2d98b1501bb15f",
        "8f4eceb4ccffa70c672198ea285246c6",
        "05b46931834c231683c68f40c47b2971",
        "d6a3c71de1b945ea11211b03746c1fe1",
    ),
    "retinamnist": (
        "bd4c0672f1bba3e3a89f0e4e876791e4",
        "afda852cc34dcda56f86ad2b2457dbcc",
        "e48e916a24454daf90583d4e6efb1a18",
        "eae7e3b6f3fcbda4ae613ebdcbe35348",
    ),
    "breastmnist": (
        "750601b1f35ba3300ea97c75c52ff8f6",
        "742edef2a1fd1524b2efff4bd7ba9364",
        "363e4b3f8d712e9b5de15470a2aaadf1",
        "b56378a6eefa9fed602bb16d192d4c8b",
    ),
    "bloodmnist": (
        "7053d0359d879ad8a5505303e11de1dc",
        "2b94928a2ae4916078ca51e05b6b800b",
        "adace1e0ed228fccda1f39692059dd4c",
        "b718ff6835fcbdb22ba9eacccd7b2601",
    ),
    "tissuemnist": (
        "ebe78ee8b05294063de985d821c1c34b",
        "123ece2eba09d0aa5d698fda57103344",
        "61b955355d7425a89687b06cca3ce0c2",
        "b077128c4a949f0a4eb01517f9037b9c",
    ),
    "organamnist": (
        "68e3f8846a6bd62f0c9bf841c0d9eacc",
        "2dcccc29b88e6da5a01161ef20cda288",
        "eeae80d0a227a8d099027e1b3cfd3b60",
        "50747347e05c87dd3aaf92c49f9f3170",
    ),
    "organcmnist": (
        "b9ceb9546e10131b32923c5bbeaea2b1",
        "3ce34a8724ea6f548e6db4744d03b6a9",
        "773c1f009daa3fe5d9a2a201b2a7ed94",
        "050f5e875dc056f6768abf94ec9995d1",
    ),
    "organsmnist": (
        "9ab87b696fb54e2a387ebe992d6ed5f1",
        "53a6d115339d874c25e309a994ff46d3",
        "ded0c5fa01a95dc4978b956f613e9b8e",
        "b354719e553fbbb2513d5533f52a4cb1",
    ),
}
"""set -> the checksum of the file of each of `SIZES`"""
