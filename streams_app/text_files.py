"""Reads text files that others write, such as secrets, whose size is limited."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path, most: int) -> str:
    """Return the text of a UTF-8 file of at most ``most`` bytes, which may be a device or a pipe.

    Raises:
        OSError: The file cannot be read, or is larger.
        UnicodeDecodeError: The file is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has more than {most} bytes")
    return content.decode("utf-8")
