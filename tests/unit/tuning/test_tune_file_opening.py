"""Files for tuning: compressed and truncated ones, pipes, and those that cannot be opened."""

from __future__ import annotations

import gzip
import mmap
import os
import sys
import threading
import zlib
from pathlib import Path

import cramjam
import pytest

from streams_app.errors import ConfigurationError
from streams_app.tuning.input_file import opened, size_of
from tests.unit.tuning.events_file import BEGIN_MS, Read, line


def compressed(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        return bytes(cramjam.zstd.compress(data))
    return gzip.compress(data) if suffix == ".gz" else data


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_file_is_read_with_any_compression(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events.jsonl{suffix}"
    path.write_bytes(compressed(b"\n".join(line(BEGIN_MS + n) for n in range(5_000)), suffix))
    read = Read(path)

    assert (5_000, BEGIN_MS + 4_999, {}, []) == (read.columns.events, read.columns.to_ms, read.tally.rejected, read.tally.remarks)


def lines_there(path: Path, suffix: str) -> int:
    """Return the number of whole lines in a truncated compressed file."""
    if suffix == ".gz":
        return zlib.decompressobj(31).decompress(path.read_bytes()).count(b"\n")
    with pytest.raises(OSError, match="incomplete frame"), opened(path) as (stream, _):
        there = stream.read()
    return there.count(b"\n")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_compressed_file_is_read_up_to_its_last_whole_line(tmp_path: Path, suffix: str) -> None:
    data = b"\n".join(line(BEGIN_MS + n, pad=str(n**5 % 1_000_003)) for n in range(30_000))
    whole = compressed(data, suffix)
    path = tmp_path / f"events.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    read = Read(path)

    assert lines_there(path, suffix) == read.columns.events
    assert 1 == read.tally.rejected["broken-off"]
    assert "the file cannot be read any further: " in read.tally.examples["broken-off"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_file_without_any_readable_line_is_rejected(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events.jsonl{suffix}"
    path.write_bytes(compressed(line(), suffix)[:12])

    assert "it cannot be read, see the reason above" == Read(path).advice


def test_mapped_file_is_released_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.tuning.input_file.GIVE_BACK_BYTES", 1_000)
    path = tmp_path / "events.jsonl.zst"
    path.write_bytes(compressed(b"\n".join(line(BEGIN_MS + n, pad=os.urandom(500).hex()) for n in range(5_000)), ".zst"))
    given_back: list[int] = []

    class Mapped(mmap.mmap):
        def madvise(self, option: int, *_: int) -> None:
            super().madvise(option)
            given_back.append(option)

    monkeypatch.setattr("streams_app.tuning.input_file.mmap.mmap", Mapped)
    read = Read(path)

    assert (5_000, {}) == (read.columns.events, read.tally.rejected)
    assert {mmap.MADV_DONTNEED} == set(given_back)


def test_pipe_compressed_by_zstd_names_the_command_that_decompresses_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(compressed(line(), ".zst")))
    thread.start()

    with pytest.raises(ConfigurationError, match="pipe it through `zstd -dc`"):
        Read(pipe)
    thread.join()


def test_closed_standard_input_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(ConfigurationError, match="standard input is closed"):
        Read(Path("-"))


def test_pipe_is_opened_only_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert None is size_of(pipe)


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none\.jsonl: No such file"):
        Read(tmp_path / "none.jsonl")
