#!/usr/bin/env python3
"""Checks the programs of dev/parallel: the bits of one process, bytes and memory by the formulas, the bubble of every
schedule where stages sleep, what they say of wrong numbers, and of a process that dies. `make parallel` runs it.

    dev/parallel/check.py

Stages that sleep meet by TCP, where waiting takes no processor; the others by MPI, if the build has it.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
PROGRAM = "build/pipeline"
SCHEDULES = {"naive": [], "gpipe": [], "1f1b": [], "interleaved": ["--chunks", "2"], "zb-h1": []}
STAGE = re.compile(r"^stage \d+ \| keeps (\d+) bytes, by the formula (\d+) \| sends (\d+) bytes, by the formula (\d+)$",
                   re.M)
# So long that what the system takes to wake processes up is little beside it.
SLOW, TRIES = ["--slow-ms", "200", "--steps", "1"], 5
ENDLESS = ["--slow-ms", "50", "--steps", "1000"]


# Long runs are by TCP, too: MPI waits by asking, which takes the time of others on a busy machine.
def by_tcp(processes):
    return ["scripts/processes.sh", "-np", str(processes)] if processes > 1 else []


def by_mpi(processes):
    if not shutil.which("mpirun") or b"MPI_Init" not in pathlib.Path(PROGRAM).read_bytes():
        return by_tcp(processes)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", "--oversubscribe", *root, "-np", str(processes)]


def run(launcher, *flags, status=0):
    command = [*launcher, PROGRAM, *map(str, flags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == status, f"{' '.join(command)}: status {done.returncode}, not {status}: {done.stdout}"
    return done.stdout


def result(said):
    """The losses of the steps and the checksum of the weights, as they were printed."""
    return re.findall(r"^step \d+ \| loss (\S+)$", said, re.M), re.search(r"^weights (\w{16})$", said, re.M)[1]


def check_counts(said, processes):
    stages = STAGE.findall(said)
    assert len(stages) == processes, said
    for kept, by_formula, sent, by_its_formula in stages:
        assert abs(int(kept) - int(by_formula)) <= 0.05 * int(by_formula), f"memory is not that of the formula: {said}"
        assert sent == by_its_formula, f"bytes are not those of the formula: {said}"


def same_bits():
    """Every schedule against one process; one of them, and the trainer, over a longer run."""
    one, long_one = run([], "--steps", 20), result(run([], "--steps", 200))
    expected = result(one)
    check_counts(one, 1)
    assert expected[0] == long_one[0][:20] and len(long_one[0]) == 200
    assert result(run([], "--steps", 20, "--micro", 4)) != expected, "other numbers are not told from these"
    for number, (schedule, flags) in enumerate(SCHEDULES.items()):
        said = run((by_mpi, by_tcp)[number % 2](4), "--steps", 20, "--schedule", schedule, *flags)
        assert result(said) == expected, f"{schedule}: not the losses and weights of one process"
        check_counts(said, 4)
    for processes, flags in ((2, ["--chunks", 4]), (1, ["--chunks", 2])):  # where both neighbours are one process
        said = run(by_tcp(processes), "--steps", 20, "--schedule", "interleaved", *flags)
        assert result(said) == expected, f"interleaved on {processes}: not the losses and weights of one process"
    said = run(by_tcp(4), "--steps", 200)
    assert result(said) == long_one, "200 steps: not the losses and weights of one process"
    return float(long_one[0][-1]), [float(loss) for loss in expected[0]]


def as_trainer(losses, layers=8, micro=8, rate=0.003):
    flags = (f"-e L{layers}C32H4T64V257 -i build/parallel/bytes_train.bin -b 1 -t 64 -d {64 * micro} --shuffle 0 "
             f"-k constant -l {rate} --grad-clip 0 -v 0 -s 0 --threads 1 -x {len(losses)}")
    said = subprocess.run(["./train_gpt2_cpu", *flags.split()], stdout=subprocess.PIPE, text=True, check=True).stdout
    theirs = [float(loss) for loss in re.findall(r"^step +\d+/\d+ \| loss ([\d.]+)", said, re.M)]
    assert len(theirs) == len(losses)
    for step, (ours, loss) in enumerate(zip(losses, theirs), 1):
        assert abs(ours - loss) <= 1e-5 * loss, f"step {step}: loss {ours}, of the trainer {loss}"


def bubble(schedule):
    """The bubble, measured and by the formula."""
    micro = 1 if schedule == "naive" else 4  # the naive bubble does not depend on it
    said = run(by_tcp(4), *SLOW, "--micro", micro, "--schedule", schedule, *SCHEDULES[schedule])
    check_counts(said, 4)
    return [float(x) for x in re.search(r"^bubble (\S+), by the formula (\S+)$", said, re.M).groups()]


def is_near(measured, formula):
    return abs(measured - formula) <= 0.1 * formula


def check_bubbles():
    """All at the same time, since who sleeps is in nobody's way. Other programs may be: they can make a bubble larger,
    never smaller, so one that is too large is measured again, by itself."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = dict(zip(SCHEDULES, threads.map(bubble, SCHEDULES)))
    for schedule, (measured, formula) in found.items():
        for _ in range(TRIES):
            if not is_near(measured, formula):
                measured = min(measured, bubble(schedule)[0])
        print(f"{schedule}: bubble {measured:.3f}, by the formula {formula:.3f}")
        assert is_near(measured, formula), f"{schedule}: the bubble is not that of the formula"
    assert not is_near(found["gpipe"][0], found["zb-h1"][1]), "another bubble is not told from it"


