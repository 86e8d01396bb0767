#!/usr/bin/env python3
"""dev/sweep.py on models that train in a moment: grids, random search, the range test, what is resumed, what is
refused."""
import csv
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from run_script import ROOT, run, script

sys.path.insert(0, str(ROOT / "dev"))
import sweep  # noqa: E402
from run_data import Run  # noqa: E402

TINY = ["./train_gpt2_cpu", "-e", "L1C16H1T16", "-t", "16", "-b", "2", "-m", "1", "-s", "0", "-x", "8", "-v", "4",
        "--threads", "1"]


def sweeps(*arguments, status=0):
    return script(sweep, *arguments, status=status)


def rows_of(folder):
    with open(folder / "sweep.csv") as file:
        return list(csv.DictReader(file))


def dots(path):
    return len(xml.dom.minidom.parse(str(path)).getElementsByTagName("circle"))


def grid(folder):
    vary = ["--vary=-l=1e-4,3e-2", "--vary=-c=0,0.1"]
    said = sweeps(folder, *vary, "--", *TINY)
    rows = rows_of(folder)
    assert {(row["-l"], row["-c"]) for row in rows} == {(l, c) for l in ("1e-4", "3e-2") for c in ("0", "0.1")}, rows
    losses = [float(row["val_loss"]) for row in rows]
    assert losses == sorted(losses) and rows[0]["-l"] == "3e-2", rows
    best = said.splitlines()[-1]
    assert best == " ".join([*TINY, "-l", rows[0]["-l"], "-c", rows[0]["-c"]]), said
    for row in rows:  # what the table says is what a run by hand gives
        out = folder / "by_hand"
        run(*TINY, "-l", row["-l"], "-c", row["-c"], "-o", out, "--overwrite", "1")
        hand = Run(out).series
        assert math.isclose(hand["val_loss"][-1][1], float(row["val_loss"])), row
        assert math.isclose(hand["loss"][-1][1], float(row["train_loss"])), row  # a tenth of 8 steps is one
    assert [row["tokens"] for row in rows] == [str(8 * 32)] * 4, rows
    assert [line.split()[6:8] for line in said.splitlines() if line.startswith("-l")][:4] == [["8", "256"]] * 4, said
    picture = (folder / "sweep.svg").read_text()
    assert dots(folder / "sweep.svg") == 2 * (4 + 1)  # two panels, in each the four runs, the best marked
    assert picture.count(">validation loss<") == 2 and picture.count(">loss<") == 0
    for name in "-l 1e-4", "-l 3e-2", "-c 0", "-c 0.1":  # each panel has the values of the other flag as its legend
        assert picture.count(f">{name}<") == 1, name
    curves = [line for line in picture.splitlines() if "<polyline" in line and 'stroke-width="1.6"' in line]
    assert [sweep.svg.COLORS[i % 2] in curve for i, curve in enumerate(curves)] == [True] * 4, curves
    assert not list(folder.glob("*/model_0*.bin")) or list(folder.glob("by_hand/model_0*.bin")), "models are kept"
    said = sweeps(folder, *vary, "--", *TINY)
    assert "4 of 4 runs are there already" in said and best in said, said
    said = sweeps(folder, "--vary=-l=1e-4,3e-2,1e-3", "--vary=-c=0,0.1", "--", *TINY)
    assert "4 of 6 runs are there already" in said and len(rows_of(folder)) == 6, said
    said = sweeps(folder, *vary, "--", *TINY, "-u", "1", status=1)
    assert "holds runs of another command" in said, said


def steps_without_a_loss(folder):
    """Steps of whose tokens none counts have no loss: a mean leaves them out, and they are steps all the same."""
    def recorded(name, losses):
        (folder / name).mkdir(parents=True)
        lines = [f"{step},{32 * step + 32},{step / 10},{loss}\n" for step, loss in enumerate(losses)]
        (folder / name / "metrics.csv").write_text("step,tokens,seconds,loss\n" + "".join(lines))
        return sweep.outcome_of(folder / name)
    worse = recorded("worse", [5] * 20 + [3.84, "", "", 3.84, ""])
    better = recorded("better", [5] * 20 + [3.5] * 5)
    assert worse["train_loss"] == 3.84 and worse["steps"] == 25 and worse["tokens"] == 800, worse
    best = min([{**worse, "status": "done"}, {**better, "status": "done"}], key=sweep.score)
    assert best["train_loss"] == 3.5, best
    assert recorded("none", ["", ""])["train_loss"] is None


