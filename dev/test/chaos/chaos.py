#!/usr/bin/env python3
"""Disturbs tiny runs at random instants, resumes them until they are done, and compares what they leave with a run that
nobody disturbed: checkpoint, main.log, metrics.csv, evals.jsonl, tensors.csv and model_best.bin byte for byte, but for
what is measured (times, memory). `make chaos KILLS=1000`.

    dev/test/chaos/chaos.py                     110 kills, and two cases of each other campaign
    dev/test/chaos/chaos.py --kills 1000 --cases 20 --seed 2
    dev/test/chaos/chaos.py --only mpi-3        one case again, of the same seed; --only mpi: those of one campaign

kill -9 (KILLS of them, in cases of ten):
    one, nk1     one process; of its checkpoints the newest one (-nk 1) is kept
    mpi, tcp, fs two processes, ZeRO stage 1: one of them is killed, or all at once; those of fs meet by a file in a
                 folder, where a killed run leaves its own
    signs, apart those of fs, with gradients in 1 bit, and what waits of them; and apart, with outer steps
    zero2, zero3 those of fs, at stages 2 and 3, the latter with --offload both
    adapters     those of zero3, of a run with --lora beside weights in nf4
    changing     1 to 3 processes, another number at each start; losses are compared, to rounding
Others: the run ends with status 0, or with 1 and one sentence, and goes on later:
    full, readonly, broken_disk   from some call on every write to the out dir fails: ENOSPC, EROFS; or one does: EIO
    removed      the out dir is moved away; the run that follows begins anew
    shards       a byte of a training shard changes, and later changes back
    clock        the clock of the day jumps at every reading
    stdout       nobody reads it any more
    signals      SIGHUP, SIGINT, SIGTERM or SIGUSR1
    stopped      SIGSTOP of one of two processes, for half a second or for good
    limits       ulimit on the size of files, on memory, on open files

A case that fails prints its seed, and its folder stays in build/chaos.
"""
import argparse
import concurrent.futures
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402

TRAINER, SHIM = ROOT / "train_gpt2_cpu", ROOT / "build/fail_calls.so"
MPIRUN = "mpirun --oversubscribe --allow-run-as-root -np".split()
STEPS, KILLS_OF_CASE, PATIENCE_S, REFUSED_MOST = 24, 10, 90, 20
# Six windows in a step, which one, two and three processes can share.
FLAGS = (f"-e L1C16H1T16V256 -t 16 -b 1 -d 96 -x {STEPS} -n 1 -v 5 -m -1 -s 11 -g 4 -l 1e-3 --threads 1 "
         "--noise-scale 1 --keep-best 1 --log-tensors 7 -y 1").split()
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
MESSAGES = {"signs": ("fs", ["--compress-gradients", "1bit", "--compress-warmup", 4]),  # how they meet, and their flags
            "apart": ("fs", ["--sync-every", 3, "-n", 2, "-v", 6, "--noise-scale", 0, "--outer-momentum", 0.5]),
            "zero2": ("fs", ["-z", 2]), "zero3": ("fs", ["-z", 3, "-r", 3, "--offload", "both"]),
            "adapters": ("fs", ["-z", 3, "--lora", 2, "--weights", "nf4", "--noise-scale", 0, "--log-tensors", 0])}
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
CHECKPOINT = re.compile(r"(model|state|DONE)_(\d+).*")
METRIC = re.compile(r'X\(METRIC_\w+,\s*"(\w+)",\s*"[^"]*",\s*(true|false)')
MEASURED = [row[1] == "true" for row in METRIC.findall((ROOT / "llmc/run/metrics.h").read_text())]


class Broken(Exception):
    """A promise was not kept."""


def expect(good, promise):
    if not good:
        raise Broken(promise)


def make_data(folder):
    for name, of in ("train_0", 0), ("train_1", 11), ("val", 22):
        tokens = [(i * i * 7 + i * 3 + of + i // 5 % 13) % 256 for i in range(1500)]
        (folder / f"{name}.bin").write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) +
                                             struct.pack(f"<{len(tokens)}H", *tokens))


