#!/usr/bin/env python3
"""The page of make exercise SHOW=1 (dev/course/exercises/show.py): a bank conflict, a load that is not coalesced and a
race, each planted, are in it with the numbers of the counting build; what is right has no race. The solutions of other
exercises in CUDA, of every third or with --all of all, have a page, too. Where Chromium is, they open in it without an
error and say the same.

    dev/test/show.py MAKE [--all]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
sys.path.insert(0, str(ROOT / "dev/cusim"))
import counts  # noqa: E402
from book import Chromium, look  # noqa: E402

NAME = "transpose-shared"
SYNC = "    __syncthreads();\n"
STRIDED = "tile[y][x] = inp[(first_row + y) * cols + first_col + x]"
ACROSS = "if (first_row + x < rows && first_col + y < cols) tile[x][y] = inp[(first_row + x) * cols + first_col + y]"
PLANTED = {
    "right": [],
    "conflict": [("[TILE + 1]", "[TILE]")],
    "strided": [("if (first_row + y < rows && first_col + x < cols) " + STRIDED, ACROSS)],
    "race": [(SYNC, "")],
    # A step of the warp puts its lanes in order, and no others: warp w writes and reads row w.
    "warp": [(SYNC, "    __syncwarp();\n")],
}


def solution(name):
    text = (ROOT / f"dev/course/exercises/{name}.cu").read_text()
    return re.search(r"^// ----- solution\n(.*?)^// -----", text, re.M | re.S)[1]


def page_of(make, my, changes, name=NAME):
    """What the page holds, the text of the kernel, and the page."""
    text = solution(name)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (my / f"{name}.cu").write_text(text)
    page = my / f"{name}.html"
    page.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}
    done = subprocess.run([make, "-s", "CXX=g++", "exercise", f"EX={name}", "SHOW=1"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env={**environment, "EXERCISE_MY": str(my)})
    assert page.exists(), done.stdout
    assert page.stat().st_size < 1_000_000, page.stat().st_size
    assert "http" not in page.read_text(), "the page names something of the network"
    return json.loads(re.search(r"^const run = (.*);$", page.read_text(), re.M)[1]), text, page


def places(event):
    given = event[5]
    return given if len(given) == 32 else [given[0] + lane * given[1] for lane in range(32)]


def sectors(event, site):
    return len({at // 32 for at in places(event) if at >= 0})


def wavefronts(event, site):
    """Of accesses of 4 bytes: the most words that one bank has to deliver."""
    assert site[3] == 4, site
    words = {at // 4 for at in places(event) if at >= 0}
    return max(sum(word % 32 == bank for word in words) for bank in range(32))


def check_numbers(run, kernels):
    """The page beside the file of counts: the tables of all launches; the requests of those of one block, of which
    the file has the sum."""
    single = {}
    for launch in run["launches"]:
        kernel = next(k for k in kernels if (k["kernel"], k["grid"], k["block"]) ==
                      (launch["name"], launch["grid"], launch["block"]))
        for kind in counts.GLOBAL + counts.SHARED:
            rows = [x for x in launch["lines"] if x["kind"] == kind]
            what = "sectors" if kind in counts.GLOBAL else "wavefronts"
            said = [sum(x[name] for x in rows) for name in ("requests", "bytes", "transfers")]
            assert said == [kernel[kind].get(name, 0) for name in ("requests", "bytes", what)], (kind, said)
        assert launch["barriers"] == kernel["barriers"]
        for event in launch["events"]:
            if isinstance(event, int):
                continue
            site = launch["sites"][event[0]]
            assert event[3] == (sectors if site[2].startswith("global") else wavefronts)(event, site), (site, event)
            if launch["grid"] == [1, 1, 1]:
                assert not launch["left_out"] and not launch["cut"]
                single.setdefault(site[2], []).append(event[3])
    kernel = next(k for k in kernels if k["grid"] == [1, 1, 1])
    assert kernel["launches"] == 2
    for kind, drawn in single.items():
        total = kernel[kind]["sectors" if kind in counts.GLOBAL else "wavefronts"]
        assert (len(drawn), sum(drawn)) == (kernel[kind]["requests"], total), (kind, kernel[kind])


def line_with(text, part):
    return next(i for i, line in enumerate(text.split("\n"), 1) if part in line)


def check_planted(name, run, text):
    last = run["launches"][-1]
    assert last["name"] == "counted"
    of = lambda kind: [x for x in last["lines"] if x["kind"] == kind]
    races = [race for launch in run["launches"] for race in launch["races"]]
    conflicts = sum(x["transfers"] - x["least"] for x in of("shared_load"))
    loads = of("global_load")
    store, load = line_with(text, "tile[y][x] =" if name != "strided" else "tile[x][y] ="), line_with(text, "] = tile")
    assert [x["line"] for x in loads] == [store] and [x["line"] for x in of("shared_load")] == [load]
    # 6 blocks of 32 loads of a warp, each with 32 wavefronts where one would do
    assert conflicts == (6 * 32 * 31 if name == "conflict" else 0), conflicts
    assert loads[0]["transfers"] == 6 * 32 * (32 if name == "strided" else 4), loads
    if name in ("race", "warp"):
        assert all({side[0] for side in race["sides"]} == {store, load} for race in races) and races
        sides = {side[2] for side in races[0]["sides"]}
        assert sides == {"shared_load", "shared_store"}, sides
        if name == "warp":
            assert all(race["sides"][0][3] != race["sides"][1][3] for race in races), "lanes of one warp are in order"
    else:
        assert not races, races
    assert run["passed"] == (name == "right")


def check_shown(browser, page, name, run):
    problems = look(browser, page)
    assert not problems, problems
    launch = run["launches"][run["first"]]
    count = lambda what: browser.value(f"document.querySelectorAll('{what}').length")
    assert count("#races .race") == len(launch["races"])
    assert count("#time rect") == sum(not isinstance(event, int) for event in launch["events"])
    assert count("#time line") == sum(isinstance(event, int) for event in launch["events"])
    shown = browser.value("Array.from(document.querySelectorAll('#lines tr.asks')).map("
                          "tr => Array.from(tr.cells).slice(0, 4).map(td => td.textContent).join(' '))")
    assert shown == [f"{x['kind'].replace('_', ' ')} {x['lane_bytes']} {x['requests']} {x['transfers']}"
                     for x in launch["lines"]], shown
    load = next(i for i, e in enumerate(launch["events"]) if not isinstance(e, int) and
                launch["sites"][e[0]][2] == ("global_load" if name == "strided" else "shared_load"))
    square = f"document.querySelector('[data-i=\"{load}\"]')"
    browser.value(square + ".dispatchEvent(new Event('click', {bubbles: true}))")
    said, rows = browser.value("document.getElementById('request').textContent"), launch["events"][load][3]
    assert f"{rows} sectors" in said or f"{rows} wavefronts" in said, said
    # 8 words of each sector, 32 banks of each wavefront
    assert count("#picture rect") == rows * (8 if name == "strided" else 32), said
    conflicts = browser.value("document.querySelector('[data-figure=conflicts] td:nth-child(2)')?.textContent || '0'")
    assert conflicts == str(launch["figures"][0]["conflicts"]), conflicts
    assert not sorted(set(browser.problems()))


def check_solved(browser, run, text, page):
    assert run["passed"] and run["launches"], page
    assert not any(launch["races"] for launch in run["launches"]), page
    problems = look(browser, page) if browser else []
    assert not problems, problems
    print(f"{page.stem}: {page.stat().st_size} bytes")


def main():
    browser = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        my = pathlib.Path(folder) / "my"
        my.mkdir()
        if subprocess.run(["sh", "-c", "command -v chromium"], stdout=subprocess.DEVNULL).returncode == 0:
            browser = Chromium(folder)
        try:
            for name, changes in PLANTED.items():
                run, text, page = page_of(sys.argv[1], my, changes)
                kernels, _ = counts.read(f"build-count/exercises/my_{NAME.replace('-', '_')}_judged_.counts")
                check_numbers(run, kernels)
                check_planted(name, run, text)
                if browser:
                    check_shown(browser, page, name, run)
                print(f"{name}: {page.stat().st_size} bytes")
            others = sorted(path.stem for path in (ROOT / "dev/course/exercises").glob("*.cu") if path.stem != NAME)
            for name in others if "--all" in sys.argv else others[::3]:
                check_solved(browser, *page_of(sys.argv[1], my, [], name))
        finally:
            if browser:
                browser.process.terminate()
                browser.process.wait()
    if not browser:
        print("apt-get install chromium: without it the pages are not opened")


if __name__ == "__main__":
    main()
