#!/usr/bin/env python3
"""What a run says, after ten seconds of steps, about others who compute on its cores or its GPU, and about memory in
swap; and that it says nothing where nothing is wrong. The runs go on at the same time. Standard library only."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
CPU, SIM = "./train_gpt2_cpu", "build/BF16/train_gpt2sim"
CORES = sorted(os.sched_getaffinity(0))
IDLE = "".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n" for core in CORES)  # /proc/stat, in which nothing ever runs
LONG = ("-d", "3200")  # steps that print little
failed = 0


def check(good, what):
    global failed
    if not good:
        failed += 1
        print(f"failed: {what}")


def tokens(folder):
    """A shard of tokens below 256, in llm.c's layout."""
    path = folder / "t_train.bin"
    header = [20240520, 1, 4000] + [0] * 253
    body = b"".join((i * 7919 % 256).to_bytes(2, "little") for i in range(4000))
    path.write_bytes(b"".join(v.to_bytes(4, "little") for v in header) + body)
    return path


def system(folder, name, swapped_kib):
    """Files of a machine on which nothing else runs."""
    root = folder / name
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/stat").write_text(IDLE)
    (root / "proc/self/status").write_text(f"VmRSS:\t  900000 kB\nVmSwap:\t  {swapped_kib} kB\n")
    return {"TEST_SYSTEM_ROOT": str(root)}


class Run:
    """A run on one core, which is stopped once it has been watched for ten seconds."""

    def __init__(self, program, data, environment, *flags, before=()):
        command = [*before, program, "-i", data, "-e", "L2C32H2T16V256", "-b", "2", "-t", "16", "-v", "0", "-s", "0",
                   "--threads", "1", "-x", "100000000", *flags]
        temporary = {"TMPDIR": tempfile.mkdtemp(dir=data.parent)}  # two mpiruns start at once
        self.process = subprocess.Popen(command, env={**os.environ, **temporary, **environment}, text=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, CORES[-1:]),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=self.stop_in_time)
        self.reader.start()

    def stop_in_time(self):
        begin, more = None, 0
        for line in self.process.stdout:
            if not line.startswith("step"):
                continue
            begin = begin or time.monotonic()
            more += time.monotonic() > begin + 10
            if more == 3:  # the step after the tenth second has begun
                self.process.send_signal(signal.SIGUSR1)

    def warnings(self):
        self.reader.join()
        err = self.process.stderr.read()
        check(self.process.wait() == 0, f"a run ended with {self.process.returncode}: {err}")
        return [line for line in err.splitlines() if line.startswith("warning: ")]


def expect(run, what, *parts):
    said = run.warnings()
    good = len(said) == len(parts) and all(part in line for part, line in zip(parts, said))
    check(good, f"{what}: {said}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = tokens(folder)
        idle, swapped = system(folder, "idle", 0), system(folder, "swapped", 100000)
        nvml = {"LD_LIBRARY_PATH": f"build/fake_nvml:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                preexec_fn=lambda: os.sched_setaffinity(0, CORES[-1:]))
        try:
            cases = [
                (Run(CPU, data, {}, *LONG), "a loop on the same core",
                 "of the 1 core of this run, and its steps take longer"),
                (Run(CPU, data, idle, *LONG), "a machine on which nothing else runs"),
                (Run(CPU, data, swapped, *LONG), "memory in swap", "97.7 MiB of this run's memory is in swap"),
                (Run(CPU, data, idle, *LONG, "--threads", "2"), "two threads on one core",
                 "the 2 threads of this run have 1 core, and wait for each other: --threads 1"),
                (Run(SIM, data, {**idle, **nvml, "FAKE_NVML_PROGRAMS": "3"}), "two others on the GPU",
                 "2 other programs compute on the GPU 0000:"),
                (Run(SIM, data, {**idle, **nvml}), "a GPU of its own"),
            ]
            if shutil.which("mpirun"):
                mpirun = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
                cases += [(Run(CPU, data, {}, *LONG, before=mpirun), "two processes and a loop on the same core",
                           "of the 1 core of this run"),
                          (Run(SIM, data, {**idle, **nvml, "FAKE_NVML_PROGRAMS": "2"}, before=mpirun),
                           "two processes on one GPU")]
            for case in cases:
                expect(*case)
        finally:
            loop.kill()
            loop.wait()
    sys.exit(failed > 0)


main()