def descendants(pid):
    """The processes that a process has started, by rank where it is mpirun."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found.append(int(entry.name))
    return sorted(found)


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def meeting_place(case, kind):
    """The flags that say where processes meet: at a free port, or in a folder that all lives of a case share."""
    if kind == "fs":
        folder = case.folder / "meeting"
        folder.mkdir(exist_ok=True)
        return ["-pf", folder]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["-ps", f"127.0.0.1:{free.getsockname()[1]}"]


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Life:
    """The processes of one start of a run, from when they are started to when they have ended."""

    def __init__(self, case, kind, processes, flags=(), environment=(), prefix=(), stdout=None):
        case.lives += 1
        self.folder = case.folder / f"life{case.lives}"
        self.folder.mkdir()  # mpirun's own, too: two that start at once in one folder get in each other's way
        data = ["-i", f"{case.data}/train_*.bin", "-j", case.data / "val.bin"]
        command = [*prefix, TRAINER, *data, *FLAGS, "-o", case.out, *flags]
        environment = {**ENVIRONMENT, "TMPDIR": str(self.folder), **dict(environment)}
        if kind == "mpi":
            commands = [[*MPIRUN, str(processes), *command]]
        elif kind != "one":
            kind, more = MESSAGES.get(kind, (kind, []))
            command += more
            meeting = ["-pi", kind, *meeting_place(case, kind), "-pn", str(processes), "-pr"]
            commands = [[*command, *meeting, str(rank)] for rank in range(processes)]
        else:
            commands = [command]
        self.kind, self.ranks, self.started = kind, [], []
        for i, words in enumerate(commands):
            out = stdout if stdout is not None else open(self.folder / f"out{i}", "wb")
            with open(self.folder / f"err{i}", "wb") as err:
                self.started.append(children.start([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=out,
                                                   stderr=err, env=environment))

    def alive(self):
        return any(process.poll() is None for process in self.started)

    def wait(self, seconds):
        """Waits for so long, or until the run has ended; False in that case."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.alive():
            time.sleep(min(0.005, max(0.0, until - time.monotonic())))
        return self.alive()

    def pids(self):
        """The ranks that are there."""
        self.ranks = descendants(self.started[0].pid) if self.kind == "mpi" else [p.pid for p in self.started]
        return self.ranks

    def kill_some(self, draw):
        """kill -9 of one rank, or of everything."""
        ranks, launchers = self.pids(), [p.pid for p in self.started] if self.kind == "mpi" else []
        one = ranks and draw.random() < 0.5
        if b"step " not in (self.folder / "out0").read_bytes():
            one = False  # they may not have met: the other would wait for all of --comm-timeout, and mpirun for ever
        for pid in [draw.choice(ranks)] if one else launchers + ranks:
            kill(pid)

    def end(self):
        """Waits for the end, which must come; the exit statuses."""
        until = time.monotonic() + PATIENCE_S
        while (self.alive() or any(map(is_there, self.ranks))) and time.monotonic() < until:
            time.sleep(0.005)
        hangs = self.alive() or any(map(is_there, self.ranks))
        for pid in [p.pid for p in self.started] + self.ranks if hangs else []:
            kill(pid)
        statuses = [process.wait() for process in self.started]
        children.running.difference_update(self.started)
        expect(not hangs, f"the run ends within {PATIENCE_S} s; it said: {self.said()[-600:]}")
        return statuses

    def said(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("err*")))

    def ended_well(self, accepted=(0, 1), sentence=""):
        """Whether the run is done. It may end with these statuses, with one sentence unless that is 0."""
        (status,) = self.end()
        said = self.said()
        expect(status in accepted, f"status {status}, where {accepted} are accepted; it said: {said[-600:]}")
        sentences = sum(line.startswith("error: ") for line in said.splitlines())
        expect(sentences == (status == 1), f"status {status} with {sentences} sentences: {said[-600:]}")
        expect(status != 1 or re.search(sentence, said), f"no sentence says {sentence}: {said[-600:]}")
        return status == 0


