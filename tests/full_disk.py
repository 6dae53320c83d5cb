"""Disks on which some files cannot be written any more."""

import errno
import os
import tempfile


def spoil(patch, is_spoilt, answer=errno.ENOSPC):
    """Files that are written atomically meet an error; what is written to /dev/full gets the system's own answer.

    Args:
        patch: pytest's monkeypatch.
        is_spoilt: of a file's folder and the beginning of its name, whether it cannot be written now.
        answer: ENOSPC, or another error that opening a file meets.
    """
    make = tempfile.mkstemp

    def mkstemp(dir, prefix, suffix):
        if not is_spoilt(dir, prefix):
            return make(dir=dir, prefix=prefix, suffix=suffix)
        if answer != errno.ENOSPC:
            raise OSError(answer, os.strerror(answer), f"{dir}/{prefix}")
        descriptor, path = make(dir=dir, prefix=prefix, suffix=suffix)
        os.close(descriptor)
        return os.open("/dev/full", os.O_WRONLY), path

    patch.setattr(tempfile, "mkstemp", mkstemp)
