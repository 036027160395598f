"""A small disk that can be filled: a file system in memory, which only root can mount."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SIZE_MEGABYTES = 64
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted disk, or none.

    Attributes:
        root: Mount point.
        is_there: Whether it could be mounted.
    """

    root: Path
    is_there: bool

    @classmethod
    def mounted(cls, folder: Path) -> Self:
        """Mount a disk below a folder, for the user that runs PostgreSQL; mount nothing if that is not permitted."""
        root = folder / "disk"
        root.mkdir()
        if os.geteuid() != 0:
            return cls(root, is_there=False)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MEGABYTES}m,mode=755", "tmpfs", str(root)]
        disk = cls(root, is_there=subprocess.run(command, check=False, capture_output=True).returncode == 0)
        if disk.is_there:
            disk.path.mkdir()
            disk._change_owner()
        return disk

    @property
    def path(self) -> Path:
        """The folder for a tablespace."""
        return self.root / "small"

    def fill(self) -> None:
        """Fill the disk completely."""
        ballast = os.open(self.root / "ballast", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            while True:
                os.write(ballast, b"x" * CHUNK_BYTES)
        except OSError:
            pass  # full
        finally:
            os.close(ballast)

    def empty(self) -> None:
        """Free the space again."""
        (self.root / "ballast").unlink()

    def replace(self, copy: Path) -> None:
        """Replace the contents by those of a copy."""
        shutil.rmtree(self.path)
        subprocess.run(["cp", "-a", str(copy), str(self.path)], check=True)

    def unmount(self) -> None:
        """Unmount the disk."""
        if self.is_there:
            subprocess.run(["umount", "-l", str(self.root)], check=False)

    def _change_owner(self) -> None:
        nobody = pwd.getpwnam("nobody")
        os.chown(self.path, nobody.pw_uid, nobody.pw_gid)
        self.path.chmod(0o700)