class Case:
    """One folder, in which a run is disturbed. Its draws follow from the seed and the name."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.draw = random.Random(f"{world.seed}/{name}")
        self.folder = world.folder / name
        self.folder.mkdir()
        self.data, self.lives, self.kills, self.round = world.data, 0, 0, 0
        self.begin_again()

    def begin_again(self):
        self.round += 1
        self.out = self.folder / f"run{self.round}"

    def instant(self, kind="one", processes=1):
        """A moment of a run, in seconds from its start."""
        return self.draw.uniform(0, self.world.seconds[kind, processes])

    def finish(self, kind="one", processes=1, flags=()):
        """Resumes the run undisturbed, to its end."""
        life = Life(self, kind, processes, flags)
        expect(life.end() == [0] * len(life.started), f"an undisturbed run goes on to its end: {life.said()[-600:]}")

    def compare(self, kind="one", processes=1):
        calm, mine = self.world.contents(kind, processes), contents(self.out)
        for name, bytes_of_calm in calm.items():
            expect(name in mine, f"{name} is there, as after the undisturbed run")
            expect(mine[name] == bytes_of_calm, f"{name} is that of the undisturbed run")
        for name in mine.keys() - calm.keys():  # what a kill has left goes with the next save
            step = CHECKPOINT.fullmatch(name)
            expect(step and (int(step[2]) < STEPS or name.endswith(".tmp")), f"{name} does not belong there")


def unmeasured(text):
    """metrics.csv without the columns that differ between runs with the same results."""
    lines = [line.split(",") for line in text.splitlines()]
    expect(all(len(line) == len(MEASURED) for line in lines), "every line of metrics.csv has all columns")
    return [[value for value, measured in zip(line, MEASURED) if not measured] for line in lines]


def contents(out):
    files = {path.name: path.read_bytes() for path in out.iterdir()
             if path.name not in ("run.json", "run.lock", "shards.txt")}
    if "metrics.csv" in files:
        files["metrics.csv"] = unmeasured(files["metrics.csv"].decode())
    return files


class World:
    """What the cases share: data, and one undisturbed run of each kind."""

    def __init__(self, folder, seed):
        self.folder, self.seed, self.data = folder, seed, folder / "data"
        self.data.mkdir()
        make_data(self.data)
        self.seconds, self.calm = {}, {}

    def add_calm(self, kind, processes, flags=()):
        case = Case(self, f"calm-{kind}-{processes}")
        self.seconds[kind, processes] = 1
        began = time.monotonic()
        case.finish(kind, processes, flags)
        self.seconds[kind, processes] = time.monotonic() - began
        self.calm[kind, processes] = case.out

    def contents(self, kind, processes):
        """Of the undisturbed run, what any number of kept checkpoints leaves: the newest one, and the records."""
        return {name: value for name, value in contents(self.calm[kind, processes]).items()
                if not CHECKPOINT.fullmatch(name) or int(CHECKPOINT.fullmatch(name)[2]) == STEPS}


# ---- kill -9

def killed(case, start, compare):
    """Kills runs until KILLS_OF_CASE have been killed; each run goes on until it is done. start() begins a life and
    returns it with the longest time to wait before a kill."""
    while case.kills < KILLS_OF_CASE:
        done, refused = False, 0
        while not done:
            life, seconds = start()
            kill_it = case.kills < KILLS_OF_CASE and life.wait(case.draw.uniform(0, seconds))
            if kill_it:
                life.kill_some(case.draw)
                case.kills += 1
            statuses, said = life.end(), life.said()[-600:]
            done = statuses == [0] * len(statuses)
            expect(not set(statuses) & CRASHES, f"no crash: {said}")
            refused += not done and not kill_it  # while a killed process still holds the folder, or its port
            expect(refused <= REFUSED_MOST, f"a run that nobody kills ends well: {said}")
            if refused:
                time.sleep(0.2)
            shutil.rmtree(life.folder)
        compare()
        if case.kills < KILLS_OF_CASE:
            case.begin_again()


def kills_of(kind, processes, flags=()):
    def run(case):
        killed(case, lambda: (Life(case, kind, processes, flags), case.world.seconds[kind, processes]),
               lambda: case.compare(kind, processes))
    return run


def changing(case):
    def start():
        processes = case.draw.randint(1, 3)
        kind = case.draw.choice(KINDS) if processes > 1 else "one"
        return Life(case, kind, processes, ["-z", "1", "-nk", "2"]), 1.5 * case.world.seconds["one", 1]
    killed(case, start, lambda: compare_losses(case))


def numbers(text):
    found = re.findall(r"(?<!norm)[:,](-?[0-9][0-9.e+-]*|nan|inf)", text)  # main.log has two digits of the norm
    return [float(value) for value in found]


def compare_losses(case):
    """Another number of processes adds in another order: the same lines, with the same numbers to rounding."""
    for name in "main.log", "metrics.csv":
        mine, calm = ((folder / name).read_text() for folder in (case.out, case.world.calm["one", 1]))
        if name == "metrics.csv":
            columns = slice(0, 5)  # step, tokens, loss, norm, learning rate; the noise scale is another one
            mine, calm = ("\n".join(",".join(line[columns]) for line in unmeasured(text)) for text in (mine, calm))
        a, b = numbers(mine), numbers(calm)
        expect(len(a) == len(b) and len(mine.splitlines()) == len(calm.splitlines()), f"{name} has the same lines")
        expect(all(math.isclose(x, y, rel_tol=2e-3, abs_tol=2e-4) for x, y in zip(a, b)), f"{name} agrees to rounding")


# ---- other campaigns

def failing(how, sentence):
    def run(case):
        calls = case.draw.randrange(1, 300) if case.draw.random() < 0.7 else case.draw.randrange(300, 1500)
        life = Life(case, "one", 1, environment={"LD_PRELOAD": str(SHIM), "FAIL_PATH": str(case.out),
                                                 "FAIL_AT": str(calls), "FAIL_HOW": how})
        if not life.ended_well(sentence=sentence):
            case.finish()
        case.compare()
    return run


def removed(case):
    life = Life(case, "one", 1)
    if life.wait(case.instant()) and case.out.exists():
        case.out.rename(case.folder / "gone")
    life.ended_well()
    if not (case.out / f"DONE_{STEPS:08d}").exists():
        shutil.rmtree(case.out, ignore_errors=True)  # what was begun there after the folder had gone
        case.finish()
    case.compare()


def shards(case):
    case.data = case.folder / "data"
    shutil.copytree(case.world.data, case.data)
    shard = case.data / f"train_{case.draw.randrange(2)}.bin"
    original = shard.read_bytes()
    life = Life(case, "one", 1)
    until = time.monotonic() + PATIENCE_S
    log = case.out / "main.log"
    while life.alive() and time.monotonic() < until and not (log.exists() and "trl:" in log.read_text()):
        time.sleep(0.002)
    life.wait(case.draw.uniform(0, 0.5) * case.world.seconds["one", 1])
    at = case.draw.randrange(1024, len(original))
    with open(shard, "r+b") as file:
        file.seek(at)
        file.write(bytes([original[at] ^ 1]))
    done = life.ended_well(sentence="has changed since this run began")
    shard.write_bytes(original)
    if not done:
        case.finish()
    case.compare()


def clock(case):
    life = Life(case, "one", 1, environment={"LD_PRELOAD": str(SHIM), "CLOCK_JUMPS": "1"})
    expect(life.ended_well(), f"the run is done, whatever the time of day: {life.said()[-600:]}")
    case.compare()


def stdout(case):
    if case.draw.random() < 0.3:
        life = Life(case, "one", 1, prefix=["sh", "-c", 'exec "$0" "$@" >&-'])
    else:
        reader, writer = os.pipe()
        life = Life(case, "one", 1, stdout=writer)
        os.close(writer)
        life.wait(case.instant())
        os.close(reader)
    life.ended_well(sentence="stdout could not be written")
    case.compare()


def signals(case):
    number = case.draw.choice([signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
    life = Life(case, "one", 1)
    if life.wait(case.instant()):
        kill(life.started[0].pid, number)
    (status,) = life.end()
    usual = 0 if number == signal.SIGUSR1 else 128 + number
    expect(status in (0, usual, -number), f"status {status} after signal {number}: {life.said()[-600:]}")
    case.finish()
    case.compare()


def stopped(case):
    brief = case.draw.random() < 0.5
    life = Life(case, "tcp", 2, ["-z", "1", *([] if brief else ["--comm-timeout", "2"])])
    there = life.wait(case.instant("tcp", 2))
    victim = case.draw.choice(life.started)
    if there:
        kill(victim.pid, signal.SIGSTOP)
    if brief:
        time.sleep(0.5)
        kill(victim.pid, signal.SIGCONT)
        expect(life.end() == [0, 0], f"a short stop does no harm: {life.said()[-600:]}")
    else:
        until = time.monotonic() + PATIENCE_S
        other = next(process for process in life.started if process != victim)
        while other.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        status = other.poll()
        kill(victim.pid)
        life.end()
        expect(status in (0, 1), f"the other process ends, within {PATIENCE_S} s; its status: {status}")
        named = re.search("waited 2 s|has ended", life.said())
        expect(status == 0 or named, f"it says for whom: {life.said()[-600:]}")
        case.finish("tcp", 2, ["-z", "1"])
    case.compare("tcp", 2)


LIMITS = {"-f": (1, 60), "-v": (20_000, 300_000), "-n": (3, 14)}  # KiB or 512 bytes, KiB, files


def limits(case):
    flag = case.draw.choice(list(LIMITS))
    value = case.draw.randint(*LIMITS[flag])
    life = Life(case, "one", 1, ["--threads", "2"], prefix=["sh", "-c", f'ulimit {flag} {value} && exec "$0" "$@"'])
    (status,), said = life.end(), life.said()
    loader = status == 127 and "error while loading shared libraries" in said  # too little to start the program at all
    what = f"ulimit {flag} {value}: status {status}: {said[-600:]}"
    expect(status in (0, 1) or loader, what)
    expect(status != 1 or said.count("error: ") == 1, what)
    if status:
        case.finish()
    case.compare()


KILLING = {"one": kills_of("one", 1), "nk1": kills_of("one", 1, ["-nk", "1"]),
           "mpi": kills_of("mpi", 2, ["-z", "1", "-nk", "1"]), "tcp": kills_of("tcp", 2, ["-z", "1", "-nk", "1"]),
           "fs": kills_of("fs", 2, ["-z", "1", "-nk", "1"]), "changing": changing,
           **{kind: kills_of(kind, 2, ["-nk", "1"]) for kind in MESSAGES}}
OTHERS = {"full": failing("ENOSPC", "No space left"), "readonly": failing("EROFS", "Read-only file system"),
          "broken_disk": failing("EIO", "Input/output error"), "removed": removed, "shards": shards, "clock": clock,
          "stdout": stdout, "signals": signals, "stopped": stopped, "limits": limits}
KINDS = ["tcp", "fs"]  # and mpi, where it is there


def has_mpi():
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([*MPIRUN, "2", "true"], env={**ENVIRONMENT, "TMPDIR": folder}, capture_output=True)
        except OSError:
            return False
    return done.returncode == 0


def check_compare(world):
    """A run that differs from the undisturbed one is seen."""
    state = f"state_{STEPS:08d}_00000.bin"
    for name in "main.log", "metrics.csv", "evals.jsonl", "tensors.csv", "model_best.bin", state:
        for change in "remove", "byte":
            case = Case(world, f"planted-{name}-{change}")
            shutil.copytree(world.calm["one", 1], case.out)
            data = (case.out / name).read_bytes()
            last = data.rindex(b"5") if name.endswith(("log", "csv", "jsonl")) else len(data) - 20
            (case.out / name).write_bytes(data[:last] + bytes([data[last] ^ 1]) + data[last + 1:])
            if name == "metrics.csv":  # a column that is not measured
                (case.out / name).write_bytes(data.replace(b"\n5,", b"\n4,"))
            if change == "remove":
                (case.out / name).unlink()
            try:
                case.compare()
            except Broken:
                continue
            raise SystemExit(f"{name} differs, and nobody sees it")


def run_case(world, campaign, name):
    """How many kills a case has seen, and what was broken or None."""
    case = None
    try:
        case = Case(world, name)
        campaign(case)
    except (Broken, OSError, ValueError) as problem:
        kept = ROOT / "build/chaos" / name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(world.folder / name, kept, symlinks=True, ignore_dangling_symlinks=True,
                        ignore=lambda _, names: [n for n in names if n.startswith("ompi")])
        again = f"dev/test/chaos/chaos.py --seed {world.seed} --only {name}"
        wrong = f"FAILED {name}: {problem}\n    again: {again}    its folder: build/chaos/{name}"
        return case.kills if case else 0, wrong
    shutil.rmtree(case.folder, ignore_errors=True)
    return case.kills, None


def all_cases(options, mpi):
    names = [name for name in KILLING if mpi or name != "mpi"]
    cases = [f"{names[i % len(names)]}-{i // len(names)}" for i in range(math.ceil(options.kills / KILLS_OF_CASE))]
    cases += [f"{name}-{i}" for name in OTHERS for i in range(options.cases)]
    if options.only:
        cases = [c for c in cases if options.only in (c, c.rpartition("-")[0])] or [options.only]
    return cases


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("--kills", type=int, default=110)
    flags.add_argument("--cases", type=int, default=2, help="of each other campaign")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--only", help="CAMPAIGN, or CAMPAIGN-NUMBER")
    options = flags.parse_args()
    mpi = has_mpi()
    if mpi:
        KINDS.append("mpi")
    else:
        print("without MPI (apt-get install libopenmpi-dev openmpi-bin, then make): no runs under mpirun")
    campaigns = {**KILLING, **OTHERS}
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        world = World(pathlib.Path(folder), options.seed)
        world.add_calm("one", 1)
        for kind in KINDS:
            world.add_calm(kind, 2, ["-z", "1"])
        for kind in MESSAGES:
            world.add_calm(kind, 2)
        check_compare(world)
        cases = all_cases(options, mpi)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            ended = list(pool.map(lambda name: run_case(world, campaigns[name.rpartition("-")[0]], name), cases))
    failed = [wrong for _, wrong in ended if wrong]
    print("\n".join(failed), end="\n" if failed else "")
    kills = sum(count for count, _ in ended)
    print(f"seed {options.seed}: {len(cases)} cases, {kills} runs killed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
