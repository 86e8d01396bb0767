"""Tiny runs of the trainers, for tests of what such a run does to its weights. Needs numpy."""
import pathlib
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPU, SIM = ["./train_gpt2_cpu", "--threads", "1"], ["build/BF16/train_gpt2sim"]


def write_tokens(path, tokens):
    header = np.zeros(256, "<i4")
    header[:3] = [20240520, 1, len(tokens)]
    path.write_bytes(header.tobytes() + np.asarray(tokens).astype("<u2").tobytes())


def write_text(path, count):
    """A shard of tokens below 256 that follow a rule."""
    i = np.arange(count)
    write_tokens(path, (i * i * 7 + i * 3 + i // 5 % 13) % 256)


def model(folder, step):
    return folder / f"model_{step:08}.bin"


def weights_of(path):
    """All weights of a model file, as fp32."""
    data = path.read_bytes()
    if np.frombuffer(data[:1024], "<i4")[1] == 3:
        return np.frombuffer(data[1024:], "<f4")
    return (np.frombuffer(data[1024:], "<u2").astype("<u4") << 16).view("<f4")


class Runs:
    """Runs with some flags in common, in a folder; and counts of the tests that passed and failed."""

    def __init__(self, folder, flags):
        self.folder, self.flags, self.counts = folder, flags, [0, 0]

    def command(self, program, *flags):
        return [str(part) for part in (*program, *self.flags, *flags)]

    def run(self, program, *flags, status=0):
        result = subprocess.run(self.command(program, *flags), cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert result.returncode == status, (result.returncode, result.stdout[-300:], result.stderr)
        return result

    def processes(self, count, name, *flags):
        """The same command as so many processes, which meet in a folder."""
        place = self.folder / f"meet_{name}_{time.monotonic_ns()}"
        place.mkdir()
        several = [subprocess.Popen(self.command(CPU, *flags, "-pi", "fs", "-pf", place, "-pn", count, "-pr", rank),
                                    cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for rank in range(count)]
        for process in several:
            out, error = process.communicate(timeout=300)
            assert process.returncode == 0, (out[-300:], error)

    def out(self, name):
        return self.folder / name

    def test(self, name, check, *arguments):
        try:
            check(self, *arguments)
            self.counts[0] += 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.counts[1] += 1
            print(f"FAILED {name}: {error}")

    def end(self):
        """The last line of the test program, and its status."""
        print(f"{self.counts[0]} passed, {self.counts[1]} failed, 0 skipped")
        return self.counts[1] > 0
