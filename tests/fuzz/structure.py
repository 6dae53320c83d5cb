"""Files changed by their structure: opcodes of pickles, members of archives, headers of arrays, values of JSON.

Bytes that are flipped at random seldom pass a checksum; here each copy is whole outside, and odd within.
`python -m tests.fuzz.structure SECONDS SEED` changes files for so long and prints what became of them.
"""

import io
import json
import pickletools
import random
import resource
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgen.clients.partitions import IID, load_partition, save_partition
from fedgen.data import Examples
from fedgen.data.sets.pickled_images import read_pickle
from fedgen.evaluation import append_records, read_records
from fedgen.federated.left_out import LEFT_OUT_FILE, read_left_out
from fedgen.flower.client.pins import PINNED, SUMMED, hold_to_clients
from fedgen.flower.client.policy import Policy
from fedgen.io.files import read_npz, read_yaml
from fedgen.io.tensor_files import read_safetensors, read_torch, write_safetensors
from fedgen.io.torch_files import leaves
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.reports.contents import KEPT
from fedgen.reports.page import report
from fedgen.statistics import load_npz, save_npz, summarize
from tests.evaluation.samples import record
from tests.fuzz.damage import REFUSALS, HangError, _limited

LONGEST = 4_000_000  # bytes of a file: reading takes time by its length, some third of a second a megabyte
MEMORY = 1024  # MB that the process may grow by over all files
ODD = [
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**61 - 1,
    2**63,
    2**64,
    0.5,
    float("inf"),
    True,
    None,
    "",
    "x" * 300,
    "\x1b[2J",
    [],
    {},
]
NAMES = [
    "ctorch\nTensor\n",
    "ctorch\nFloatStorage\n",
    "ctorch.storage\nTypedStorage\n",
    "cos\nsystem\n",
    "cbuiltins\nset\n",
]
NAMES += [
    "ccollections\nOrderedDict\n",
    "cbuiltins\nbytearray\n",
    "ctorch._utils\n_rebuild_tensor_v2\n",
    "ctorch\nSize\n",
]
PIECES = [
    b"N",
    b")",
    b"]",
    b"}",
    b"(",
    b"0",
    b"a",
    b"s",
    b"u",
    b"e",
    b"t",
    b"\x85",
    b"\x86",
    b"R",
    b"b",
    b"\x81",
    b"Q",
    b"2",
]
PIECES += [name.encode() for name in NAMES] + [
    b"J" + bytes(4),
    b"J\xff\xff\xff\x7f",
    b"h\0",
    b"q\0",
    b"\x8a\x08" + b"\xff" * 8,
]


# ---- what is changed ----


def change_pickle(content: bytes, source: random.Random) -> bytes:
    """A stream with some opcodes lost, doubled, swapped or new."""
    places = [place for _, _, place in pickletools.genops(content)] + [len(content)]
    parts = [content[a:b] for a, b in pairwise(places)]
    for _ in range(source.choice([1, 1, 2, 5])):
        place, other = source.randrange(len(parts)), source.randrange(len(parts))
        kind = source.randrange(6)
        if kind == 0:
            parts[place] = b""
        elif kind == 1:
            parts.insert(place, parts[other] * source.choice([1, 1, 100]))
        elif kind == 2:
            parts[place], parts[other] = parts[other], parts[place]
        elif kind == 3:
            parts.insert(place, source.choice(PIECES) * source.choice([1, 1, 2, 20_000]))
        elif kind == 4:
            parts[place] = source.choice(PIECES)
        else:
            parts[place] = bytes(byte ^ (1 << source.randrange(8)) * (source.random() < 0.2) for byte in parts[place])
    return b"".join(parts)


