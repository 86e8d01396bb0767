#!/usr/bin/env python3
"""Averages of weights: --ema of the CPU trainer and of the GPU trainer in the simulator, beside the same formula in
NumPy on the models of every step; resumed, on several processes; dev/average.py."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy")
if "--packages" in sys.argv:
    sys.exit(0)
import numpy as np  # noqa: E402

from tiny_runs import CPU, SIM, Runs, model, weights_of, write_text  # noqa: E402

FLAGS = ["-e", "L2C32H2T16V257", "-b", "2", "-t", "16", "-d", "64", "-x", "6", "-v", "3", "-m", "2", "-s", "0", "-l",
         "1e-2", "-k", "constant"]
DECAY = 0.6  # after the second update more than a mean


def ema(folder, step=6):
    return folder / f"model_ema_{step:08}.bin"


def averaged(folder, decay, steps):
    """The formula of llmc/optim/average.h on the models of all steps, in fp64."""
    average = weights_of(model(folder, 1)).astype(np.float64)
    for t in range(2, steps + 1):
        average += max(1 - decay, 1 / t) * (weights_of(model(folder, t)) - average)
    return average


def apart(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def val_losses(text, what="val loss"):
    return re.findall(rf"^{what} (\d\S+)$", text, re.M)


def as_numpy(tests, program, name, precision, tolerance):
    out = tests.out(name)
    flags = ["--precision", precision, "-n", 1, "--ema", DECAY]
    text = tests.run(program, *flags, "-o", out).stdout
    assert apart(weights_of(ema(out)), averaged(out, DECAY, 6)) < tolerance
    assert not apart(weights_of(ema(out)), averaged(out, 0.9, 6)) < tolerance, "another decay is not told apart"
    plain = tests.run(program, "--precision", precision, "-o", tests.out(name + "_plain")).stdout
    assert model(out, 6).read_bytes() == model(tests.out(name + "_plain"), 6).read_bytes(), "--ema changes the weights"
    assert val_losses(plain) == val_losses(text) and not val_losses(plain, "val loss of the average")
    lines = [json.loads(line) for line in (out / "evals.jsonl").read_text().splitlines()]
    losses = [line["average_loss"] for line in lines if "val_loss" in line]
    shown = val_losses(text, "val loss of the average")
    assert len(shown) == 3 and all(abs(float(a) - b) < 1e-6 for a, b in zip(shown, losses))
    alone = tests.run(program, "--precision", precision, "-e", ema(out), "-x", 0, "-v", 1).stdout
    assert val_losses(alone)[-1] == shown[-1], "the file is not what was validated"


def resumed(tests, program, name, precision):
    """As 6 steps at once, of as_numpy()."""
    out = tests.out(name + "_half")
    flags = ["--precision", precision, "--ema", DECAY]
    tests.run(program, *flags, "-o", out, "-x", 3)
    assert ema(out, 3).exists()
    tests.run(program, *flags, "-o", out, "-y", 1)
    for file in ema, model:
        assert file(out, 6).read_bytes() == file(tests.out(name), 6).read_bytes()


def on_processes(tests):
    kept = ["-n", 1, "--ema", DECAY]
    for stage in 0, 1, 2, 3:
        out = tests.out(f"two_{stage}")
        tests.processes(2, stage, *kept, "-z", stage, "-o", out)
        assert apart(weights_of(ema(out)), averaged(out, DECAY, 6)) < 1e-6, f"-z {stage}"
        assert ema(out).read_bytes() == ema(tests.out("two_0")).read_bytes(), f"-z {stage}"
    half = tests.out("two_half")
    tests.processes(2, "half", *kept, "-z", 1, "-x", 3, "-o", half)
    for count in 2, 3, 1:
        out = tests.out(f"then_{count}")
        subprocess.run(["cp", "-r", half, out], check=True)
        if count == 1:
            tests.run(CPU, *kept, "-y", 1, "-o", out)
        else:
            tests.processes(count, "then", *kept, "-d", 96 if count == 3 else 64, "-y", 1, "-o", out)
        assert apart(weights_of(ema(out)), averaged(out, DECAY, 6)) < 1e-6, f"{count} processes"
        if count == 2:
            assert ema(out).read_bytes() == ema(tests.out("two_0")).read_bytes()


def without(tests):
    """A run goes on without its average, and with one that the run before had not."""
    out = tests.out("without")
    tests.run(CPU, "--ema", DECAY, "-x", 3, "-o", out)
    dropped = tests.run(CPU, "--ema", 0, "-x", 4, "-y", 1, "-o", out)
    assert "the average of the run to resume is dropped" in dropped.stderr and not ema(out, 4).exists()
    begun = tests.run(CPU, "--ema", DECAY, "-x", 6, "-n", 1, "-y", 1, "-o", out)
    assert "it begins with the weights of step 4" in begun.stderr
    average = weights_of(model(out, 4)).astype(np.float64)
    for t in 5, 6:
        average += (1 - DECAY) * (weights_of(model(out, t)) - average)
    assert apart(weights_of(ema(out)), average) < 1e-6


def refusals(tests):
    for flags, words in ((["--ema", 1], "--ema 1"), (["--ema", -0.5], "--ema"),
                         (["--ema", 0.9, "--sync-every", 2], "--sync-every 2"),
                         (["--ema", 0.9, "--precision", "bf16", "-w", 0], "-w 0"),
                         (["--ema", 0.9, "--offload", "optimizer"], "--offload")):
        assert words in tests.run(CPU, *flags, status=2).stderr, flags


def planned(tests):
    """An fp32 number for each parameter, a slice of them on each process; and that much in a checkpoint."""
    plain, average = (tests.run(CPU, "--plan", "--ema", decay).stdout for decay in (0, 0.9))
    size = [int(re.search(r"^total (\d+) bytes", text, re.M)[1]) for text in (plain, average)]
    disk = [int(re.search(r"^a checkpoint: (\d+) bytes", text, re.M)[1]) for text in (plain, average)]
    row = int(re.search(r"^average +average +.* (\d+)$", average, re.M)[1])
    assert size[1] - size[0] == row and "\naverage" not in plain
    assert disk[1] - disk[0] == row + 40, "the header of the state is longer, and says that it is there"
    out = tests.out("planned")
    tests.run(CPU, "--ema", 0.9, "-o", out)
    files = [out / name for name in ("model_00000006.bin", "state_00000006_00000.bin")]
    assert sum(path.stat().st_size for path in files) == disk[1]
    at_end = int(re.search(r"^the average at the end: (\d+) bytes", average, re.M)[1])
    assert (out / "model_ema_00000006.bin").stat().st_size == at_end and "the average" not in plain


def means(tests):
    """dev/average.py"""
    script, out = ROOT / "dev/average.py", tests.out("mean.bin")
    run = lambda *files: subprocess.run([sys.executable, script, *files], capture_output=True, text=True)  # noqa: E731
    folder, half = tests.out("cpu"), tests.out("cpu_bf16")
    paths = [model(folder, step) for step in (4, 5, 6)]
    assert run(out, *paths).returncode == 0
    wanted = np.mean([weights_of(path).astype(np.float64) for path in paths], axis=0)
    assert apart(weights_of(out), wanted) < 1e-7
    assert "val loss" in tests.run(CPU, "-e", out, "-x", 0, "-v", 1).stdout
    one = tests.out("one.bin")
    assert run(one, paths[0]).returncode == 0 and one.read_bytes() == paths[0].read_bytes()
    mixed = tests.out("mixed.bin")
    assert run(mixed, model(half, 6), model(half, 6), model(half, 6)).returncode == 0
    assert mixed.read_bytes() == model(half, 6).read_bytes()
    tests.run(CPU, "-e", "L1C32H2T16V257", "-x", 1, "-o", tests.out("other"))
    cut = tests.out("cut.bin")
    cut.write_bytes(paths[0].read_bytes()[:-4])
    for bad, words in (model(tests.out("other"), 1), "layers"), (cut, "damaged"), (tests.out("val.bin"), "no model"), (
            tests.out("nowhere"), "cannot read"):
        refused = tests.out("refused.bin")
        result = run(refused, paths[0], bad)
        assert result.returncode == 1 and words in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not refused.exists()
    assert run(paths[0], paths[0], paths[1]).returncode == 2


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder / "train.bin", 1500)
        write_text(folder / "val.bin", 700)
        tests = Runs(folder, ["-i", folder / "train.bin", "-j", folder / "val.bin", "--tokenizer", folder / "none",
                              *FLAGS])
        tests.test("--ema is the formula, fp32", as_numpy, CPU, "cpu", "fp32", 1e-6)
        tests.test("--ema is the formula, bf16", as_numpy, CPU, "cpu_bf16", "bf16", 8e-3)
        tests.test("--ema is the formula, GPU", as_numpy, SIM, "sim", "bf16", 8e-3)
        tests.test("--ema resumed, fp32", resumed, CPU, "cpu", "fp32")
        tests.test("--ema resumed, bf16", resumed, CPU, "cpu_bf16", "bf16")
        tests.test("--ema resumed, GPU", resumed, SIM, "sim", "bf16")
        tests.test("--ema on several processes", on_processes)
        tests.test("a run goes on without its average, or with a new one", without)
        tests.test("--ema with what it does not go with", refusals)
        tests.test("--plan has the average", planned)
        tests.test("dev/average.py", means)
    sys.exit(tests.end())


if __name__ == "__main__":
    main()