def refusals():
    wrong = {"--layers 6": "--layers 6 do not divide among 4 processes",
             "--layers 4 --schedule interleaved --chunks 2": "do not divide among 4 processes, --chunks 2 each",
             "--micro 3": "1f1b keeps 4 stages busy with 4 micro-batches or more",
             "--micro 6 --schedule interleaved --chunks 2": "a multiple of its 4 stages",
             "--chunks 2": "only --schedule interleaved has chunks", "--schedule best": "--schedule best is unknown",
             "--micro x": '--micro "x": whole numbers', "--mirco 4": "--mirco is unknown"}
    for flags, sentence in wrong.items():
        said = run(by_tcp(4), *flags.split(), status=2)
        assert sentence in said and said.count(sentence) == said.count("error: rank "), said
    assert "do not divide among 3 processes" in run(by_mpi(3), status=2)


def children_of(parent):
    """The processes of PROGRAM that descend from a process, by rank."""
    found, name = {}, pathlib.Path(PROGRAM).name + "\n"
    for stat in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = dict(part.split("=", 1) for part in stat.read_text().split("\0") if "=" in part)
            if variables.get("PARALLEL_CHECK") == str(parent) and (stat.parent / "comm").read_text() == name:
                found[int(variables.get("RANK", variables.get("OMPI_COMM_WORLD_RANK", -1)))] = int(stat.parent.name)
        except (OSError, ValueError):
            pass
    return found


def death(launcher, sentence, *flags):
    """Rank 2 is killed in the middle of a run: the others end at once, and it is named."""
    if not pathlib.Path("/proc/self/environ").exists():
        return
    mark = str(os.getpid())
    running = subprocess.Popen([*launcher, PROGRAM, *flags], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, "PARALLEL_CHECK": mark})
    deadline = time.monotonic() + 30
    while len(children_of(mark)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    os.kill(children_of(mark)[2], signal.SIGKILL)
    killed = time.monotonic()
    said, _ = running.communicate(timeout=60)
    assert running.returncode not in (0, 2) and re.search(sentence, said), said
    assert time.monotonic() - killed < 20 and not children_of(mark), said


def main():
    last, losses = same_bits()
    print(f"every schedule has the bits of one process; loss {last:.3f} after 200 steps")
    as_trainer(losses)
    check_bubbles()
    refusals()
    death(by_tcp(4), "rank 2 has ended", *ENDLESS)
    if by_mpi(4) != by_tcp(4):
        death(by_mpi(4), r"rank 2 .*signal 9", *ENDLESS)


if __name__ == "__main__":
    main()