def change_archive(
    content: bytes, source: random.Random, change: Callable[[str, bytes, random.Random], bytes]
) -> bytes:
    """An archive with right checksums, of which some members were changed, renamed, lost, doubled or compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(member.filename, archive.read(member)) for member in archive.infolist()]
    place = source.randrange(len(members))
    name, data = members[place]
    kind = source.randrange(8)
    if kind <= 3:
        members = [(one, change(one, held, source)) for one, held in members]
    elif kind == 4:
        del members[place]
    elif kind == 5:
        members.append((source.choice([name, name + "/", "../" + name, "x", name.upper()]), data))
    elif kind == 6:
        members[place] = (name, data[: source.randrange(len(data) + 1)] + bytes(source.choice([0, 1, 64])))
    else:
        members[place] = (name, source.choice(members)[1])
    file = io.BytesIO()
    packed = zipfile.ZIP_DEFLATED if source.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", packed) as archive:
        for one, held in members:
            archive.writestr(zipfile.ZipInfo(one), held, packed)
    return file.getvalue()


def change_torch(content: bytes, source: random.Random) -> bytes:
    return change_archive(content, source, lambda name, data, s: change_pickle(data, s) if "data.pkl" in name else data)


def change_npz(content: bytes, source: random.Random) -> bytes:
    def change(name: str, data: bytes, source: random.Random) -> bytes:
        if source.random() < 0.5:
            return data
        size = int.from_bytes(data[8:10], "little")
        head, body = data[10 : 10 + size].decode("latin1"), data[10 + size :]
        old = source.choice(["False", "True", "shape", "(", ",", "<f8", "|u1", "<i8", "descr", "}"])
        new = source.choice(["True", "None", "-1", "(9999999999,)", "|O", "<U99", "{", "[1]*9", "1e9", ""])
        head = head.replace(old, new, 1)
        body = body if body[:1] != b"{" else change_json(body, source)
        return data[:8] + len(head.encode()).to_bytes(2, "little") + head.encode() + body

    return change_archive(content, source, change)


def change_json(content: bytes, source: random.Random) -> bytes:
    """Lines of JSON of which some values are others."""
    lines = content.decode().split("\n")
    place = source.randrange(len(lines))
    try:
        value = json.loads(lines[place])
    except ValueError:
        return content
    homes: list[Any] = [value]
    for home in homes:
        homes.extend(
            part for part in (home.values() if isinstance(home, dict) else home) if isinstance(part, (dict, list))
        )
    home = source.choice([one for one in homes if one] or [{"a": 1}])
    key = source.choice(list(home)) if isinstance(home, dict) else source.randrange(len(home))
    deep: Any = source.choice(ODD)
    for _ in range(source.choice([0, 0, 0, 3, 900])):
        deep = [deep]
    home[key] = deep
    lines[place] = json.dumps(value)
    return "\n".join(lines).encode()


def change_yaml(content: bytes, source: random.Random) -> bytes:
    lines = content.decode().split("\n")
    for _ in range(source.choice([1, 3])):
        new = [
            "&a",
            "*a",
            "<<: *a",
            "? [1]",
            "!!set {1}",
            "!!python/name:os.system",
            "1:59:59",
            "{" * 50,
            "- " * 50,
            "'",
            "%",
        ]
        place = source.randrange(len(lines))
        lines[place] = lines[place] + " " + source.choice(new) if source.random() < 0.5 else source.choice(lines)
    return "\n".join(lines).encode()


def change_safetensors(content: bytes, source: random.Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    head = change_json(content[8 : 8 + size].rstrip(), source)
    return len(head).to_bytes(8, "little") + head + content[8 + size :]


# ---- the files ----


def write_checkpoint(path: Path, **options: Any) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    parameters = {"generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 2}}}
    shared = torch.arange(6.0)
    torch.save(
        {
            "state_dict": network.state_dict(),
            "hyper_parameters": parameters,
            "epoch": 3,
            "views": [shared, shared[::2], nn.Parameter(shared)],
            "rest": [
                OrderedDict(a=1),
                Counter({3: 1}),
                {1, 2},
                b"abc",
                bytearray(b"a"),
                torch.Size([2]),
                torch.float16,
            ],
        },
        path,
        **options,
    )


def write_partition(path: Path) -> None:
    images = torch.zeros(20, 1, 2, 2, dtype=torch.uint8)
    save_partition(path, IID(3), Examples(images, torch.arange(20) % 4, "toy/train", tuple("abcd")), 0)


def write_batch(path: Path) -> None:
    import pickle

    path.write_bytes(pickle.dumps({"data": np.arange(12, dtype=np.uint8), "labels": [1, 2], b"x": (1.5, None)}, 2))


def write_recipe(path: Path) -> None:
    path.write_bytes((Path(__file__).parents[2] / "recipes" / "quickstart.yaml").read_bytes())


def write_policy(path: Path) -> None:
    path.write_text("runs: [a, b]\nmasking: true\nleast_clients: 3\nstatistics: [fid]\nmost_epsilon: 8.0\n")


def read_pins(path: Path) -> None:
    """What a client keeps of who was summed; of other clients it refuses."""
    kept = path.parent / "pins" / PINNED / SUMMED / "round 0.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(path.read_bytes())
    hold_to_clients(path.parent / "pins", "round 0", ["a", "b"])


def read_beside(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A reader of a folder with a file of this name."""

    def reading(path: Path) -> Any:
        (path.parent / name).write_bytes(path.read_bytes())
        return read(path.parent)

    return reading