def random_search(folder):
    vary = ["--random", "5", "--vary=-l=1e-4:1e-2", "--vary=-u=1:6", "--vary=-k=cosine,linear"]
    sweeps(folder, *vary, "--", *TINY)
    rows = rows_of(folder)
    assert len(rows) == 5 and all(1e-4 <= float(r["-l"]) <= 1e-2 and r["-u"] in "123456" for r in rows), rows
    assert len({row["-l"] for row in rows}) == 5 and {row["-k"] for row in rows} <= {"cosine", "linear"}
    assert "5 of 5 runs are there already" in sweeps(folder, *vary, "--", *TINY)  # the same draws
    assert "5 of 5" not in sweeps(folder, *vary, "--seed", "1", "--", *TINY)
    assert "have only 2 combinations" in sweeps(folder, "--random", "3", "--vary=-c=0,1", "--", *TINY, status=1)


def diverging(folder):
    said = sweeps(folder, "--vary=-l=1e-3,1e30", "--", *TINY, "--grad-clip", "0", "-c", "1", "-k", "constant")
    assert [row["status"] for row in rows_of(folder)] == ["done", "not finite"] and "not finite" in said, said
    assert said.splitlines()[-1].endswith("-l 1e-3")


def range_test(folder):
    long = [word if word != "8" else "60" for word in TINY]
    said = sweeps(folder, "--lr-range", "0.3", "--", *long)
    found = re.search(r"fastest at (\S+), and is lowest at (\S+);", said)
    steepest, lowest = map(float, found.groups())
    assert 0 < steepest <= lowest <= 0.3 and "-l" in said.splitlines()[-1], said
    [trained] = folder.glob("u=60*")
    rates = [rate for _, rate in Run(trained).series["learning_rate"]]
    assert len(rates) == 60
    assert all(math.isclose(rate, 0.3 * (i + 1) / 60, rel_tol=1e-6) for i, rate in enumerate(rates))
    xml.dom.minidom.parse(str(folder / "sweep.svg"))
    low = sweeps(folder.with_name("range0"), "--lr-range", "1e-3", "--", *long, status=1)
    assert "has not risen up to a rate of 0.001" in low and "a higher --lr-range" in low, low


def interrupted(folder):
    """A sweep that is interrupted goes on with the runs that it has not finished."""
    long = [word if word != "8" else "200" for word in TINY]
    command = [sys.executable, ROOT / "dev/sweep.py", folder, "--jobs", "1", "--vary=-l=1e-3,2e-3,3e-3", "--", *long]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "1/3 " in process.stdout.readline()
    while not (folder / "l=2e-3/metrics.csv").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in said, said
    said = sweeps(folder, "--jobs", "1", "--vary=-l=1e-3,2e-3,3e-3", "--", *long)
    assert "1 of 3 runs are there already" in said and len(rows_of(folder)) == 3, said
    assert [row["steps"] for row in rows_of(folder)] == ["200"] * 3
    run(*long, "-l", "2e-3", "-o", folder / "by_hand")
    [row] = [row for row in rows_of(folder) if row["-l"] == "2e-3"]
    assert math.isclose(Run(folder / "by_hand").series["val_loss"][-1][1], float(row["val_loss"])), row


