"""The limited size of the files that others write."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.text_files import read_text


def test_file_of_the_maximum_size_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("é" * 5, "utf-8")

    assert "é" * 5 == read_text(file, 10)


@pytest.mark.parametrize("path", [None, Path("/dev/zero")], ids=["one byte more", "without end"])
def test_larger_file_is_an_error(tmp_path: Path, path: Path | None) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a" * 11)

    with pytest.raises(OSError, match="it has more than 10 bytes"):
        read_text(path or file, 10)