def write_federation(path: Path) -> None:
    clients = [{"name": "a", "role": "trains", "train": 3, "held_out": 1, "labels": [1, 2]}]
    path.write_text(json.dumps({"versions": {"torch": "2"}, "classes": ["x", "y"], "clients": clients, "real": ["a"]}))


def read_page(folder: Path) -> str:
    """The page of a folder whose clients are what the file says."""
    if not (folder / "scores.jsonl").exists():
        append_records(folder / "scores.jsonl", [record(round=r, per_client=[1.0, 2.0]) for r in range(2)])
    page = report(folder).html
    if "Content-Security-Policy" not in page[:3000] or "<script" in page.split("<main")[1].split("</main>")[0]:
        raise AssertionError("the page has a script of the data's, or no policy")
    return page


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[bytes, random.Random], bytes], Callable[[Path], Any]]] = {
    "checkpoint": (write_checkpoint, change_torch, read_checkpoint),
    "torch": (write_checkpoint, change_torch, read_torch),
    "pickle": (write_batch, change_pickle, read_pickle),
    "partition": (write_partition, change_npz, load_partition),
    "statistics": (
        lambda path: save_npz(path, summarize(torch.randn(9, 3)), "pixels", "0" * 32, "none"),
        change_npz,
        load_npz,
    ),
    "npz": (lambda path: np.savez(path, x=np.arange(9.0), t=np.asarray("a")), change_npz, read_npz),
    "records": (
        lambda path: append_records(path, [record(round=r, per_client=[1.0, 2.0]) for r in range(3)]),
        change_json,
        read_records,
    ),
    "recipe": (write_recipe, change_yaml, read_yaml),
    "policy": (write_policy, change_yaml, Policy.read),
    "pins": (lambda path: path.write_text('["a", "b"]'), change_json, read_pins),
    "left out": (
        lambda path: path.write_text('{"round": 1, "client": 0, "name": "a", "reason": "x"}\n'),
        change_json,
        read_beside(LEFT_OUT_FILE, read_left_out),
    ),
    "page": (write_federation, change_json, read_beside(KEPT, read_page)),
    "safetensors": (
        lambda path: write_safetensors(path, {"w": torch.arange(6.0)}, {"about": "x"}),
        change_safetensors,
        read_safetensors,
    ),
}


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Changes and reads files for so long, in a process that may end of it.

    Returns:
        files read, refused and accepted by kind; faults in words; the longest time and the growth of memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    source, counts, faults, longest = random.Random(seed), Counter[str](), [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        honest = {}
        for kind, (write, _, read) in KINDS.items():
            path = Path(folder) / f"honest-{kind}.npz"
            write(path)
            read(path)
            honest[kind] = path.read_bytes()
        before, end = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic() + seconds
        while time.monotonic() < end:
            kind = source.choice(list(KINDS))
            _, change, read = KINDS[kind]
            content = change(honest[kind], source)
            if len(content) > LONGEST:
                continue
            path = Path(folder) / "a.npz"
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            start = time.process_time()
            try:
                with _limited():
                    value = read(path)
                odd = [part for part in leaves(value) if isinstance(part, torch.Tensor)]
                if any(type(part) not in (torch.Tensor, nn.Parameter) or vars(part) for part in odd):
                    faults.append(f"{kind}: a tensor with attributes")
                counts[f"{kind} accepted"] += 1
            except REFUSALS:
                counts[f"{kind} refused"] += 1
            except (HangError, Exception) as error:
                Path(tempfile.gettempdir(), f"fault-{kind}-{len(faults)}").write_bytes(content)
                faults.append(f"{kind}: {error!r}"[:300])
            longest = max(longest, time.process_time() - start)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if grown > MEMORY:
        faults.append(f"{grown:.0f} MB")
    return {
        "files": sum(counts.values()),
        **counts,
        "faults": faults,
        "longest s": round(longest, 2),
        "MB": round(grown),
    }


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]), int(sys.argv[2]))))