def killed(folder):
    """A sweep that is killed ends its trainer. One that goes on all the same is waited for; its row is no other."""
    long = [word if word != "8" else "100000000" for word in TINY]
    command = [sys.executable, ROOT / "dev/sweep.py", folder, "--jobs", "1", "--vary=-l=1e-3", "--", *long]
    process = subprocess.Popen(command, cwd=ROOT)
    while not (folder / "l=1e-3/metrics.csv").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    if sys.platform == "linux":
        until = time.monotonic() + 30
        while "\nstopped " not in (folder / "l=1e-3/output.txt").read_text():
            assert time.monotonic() < until, "the trainer goes on"
            time.sleep(0.05)
    long = [word if word != "8" else "100000000" for word in TINY] + ["--max-minutes", "0.05"]
    begun = folder.with_name("begun")
    (begun / "l=1e-3").mkdir(parents=True)
    other = subprocess.Popen([*map(str, long), "-l", "1e-3", "-o", begun / "l=1e-3"], cwd=ROOT,
                             stdout=subprocess.DEVNULL)
    while not (begun / "l=1e-3/metrics.csv").exists():
        time.sleep(0.01)
    sweeps(begun, "--vary=-l=1e-3", "--", *long)
    assert other.wait() == 0 and [row["status"] for row in rows_of(begun)] == ["done"], rows_of(begun)


def stopped(folder):
    """A run that was stopped is no result, keeps its checkpoint, and goes on with the next start of the sweep."""
    long = [word if word != "8" else "300" for word in TINY] + ["-v", "100", "-n", "50"]
    trials = {"1e-3": signal.SIGUSR1, "2e-3": signal.SIGTERM, "3e-3": signal.SIGKILL}
    runs = sweep.Sweep(folder, long)
    for rate, number in trials.items():
        trial = [("-l", rate)]
        process, out = runs.start(trial), folder / sweep.folder_of(trial)
        while not list(out.glob("DONE_????????")):
            assert process.poll() is None, (out / "output.txt").read_text()
            time.sleep(0.01)
        process.send_signal(number)
        process.wait()
        result = runs.finish(trial, process)
        assert result["status"] == "stopped" and 50 <= result["steps"] < 300, (number, result)
        assert runs.known(trial) is None and list(out.glob("DONE_????????")), number
    said = sweeps(folder, "--vary=-l=" + ",".join(trials), "--", *long)
    assert "there already" not in said and len(rows_of(folder)) == 3, said
    assert [(row["status"], row["steps"]) for row in rows_of(folder)] == [("done", "300")] * 3, said
    for rate in trials:
        said = (folder / f"l={rate}/output.txt").read_text()
        assert "resumed at step" in said, said
    run(*long, "-l", "1e-3", "-o", folder / "by_hand")
    [row] = [row for row in rows_of(folder) if row["-l"] == "1e-3"]
    assert math.isclose(Run(folder / "by_hand").series["val_loss"][-1][1], float(row["val_loss"])), row


def own_end(folder):
    """What a sweep says of runs that do not end, and a run that ends by its own --max-minutes."""
    folder.mkdir()
    trainer = folder / "trainer"
    trainer.write_text('#!/bin/sh\ncase "$*" in *2e-3*) kill -KILL $$;; *4e-3*) exit 1;; esac\nexec "$@"\n')
    trainer.chmod(0o755)
    said = sweeps(folder / "runs", "--vary=-l=1e-3,2e-3,4e-3", "--", trainer, *TINY, status=1)
    assert "1 of 3 runs have not ended; the same command goes on with them" in said, said
    assert {row["-l"]: row["status"] for row in rows_of(folder / "runs")} == {
        "1e-3": "done", "2e-3": "stopped", "4e-3": "refused"}, said
    assert "1 of 3 runs are there" in sweeps(folder / "runs", "--vary=-l=1e-3,2e-3,4e-3", "--", trainer, *TINY,
                                             status=1)
    endless = [word if word != "8" else "100000000" for word in TINY] + ["--max-minutes", "0.005"]
    sweeps(folder / "limited", "--vary=-l=1e-3", "--", *endless)
    assert [row["status"] for row in rows_of(folder / "limited")] == ["done"]
    assert "1 of 1 runs are there already" in sweeps(folder / "limited", "--vary=-l=1e-3", "--", *endless)


def same_twice(folder):
    said = sweeps(folder, "--vary=-l=1e-3,1e-3", "--vary=-c=0,0.1,0", "--", *TINY)
    assert "2/2 " in said and len(rows_of(folder)) == 2, said


