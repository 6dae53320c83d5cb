"""Files that are whole outside and odd within end no process, hang none and fill no memory."""

import json
import resource

import pytest

from tests.launched import in_fork


@pytest.mark.slow
def test_files_that_are_changed_by_their_structure_are_refused_or_read(tmp_path):
    """In a process of its own, which a signal may end; ten seconds, with a seed that stays."""

    def change_files():
        from tests.fuzz import structure

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print(json.dumps(structure.run(10, 0)))
        return 0

    with open(tmp_path / "said", "w+") as said:
        status = in_fork(change_files, said.fileno())
        said.seek(0)
        lines = said.read().splitlines()
    assert status == 0, (status, lines[-20:])
    found = json.loads(lines[-1])
    assert found["faults"] == []
    assert found["files"] > 200
