#!/usr/bin/env python3
"""Packs the files that git knows, as they are in the working tree, into build/gpt2-VERSION.tar.gz. The archive builds
without git; its file VERSION keeps the version. The same files give the same bytes.

    make dist
"""
import gzip
import io
import pathlib
import re
import subprocess
import sys
import tarfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBER_IN = "llmc/options/option_table.h"


def git(*words):
    ran = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else None


def version():
    """git describe without its v; before the first tag, the number that the programs print and the commit."""
    number = re.search(r'TRAINER_VERSION = "gpt2 trainer (.*?)"', (ROOT / NUMBER_IN).read_text())[1]
    described = git("describe", "--tags", "--match", "v[0-9]*", "--dirty")
    if described is None:
        return f"{number}-g{git('describe', '--always', '--dirty', '--exclude', '*').strip()}"
    described = described.strip()[1:]
    if re.split("-", described)[0] != number:
        sys.exit(f"error: the tag is v{described}, but {NUMBER_IN} says {number}; a tag with that number is accepted")
    return described


def add(archive, name, content, executable):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if executable else 0o644
    archive.addfile(entry, io.BytesIO(content))  # time 0, no owner


def main():
    listed = git("ls-files", "-z") if (ROOT / ".git").exists() else None
    if listed is None:
        unpacked = ROOT / "VERSION"
        here = f": this is the unpacked archive of {unpacked.read_text().strip()}" if unpacked.exists() else ""
        sys.exit(f"error: make dist needs git and a checkout{here}")
    folder = f"gpt2-{version()}"
    path = ROOT / "build" / f"{folder}.tar.gz"
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive:
            add(archive, f"{folder}/VERSION", (folder[5:] + "\n").encode(), False)
            for name in sorted(filter(None, listed.split("\0"))):
                file = ROOT / name
                if not file.is_file():
                    beside.unlink()
                    sys.exit(f"error: {name} is not there, but git knows it; git checkout or git rm is accepted")
                add(archive, f"{folder}/{name}", file.read_bytes(), file.stat().st_mode & 0o100)
    beside.replace(path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
