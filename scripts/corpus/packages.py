# SPDX-License-Identifier: Apache-2.0
"""Fetches packages by name with the ordinary clients and reads their files without running them."""

import bz2
import gzip
import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

# Wheels of compiled packages differ between machines, so the list names one platform.
WHEEL_PLATFORM = ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64", "--platform", "any",
                  "--python-version", "3.11", "--implementation", "cp"]  # fmt: skip
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
MAX_MEMBER_BYTES = 4 << 20
MAX_PLAIN_BYTES = 64 << 20  # of a compressed file; no document is as long
# What readers of archives and compressed files raise for damaged ones; RuntimeError is for encrypted wheels.
DAMAGED = (OSError, EOFError, ValueError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
           lzma.LZMAError)  # fmt: skip


class CorpusError(Exception):
    """A package or list that is not as expected. The message names it."""


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _client_command(package: dict) -> list[str]:
    name, version = package["name"], package.get("version")
    if package["source"] == "debian":
        return ["apt-get", "download", f"{name}={version}" if version else name]
    wanted = f"{name}=={version}" if version else name
    # A wheel needs no build, so pip runs nothing of the package.
    return [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            *WHEEL_PLATFORM, "--dest", ".", wanted]  # fmt: skip


def _download(package: dict, folder: Path) -> Path:
    name, version = package["name"], package.get("version", "any")
    # A folder of its own, so that a file that was there before is no obstacle.
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as own:
        try:
            done = subprocess.run(_client_command(package), cwd=own, capture_output=True, text=True)
            problem = "" if done.returncode == 0 else (done.stderr.strip() or "no message").splitlines()[-1]
        except OSError as error:
            problem = str(error)
        if problem:
            raise CorpusError(f"package {name}: expected version {version} from {package['source']}, got: {problem}")
        new = list(Path(own).iterdir())
        if len(new) != 1:
            raise CorpusError(f"package {name}: expected a download of one file, got {len(new)}")
        return new[0].replace(folder / new[0].name)


def fetch(package: dict, folder: Path) -> Path:
    """Returns the package's file in `folder`, after a download if it is not there.

    Raises CorpusError if the registry does not have the version or the hash differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / package["file"] if package.get("file") else None
    if path is None or not path.exists():
        found = _download(package, folder)
        if path and found.name != path.name:
            raise CorpusError(f"package {package['name']}: expected file {path.name}, got {found.name}")
        path = found
    expected, got = package.get("sha256"), sha256_of(path)
    if expected and got != expected:
        raise CorpusError(f"package {package['name']}: file {path}: expected sha256 {expected}, got {got}")
    return path


def _tar_members(stream: io.BufferedIOBase, prefix: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            name = prefix + member.name.removeprefix("./")
            if not member.isfile():
                continue
            file = archive.extractfile(member)
            if name.endswith(ARCHIVES):
                yield from _inner_members(file, name + "/")
            elif member.size <= MAX_MEMBER_BYTES:
                yield name, file.read()


def _inner_members(stream: io.BufferedIOBase, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Reads an archive inside a package. Skips the rest of a file that is damaged or no archive."""
    try:
        yield from _tar_members(stream, prefix)
    except DAMAGED:
        return


def _deb_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Reads the files of a Debian package: an ar archive that holds data.tar, compressed."""
    data = path.read_bytes()
    if not data.startswith(b"!<arch>\n"):
        raise CorpusError(f"file {path}: expected a Debian package, got other bytes")
    at = 8
    while at + 60 <= len(data):
        name = data[at : at + 16].decode("ascii", "replace").strip().rstrip("/")
        size = int(data[at + 48 : at + 58])
        if size < 0:
            raise CorpusError(f"file {path}: expected members of 0 bytes or more, got {size}")
        if name.startswith("data.tar"):
            yield from _tar_members(io.BytesIO(data[at + 60 : at + 60 + size]), "")
            return
        at += 60 + size + size % 2
    raise CorpusError(f"file {path}: expected a member data.tar, got none")


def _zip_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir() and info.file_size <= MAX_MEMBER_BYTES:
                yield info.filename, archive.read(info)


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the files in a package and in archives that it holds.

    Files compressed with gzip, bzip2 or xz come without compression and suffix. Damaged and huge ones do not come.
    """
    reader = _deb_members if path.suffix == ".deb" else _zip_members
    if path.name.endswith(ARCHIVES):
        with path.open("rb") as stream:
            yield from _plain(_tar_members(stream, ""))
        return
    yield from _plain(reader(path))


def _plain(found: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    for name, content in found:
        suffix = Path(name).suffix
        if suffix in openers:
            try:
                with openers[suffix](io.BytesIO(content)) as file:
                    name, content = name.removesuffix(suffix), file.read(MAX_PLAIN_BYTES + 1)
            except DAMAGED:
                continue
            if len(content) > MAX_PLAIN_BYTES:
                continue
        yield name, content
