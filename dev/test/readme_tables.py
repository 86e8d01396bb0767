#!/usr/bin/env python3
"""Figures of a kind of machine are written between its own markers: those of others stay, a new kind gets its place.
The first page shows six rows of them. Pages that are made from figures say what the figures do."""
import dataclasses
import json
import pathlib
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import batch_size
import bench
import first_page
import messages
import readme
from run_script import script

CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: A CPU\nflags\t\t: fpu {}\n"


def write(text, machine, kind, parts=("steps",)):
    report = bench.Report()
    report.rows = [{"part": part, "what": "step", "who": text, "min_ms": 1, "note": ""} for part in parts]
    report.rooflines, report.products = {"steps": [f"kernel {text}"]}, [f"product {text}"]
    bench.write_tables(report, machine, kind)


def first_page_has_the_fastest():
    """Of each row that the first page shows, ours and the fastest of the others; what was not measured is named."""
    measured, machine = "", "Intel(R) Machine CPU @ 2GHz (AVX2, AMX)"
    for part, kind in dict.fromkeys(columns[1:3] for columns in first_page.ROWS):
        measured += f"<!-- bench {part} {kind} begin -->\nMeasured 2026-01-02 on {machine}, 2 threads by me.\n\n"
        for _, its_part, its_kind, what, ours, others in first_page.ROWS:
            if (part, kind) == (its_part, its_kind):
                measured += f"| {what} | {ours} | 1,000 ms | 1,001 ms | 5 MiB | plan 5 MiB |\n"
                for mode, ms, ratio in ("slow", "10,200", "10.20"), ("fast", "9,900", "9.90"):
                    measured += f"| {what} | {others.replace('.*', mode)} | {ms} ms | 9 ms | | {ratio} times ours |\n"
        measured += f"<!-- bench {part} {kind} end -->\n"
    for gpu in dict.fromkeys(gpu for _, gpu, _ in first_page.GPU_ROWS):
        measured += f"<!-- gpu bench {gpu} begin -->\nMeasured on {gpu}, CUDA 13.0, 2026-03-04, by me.\n\n"
        for what in [what for _, its_gpu, what in first_page.GPU_ROWS if its_gpu == gpu]:
            measured += f"| {what} | this trainer, bf16 | 10.00 ms | 11.00 ms |\n"
            measured += f"| {what} | PyTorch tuned, bf16 | 15.00 ms | 11.00 ms |\n"
        measured += f"<!-- gpu bench {gpu} end -->\n"
    table = first_page.speed_table(measured)
    assert table.count("| Intel Machine, AMX | 1,000 ms | 9,900 ms | 9.90 |\n") == len(first_page.ROWS) - 1, table
    assert table.count(" | 10.00 ms | 15.00 ms | 1.50 |\n") == len(first_page.GPU_ROWS), table
    assert table.startswith("Minima; CPUs with 2 threads, measured 2026-01-02 by") and "2026-03-04" in table, table
    try:
        first_page.speed_table(measured.replace("| this trainer, bf16 |", "| another |"))
        raise AssertionError("a row that was not measured was accepted")
    except SystemExit as error:
        assert "`this trainer, bf16`" in str(error), error


def pages_are_made_from_figures():
    """--page of a script writes what is committed; with other figures, another page and picture."""
    for module in batch_size, messages:
        with tempfile.TemporaryDirectory() as name:
            kept, folder = module.SHOWN, pathlib.Path(name)
            places = {field: folder / getattr(kept, field).relative_to(module.COURSE)
                      for field in ("figures", "page", "picture")}
            (folder / "pictures").mkdir()
            for field in "figures", "page":
                places[field].write_text(getattr(kept, field).read_text())
            module.SHOWN = dataclasses.replace(kept, **places)
            try:
                script(module, "--page")
                for field in "page", "picture":
                    assert places[field].read_text() == getattr(kept, field).read_text(), \
                        f"{getattr(kept, field)} is not what its figures say: run {module.__file__} --page"
                other = json.loads(kept.figures.read_text())
                other["runs"], other["model"] = other["runs"][1:], "ANOTHER"
                places["figures"].write_text(json.dumps(other))
                script(module, "--page")
                for field in "page", "picture":
                    assert places[field].read_text() != getattr(kept, field).read_text(), getattr(kept, field)
                places["figures"].unlink()
                assert "--write makes it" in script(module, "--page", status=1)
            finally:
                module.SHOWN = kept


def main():
    first_page_has_the_fastest()
    pages_are_made_from_figures()
    with tempfile.TemporaryDirectory() as folder:
        bench.ROOT = root = pathlib.Path(folder)
        (root / "dev/cpu").mkdir(parents=True)
        names = {root / readme.MEASURED: ["bench steps", "bench small"],
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
        text = (root / readme.MEASURED).read_text()
        assert text.count("SECOND") == 2 and text.count("THIRD") == 1 and text.count("\nan AMD one") == 1, text
        (root / readme.MEASURED).write_text("nothing")
        try:
            write("FOURTH", "an Intel one", "amx")
            raise AssertionError("a page without a place for tables was accepted")
        except SystemExit as error:
            assert "<!-- bench steps tables -->" in str(error), error
        info = root / "cpuinfo"
        for flags, kind in (("avx2 avx512f avx512_bf16 amx_bf16", "amx"), ("avx2 avx512f avx512_bf16", "avx512-bf16"),
                            ("avx2 avx512f avx512_bf16 avx512_fp16", "avx512"),
                            ("avx2 avx512f", "avx512"), ("avx2", "avx2")):
            info.write_text(CPUINFO.format(flags))
            found, name = readme.this_cpu(str(info))
            assert found == kind and name.startswith("A CPU ("), (found, name)
        amd = CPUINFO.replace("GenuineIntel", "AuthenticAMD\ncpu family\t: {}")
        for family, kind, what in ((25, "zen4", "(AVX512-BF16, Zen 4)"), (26, "zen5", "(AVX512-BF16, Zen 5)"),
                                   (99, "avx512-bf16", "(AVX-512, AVX512-BF16)")):
            info.write_text(amd.format(family, "avx2 avx512f avx512_bf16"))
            found, name = readme.this_cpu(str(info))
            assert found == kind and name == f"A CPU {what}" and kind in readme.MULTIPLY_BF16, (found, name)
        info.write_text(amd.format(25, "avx2"))
        assert readme.this_cpu(str(info))[0] == "avx2"
        assert all(readme.this_cpu(str(root / "none")))


main()
