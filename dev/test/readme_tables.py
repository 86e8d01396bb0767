#!/usr/bin/env python3
"""Figures of one kind of machine are written between its own markers: those of others stay, a new kind gets its place."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import bench
import readme

CPUINFO = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu {}\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        bench.ROOT = root = pathlib.Path(folder)
        (root / "dev/cpu").mkdir(parents=True)
        files = {"bench": root / "README.md", "roofline": root / "dev/cpu/README.md"}
        for name, path in files.items():
            path.write_text(f"before\n<!-- {name} tables -->\n\n<!-- {name} avx512-bf16 begin -->\nan AMD one\n"
                            f"<!-- {name} avx512-bf16 end -->\nafter\n")
        for ms in (111, 222):  # the second run replaces the first one's table
            row = {"what": "step", "who": "this trainer", "min_ms": ms, "note": ""}
            bench.write_readme([row], [f"kernel {ms}"], "an Intel one", "amx")
        for name, path in files.items():
            text = path.read_text()
            assert "before" in text and "after" in text and "an AMD one" in text, text
            assert "222" in text and "111" not in text and text.count(f"<!-- {name} amx begin -->") == 1, text
            assert text.index("222") < text.index(f"<!-- {name} amx end -->") < text.index("an AMD one"), text
        bench.write_readme([{"what": "step", "who": "this trainer", "note": ""}], [], "another AMD one", "avx512-bf16")
        text = files["bench"].read_text()
        assert "222" in text and "another AMD one" in text and "\nan AMD one" not in text, text
        files["bench"].write_text("nothing")
        try:
            bench.write_readme([], [], "an Intel one", "amx")
            raise AssertionError("a README without a place for tables was accepted")
        except SystemExit as error:
            assert "<!-- bench tables -->" in str(error), error
        info = root / "cpuinfo"
        for flags, kind in (("avx2 avx512f avx512_bf16 amx_bf16", "amx"), ("avx2 avx512f avx512_bf16", "avx512-bf16"),
                            ("avx2 avx512f", "avx512"), ("avx2", "avx2")):
            info.write_text(CPUINFO.format(flags))
            found, name = readme.this_cpu(str(info))
            assert found == kind and name.startswith("A CPU ("), (found, name)
        assert all(readme.this_cpu(str(root / "none")))


main()