def search(_):
    """The lowest value of a curve, from any start, with both of its neighbours and few others."""
    curves = [(lowest, lambda x, lowest=lowest: abs(x - lowest)) for lowest in range(-6, 7)]
    for lowest, curve in [*curves, (2, lambda x: math.inf if x > 2 else -x), (-1, lambda x: -x if x < 0 else math.inf)]:
        found = {}
        while points := sweep.next_to_try(found, 0, 9):
            found.update((point, curve(point)) for point in points)
        assert min(found, key=found.get) == lowest and {lowest - 1, lowest + 1} <= set(found), found
        assert len(found) <= abs(lowest) + 3, found
    assert sweep.next_to_try({0: 1}, 0, 2) == [1] and sweep.next_to_try({0: 2, 1: 1}, 0, 2) == []


def threads(folder):
    given = TINY[:TINY.index("--threads")]
    for flags in (["--threads", "3"], ["--threads=3"], []):
        runs = sweep.Sweep(folder / str(flags), [*given, *flags], jobs=1)
        assert runs.threads == ([] if flags else ["--threads", str(sweep.cores())]), flags


def one_refused(folder):
    """A combination that the trainer refuses is a row; if it is the first, the sweep ends."""
    for _ in range(2):
        said = sweeps(folder, "--vary=-b=2,3,4", "--", *TINY, "-d", "64")
        rows = rows_of(folder)
        assert [row["status"] for row in rows] == ["done", "done", "refused"], said
        assert rows[2]["error"] == "-d 64 is no multiple of B*T*processes = 3*16*1; multiples of 48 are accepted", rows
        assert rows[2]["error"] in said and rows[2]["-b"] == "3" and rows[2]["steps"] == "0", said
    assert "2 of 3 runs are there already" in said, said
    said = sweeps(folder, "--vary=-b=3,2", "--", *TINY, "-d", "64", status=1)
    assert "ended with status 2: -d 64 is no multiple" in said, said


def unread(folder):
    """`dev/sweep.py ... | head -1`: no traceback, the status that SIGPIPE gives, and no run goes on."""
    endless = [word if word != "8" else "100000000" for word in TINY]
    command = [sys.executable, ROOT / "dev/sweep.py", folder, "--jobs", "1", "--vary=-x=8,9,100000000", "--", *endless]
    with open(folder.with_name("errors"), "w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert "1/3 " in process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == -signal.SIGPIPE
        errors.seek(0)
        assert errors.read() == ""
    said = subprocess.run(f"{sys.executable} dev/sweep.py --help | true", shell=True, cwd=ROOT, text=True,
                          stderr=subprocess.PIPE).stderr
    assert said == "", said


def refused(folder):
    for arguments, sentence in [
            (["--vary=-l=1", "--"], "the command of the trainer is missing"),
            (["--", *TINY], "one of them is accepted"),
            (["--vary=-l", "--", *TINY], "FLAG=a,b,c or FLAG=LOW:HIGH"),
            (["--vary=-l=1,,2", "--", *TINY], "has an empty value"),
            (["--vary=-l=1:x", "--random", "2", "--", *TINY], "must be numbers"),
            (["--vary=-l=2:1", "--random", "2", "--", *TINY], "0 < LOW < HIGH"),
            (["--vary=-l=1:2", "--", *TINY], "with --random N"),
            (["--vary=-l=1", "--vary=-l=2", "--", *TINY], "-l varies twice"),
            (["--vary=-l=1", "--", *TINY, "-o", "here"], "-o is what the sweep sets"),
            (["--vary=-l=1", "--", "./no_trainer"], "is no program"),
            (["--lr-range", "nan", "--", *TINY], "must be above 0")]:
        assert sentence in sweeps(folder, *arguments, status=2), arguments
    assert not folder.exists()
    assert "--no-flag" in sweeps(folder, "--vary=--no-flag=1", "--", *TINY, status=1)
    assert "20 steps or more" in sweeps(folder.with_name("range2"), "--lr-range", "1", "--", *TINY, status=1)


def main():
    with tempfile.TemporaryDirectory() as name:
        for test in (grid, steps_without_a_loss, random_search, diverging, range_test, interrupted, killed, stopped,
                     own_end, same_twice, search, threads, one_refused, unread, refused):
            begin = time.monotonic()
            test(pathlib.Path(name) / test.__name__)
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
