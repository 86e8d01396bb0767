"""Runs the programs of dev/parallel, for the scripts that check and draw them, and reads what they say."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
TRIES = 5


def by_tcp(processes):
    """Long runs are by TCP: MPI waits by asking, which takes the time of others on a busy machine."""
    return ["scripts/processes.sh", "-np", str(processes)] if processes > 1 else []


class Program:
    def __init__(self, name):
        self.path = pathlib.Path("build") / name

    def by_mpi(self, processes):
        """By MPI, if the build has it."""
        if not shutil.which("mpirun") or b"MPI_Init" not in self.path.read_bytes():
            return by_tcp(processes)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", "--oversubscribe", *root, "-np", str(processes)]

    def run(self, launcher, *flags, status=0):
        command = [*launcher, self.path, *map(str, flags)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        assert done.returncode == status, f"{command}: status {done.returncode}, not {status}: {done.stdout}"
        return done.stdout

    def refuses(self, launcher, flags, sentence):
        """Exit 2, and each process that says something says this."""
        said = self.run(launcher, *flags.split(), status=2)
        assert sentence in said and said.count(sentence) == said.count("error: "), said

    def processes_of(self, parent):
        """The processes of the program that descend from a process, by rank."""
        found = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = dict(part.split("=", 1) for part in stat.read_text().split("\0") if "=" in part)
                name = (stat.parent / "comm").read_text().strip()
                if variables.get("PARALLEL_CHECK") == str(parent) and name == self.path.name:
                    rank = variables.get("RANK", variables.get("OMPI_COMM_WORLD_RANK", -1))
                    found[int(rank)] = int(stat.parent.name)
            except (OSError, ValueError):
                pass
        return found

    def death(self, launcher, sentence, *flags):
        """Rank 2 is killed in the middle of a run: the others end at once, and it is named."""
        if not pathlib.Path("/proc/self/environ").exists():
            return
        mark = str(os.getpid())
        running = subprocess.Popen([*launcher, self.path, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**os.environ, "PARALLEL_CHECK": mark})
        deadline = time.monotonic() + 30
        while len(self.processes_of(mark)) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        os.kill(self.processes_of(mark)[2], signal.SIGKILL)
        killed = time.monotonic()
        said, _ = running.communicate(timeout=60)
        assert running.returncode not in (0, 2) and re.search(sentence, said), said
        assert time.monotonic() - killed < 20 and not self.processes_of(mark), said

    def deaths(self, *flags):
        """death() of runs by TCP, and by MPI if the build has it."""
        self.death(by_tcp(4), "rank 2 has ended", *flags)
        if self.by_mpi(4) != by_tcp(4):
            self.death(self.by_mpi(4), r"rank 2 .*signal 9", *flags)


def losses(said):
    return [float(loss) for loss in re.findall(r"^step \d+ \| loss ([^ \n]+)", said, re.M)]


def checksum(said):
    return re.search(r"^weights (\w{16})$", said, re.M)[1]


def counts(said, processes):
    """What each process has counted: [{"keeps": bytes, ...}]. Memory is within 5% of the formula, all else equal."""
    lines = re.findall(r"^(?:process|stage) \d+ \| (.*by the formula.*)$", said, re.M)
    assert len(lines) == processes, said
    found = [re.findall(r"(\w+) (\d+)[ \w]*, by the formula (\d+)", line) for line in lines]
    for what, number, formula in (count for line in found for count in line):
        apart = abs(int(number) - int(formula))
        assert apart <= (0.05 * int(formula) if what == "keeps" else 0), f"{what}: not as by the formula: {said}"
    return [{what: int(number) for what, number, _ in line} for line in found]


def measured(what, said):
    """A share of time, as it was and as the formula says."""
    return tuple(map(float, re.search(rf"^{what} (\S+), by the formula (\S+)$", said, re.M).groups()))


def at_once(measure, names):
    """{name: measure(name)}, all at the same time, since who sleeps is in nobody's way."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return dict(zip(names, threads.map(measure, names)))


def check_shares(what, measure, names, is_near):
    """Shares of idle time, where processes sleep. Other programs can make one larger, never smaller, so one that is too
    large is measured again, by itself. Returns {name: (measured, by the formula)}."""
    found = at_once(measure, names)
    for name, (share, formula) in found.items():
        for _ in range(TRIES):
            if not is_near(share, formula):
                share = min(share, measure(name)[0])
        print(f"{name}: {what} {share:.3f}, by the formula {formula:.3f}")
        assert is_near(share, formula), f"{name}: {what} is not that of the formula"
    return found


def as_trainer(found, layers=8, micro=8, rate=0.003):
    """Losses are those of the trainer."""
    flags = (f"-e L{layers}C32H4T64V257 -i build/parallel/bytes_train.bin -b 1 -t 64 -d {64 * micro} --shuffle 0 "
             f"-k constant -l {rate} --grad-clip 0 -v 0 -s 0 --threads 1 -x {len(found)}")
    said = subprocess.run(["./train_gpt2_cpu", *flags.split()], stdout=subprocess.PIPE, text=True, check=True).stdout
    theirs = [float(loss) for loss in re.findall(r"^step +\d+/\d+ \| loss ([\d.]+)", said, re.M)]
    assert len(theirs) == len(found)
    for step, (ours, loss) in enumerate(zip(found, theirs), 1):
        assert abs(ours - loss) <= 1e-5 * loss, f"step {step}: loss {ours}, of the trainer {loss}"
