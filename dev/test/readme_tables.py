#!/usr/bin/env python3
"""Figures of a kind of machine are written between its own markers: those of others stay, a new kind gets its place."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench
import readme

CPUINFO = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu {}\n"


def write(text, machine, kind, parts=("steps",)):
    report = bench.Report()
    report.rows = [{"part": part, "what": "step", "who": text, "min_ms": 1, "note": ""} for part in parts]
    report.rooflines, report.products = {"steps": [f"kernel {text}"]}, [f"product {text}"]
    bench.write_readme(report, machine, kind)


def main():
    with tempfile.TemporaryDirectory() as folder:
        bench.ROOT = root = pathlib.Path(folder)
        (root / "dev/cpu").mkdir(parents=True)
        names = {root / "README.md": ["bench steps", "bench small"],
                 root / "dev/cpu/README.md": ["roofline steps", "products"]}
        for path, tables in names.items():
            places = [f"<!-- {name} tables -->\n\n<!-- {name} avx512-bf16 begin -->\nan AMD one\n"
                      f"<!-- {name} avx512-bf16 end -->\n" for name in tables]
            path.write_text("before\n" + "between\n".join(places) + "after\n")
        write("FIRST", "an Intel one", "amx", ("steps", "small"))
        write("SECOND", "an Intel one", "amx", ("steps", "small"))  # replaces the first one's tables
        for path, tables in names.items():
            text = path.read_text()
            assert "before" in text and "after" in text and text.count("an AMD one") == len(tables), text
            assert text.count("SECOND") == len(tables) and "FIRST" not in text, text
            for name in tables:
                begin, end = text.index(f"<!-- {name} amx begin -->"), text.index(f"<!-- {name} amx end -->")
                assert "SECOND" in text[begin:end] and end < text.index(f"<!-- {name} avx512-bf16 begin -->"), text
        write("THIRD", "another AMD one", "avx512-bf16")  # of one part: the table of the other stays
        text = (root / "README.md").read_text()
        assert text.count("SECOND") == 2 and text.count("THIRD") == 1 and text.count("\nan AMD one") == 1, text
        (root / "README.md").write_text("nothing")
        try:
            write("FOURTH", "an Intel one", "amx")
            raise AssertionError("a README without a place for tables was accepted")
        except SystemExit as error:
            assert "<!-- bench steps tables -->" in str(error), error
        info = root / "cpuinfo"
        for flags, kind in (("avx2 avx512f avx512_bf16 amx_bf16", "amx"), ("avx2 avx512f avx512_bf16", "avx512-bf16"),
                            ("avx2 avx512f", "avx512"), ("avx2", "avx2")):
            info.write_text(CPUINFO.format(flags))
            found, name = readme.this_cpu(str(info))
            assert found == kind and name.startswith("A CPU ("), (found, name)
        assert all(readme.this_cpu(str(root / "none")))


main()
