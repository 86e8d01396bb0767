"""The files of a dataset: local ones, or those of the Hugging Face hub, which a thread downloads while the first ones
are tokenized. token_parts.py asks for names, sizes, and
    ready(index), path(index)   whether a file is there, and where
    release_before(index)       the files before this one are tokenized
    at_once                     so many files can be there before the first is tokenized
    note()                      what a line of progress says besides
"""
import hashlib
import os
import pathlib
import shutil
import tarfile
import threading

import hub
from files import fail

DOWNLOADS_AHEAD = 2  # files that are there, or under way, beside the one that is tokenized


class LocalFiles:
    def __init__(self, paths):
        self.names = [str(path) for path in paths]
        self.sizes = [path.stat().st_size for path in paths]
        self.at_once = len(paths)

    def path(self, index):
        return self.names[index]

    def ready(self, index):
        return True

    def release_before(self, index):
        pass

    def note(self):
        return ""


class HubFiles:
    """Files that a thread downloads, in order, not far ahead of what is tokenized; then they are removed."""

    def __init__(self, name, revision, listed, folder, address, keep):
        self.names, self.sizes = [file[0] for file in listed], [file[1] for file in listed]
        self.listed, self.folder, self.keep = listed, folder, keep
        self.at_once = DOWNLOADS_AHEAD + 1
        self.url = f"{address}/datasets/{name}/resolve/{revision}"
        self.wanted_from = self.downloaded = 0  # files before these are not wanted any more; are there
        self.have, self.failure = 0, None       # bytes of the file under way
        self.changed = threading.Condition()

    def start(self, first):
        self.wanted_from = self.downloaded = first
        self.folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self.download, daemon=True).start()

    def download(self):
        try:
            for index in range(self.downloaded, len(self.listed)):
                with self.changed:
                    self.changed.wait_for(lambda: index <= self.wanted_from + DOWNLOADS_AHEAD)
                name, *file = self.listed[index]
                path = pathlib.Path(self.path(index))
                if not hub.is_there(path, *file):
                    hub.fetch(f"{self.url}/{name}", path, *file, progress=self)
                self.have, self.downloaded = 0, index + 1
        except OSError as error:
            self.failure = f"cannot write {error.filename or self.folder}: {error.strerror}"
        except SystemExit as end:
            self.failure = str(end)

    def reach(self, have):  # these two are what hub.fetch() calls
        self.have = have

    def done(self):
        pass

    def path(self, index):
        return str(self.folder / self.names[index].replace("/", "--"))

    def ready(self, index):
        if self.failure and index >= self.downloaded:
            fail(self.failure.removeprefix("error: "))
        return index < self.downloaded

    def release_before(self, index):
        for done in range(self.wanted_from, min(index, self.downloaded)):
            if not self.keep:
                pathlib.Path(self.path(done)).unlink(missing_ok=True)
        with self.changed:
            self.wanted_from = max(self.wanted_from, index)
            self.changed.notify()

    def note(self):
        if self.downloaded == len(self.listed):
            return ""
        size = self.sizes[self.downloaded]
        return (f"; file {self.downloaded + 1} of {len(self.listed)} downloading, "
                f"{self.have // 1_000_000:,} of {size // 1_000_000:,} MB")


def files_in(source, kinds):
    """The files of these kinds: in a folder and those in it, sorted by path, or the one that is named."""
    if source.is_file():
        paths = [source] if source.suffix in kinds else []
    elif source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix in kinds and path.is_file())
    else:
        fail(f"{source} is not there")
    if not paths:
        kinds = " or ".join(kinds)
        fail(f"the folder {source} holds no {kinds} file" if source.is_dir() else f"{source} is no {kinds} file")
    return paths


def identity(paths):
    """What changes when one of the files does."""
    listed = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return {"from": f"{len(paths)} files", "identity": hashlib.sha256(repr(listed).encode()).hexdigest()}


def unpack(archive, folder):
    """Makes a folder of the .json files in TinyStories' archive."""
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    print(f"unpacking {archive}", flush=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".json"):
                    with open(temporary / pathlib.PurePath(member.name).name, "xb") as out:
                        shutil.copyfileobj(tar.extractfile(member), out, 1 << 20)
    except (tarfile.TarError, EOFError, FileExistsError) as error:
        fail(f"{archive} is damaged or no archive of .json files: {error}")
    os.rename(temporary, folder)
