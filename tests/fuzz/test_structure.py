"""Files that are whole outside and odd within end no process, hang none and fill no memory."""

import json

import pytest

from tests.launched import said_in_fork


@pytest.mark.slow
def test_files_that_are_changed_by_their_structure_are_refused_or_read():
    """In a process of its own, which a signal may end; four seconds, with a seed that stays."""

    def change_files():
        from tests.fuzz import structure

        print(json.dumps(structure.run(4, 0)))

    status, said = said_in_fork(change_files)
    assert status == 0, (status, said[-2000:])
    found = json.loads(said.splitlines()[-1])
    assert found["faults"] == []
    assert found["files"] > 200
