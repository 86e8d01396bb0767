#!/usr/bin/env python3
"""Tests dev/plot.py: what it reads of a run, what it draws, what it refuses; the picture of a step's memory; event
files, which TensorBoard's own reader reads back, and PNG.

    make train_gpt2_cpu && dev/test/plot.py        standard library only
    pip install cairosvg tensorboard               dev/test/plot.py packages: what needs these
"""
import fcntl
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402

if sys.argv[1:] == ["packages", "--packages"]:  # only says which are missing
    children.need("cairosvg", "tensorboard")
    sys.exit()
import charts  # noqa: E402
import plot  # noqa: E402
import plot_memory  # noqa: E402
import plot_tensors  # noqa: E402
import quality  # noqa: E402
import recompute  # noqa: E402
import run_data  # noqa: E402

HEADER = "step,tokens,seconds,loss,grad_norm,learning_rate,tokens_per_s,gpu_watts\n"
RUN = "-e L3C64H2T32V300 -b 2 -t 32".split()


def command(*arguments, status=0, **keywords):
    done = subprocess.run([sys.executable, ROOT / "dev/plot.py", *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, cwd=ROOT, **keywords)
    assert done.returncode == status and "Traceback" not in done.stdout, f"{arguments}: {done.returncode} {done.stdout}"
    return done.stdout


def row(step, loss):
    return f"{step},{(step + 1) * 64},{step / 10},{loss},{1 + step / 7},{3e-4},{1000 + step},\n"


def make_run(folder, steps=100, loss=lambda step: 3 + 8 / (step + 1)):
    folder.mkdir()
    (folder / "metrics.csv").write_text(HEADER + "".join(row(step, loss(step)) for step in range(steps)))
    evals = [f'{{"step": {step}, "val_loss": {3.5 + 7 / (step + 1)}, "bits_per_byte": null}}\n'
             f'{{"step": {step}, "sample": "text, with \\"quotes\\"", "prompt": ""}}\n'
             f'{{"step": {step}, "hellaswag": 0.27, "correct": 3, "questions": 10}}\n' for step in range(0, steps, 20)]
    (folder / "evals.jsonl").write_text("".join(evals))
    return folder


def texts(path):
    """The texts of a picture, each with the box that it takes at most."""
    root = xml.parse(path).getroot()
    size, found = float(root.get("font-size")), []
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, width = float(element.get("x")), float(element.get("y")), 0.53 * size * len(element.text)
        x -= {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        found.append((element.text, x, y - 0.7 * size, x + width, y))
    return root, found


def check_picture(path, *wanted):
    """It is SVG, shows these texts, no text covers another or leaves the picture, and no number is not finite."""
    root, found = texts(path)
    for name in wanted:
        assert any(name in text for text, *_ in found), f"{path}: no text {name!r} in {[text for text, *_ in found]}"
    for i, (text, left, top, right, bottom) in enumerate(found):
        assert left >= -1 and top >= 0 and right <= float(root.get("width")) + 1, f"{text} leaves {path}"
        assert bottom <= float(root.get("height")), f"{text} leaves {path}"
        for other, x0, y0, x1, y1 in found[:i]:
            assert right <= x0 or x1 <= left or bottom <= y0 or y1 <= top, f"{path}: {text!r} covers {other!r}"
    for element in root.iter():
        for value in element.attrib.values():
            assert not re.search(r"\b(nan|inf)\b", value), f"{path}: {element.tag} {element.attrib}"
    return root


def curves(root, color):
    return [element for element in root.iter("{http://www.w3.org/2000/svg}polyline") if element.get("stroke") == color]


def test_reads(folder):
    run = run_data.Run(make_run(folder / "read"))
    assert run.series["loss"][0] == (0, 11) and run.series["loss"][-1] == (99, 3.08) and run.skipped == 0
    assert run.series["val_loss"][1] == (20, 3.5 + 7 / 21) and "gpu_watts" not in run.series
    assert all(math.isnan(value) for _, value in run.series["bits_per_byte"])
    with open(folder / "read/metrics.csv", "a") as file:
        file.write("rubbish\n100,1,2\n" + row(100, "nan") + row(101, 3)[:9])  # the last line is half written
    run.read()
    assert run.skipped == 2 and run.last_step() == 100 and math.isnan(run.series["loss"][-1][1])
    log = folder / "llmc"
    log.mkdir()
    (log / "main.log").write_text("s:0 tel:10.9512\ns:0 trl:10.9724 lr:0.000300 norm:18.33\n"
                                  "s:1 trl:9 lr:0.0003 norm:8\n"
                                  "s:0 eval:0.2957\ns:1 trl:8.5 lr:0.0003 norm:7.5\nnot a line\ns:2 trl:7.")
    for place in (log, log / "main.log"):  # a step that was run twice counts as it was the second time
        run = run_data.Run(place)
        assert run.series == {"val_loss": [(0, 10.9512)], "loss": [(0, 10.9724), (1, 8.5)], "hellaswag": [(0, 0.2957)],
                              "learning_rate": [(0, 3e-4), (1, 3e-4)], "grad_norm": [(0, 18.33), (1, 7.5)]}, run.series
        assert run.skipped == 1 and run.name == "llmc"


def test_draws(folder):
    first, second = make_run(folder / "first"), make_run(folder / "second", 300, lambda step: 4 + 7 / (step + 1))
    assert "first to step 99" in command(first) and (first / "plot.svg").exists()
    out = folder / "both.svg"
    for axis, label in plot.X_AXES.items():
        command(first, second, folder / "llmc/main.log", "-o", out, "--x", axis)
        root = check_picture(out, "training loss", "validation loss", "gradient norm", "learning rate",
                             "tokens per second", "HellaSwag", "first", "second", label)
        assert curves(root, plot.svg.COLORS[0]) and curves(root, plot.svg.COLORS[1])
    assert all(len(set(plot.svg.colors(count))) == count for count in range(1, 40))
    command(folder / "llmc", "-o", out)
    check_picture(out, "training loss", "HellaSwag")
    assert "no column for --x tokens" in command(folder / "llmc", "-o", out, "--x", "tokens", status=1)
    one = make_run(folder / "one_step", 1)
    command(one, "-o", out)
    assert len(list(check_picture(out, "training loss").iter("{http://www.w3.org/2000/svg}circle"))) >= 4
    bad = make_run(folder / "bad", 50, lambda step: [3 + 1 / (step + 1), "nan", "-nan", "inf"][step % 4])
    command(bad, "-o", out)
    check_picture(out, "37 not finite")
    command(make_run(folder / "nothing_finite", 9, lambda step: "nan"), "-o", out)
    check_picture(out, "9 not finite")
    same = make_run(folder / "constant", 30, lambda step: 2.5)
    command(same, "-o", out)
    check_picture(out, "training loss")


def test_references(folder):
    run = make_run(folder / "fineweb")
    for model, shown in (("d12", ["124M"]), ("d48", ["1558M"]), ("L6C384H6", list(plot.GPT2))):
        flags = {"--val-data": "dev/data/fineweb10B/x.bin", "--model": model}
        (run / "run.json").write_text(json.dumps({"flags": flags}))
        command(run)
        check_picture(run / "plot.svg", *(f"GPT-2 {size}" for size in shown))
        assert (run / "plot.svg").read_text().count("GPT-2 ") == 2 * len(shown)
    (run / "run.json").write_text(json.dumps({"flags": {"--val-data": "edu_fineweb10B/x.bin", "--model": "d12"}}))
    command(run)
    assert (run / "plot.svg").read_text().count("GPT-2 ") == 1  # HellaSwag alone
    command(run, "--reference", "none")
    assert "GPT-2" not in (run / "plot.svg").read_text()
    command(run, "--reference", "124M")
    check_picture(run / "plot.svg", "GPT-2 124M: 3.425", "GPT-2 124M: 0.2945")


def test_tensors(folder):
    """Norms that are known: of a layer from those of its tensors, of the update relative to the weights."""
    run = make_run(folder / "tensors", 40)
    lines = ["step,what,tensor,layer,elems,norm,max,zeros,ratio"]
    for step in (0, 20):
        for what, norms in (("weight", (3, 4)), ("gradient", (6, 8)), ("update", (0.3, 0.4))):
            for layer in range(2):
                lines += [f"{step},{what},{tensor},{layer},{elems},{norm},1,0," for tensor, elems, norm in
                          zip(("qkvw", "fcw"), (10, 15), norms)]
            lines.append(f"{step},{what},wte,,100,10,1,0,")
        lines += [f"{step},residual,encoded,,64,8,1,0,", f"{step},residual,residual3,1,64,{'nan' if step else 16},1,0,"]
    (run / "tensors.csv").write_text("\n".join(lines) + "\n20,weight,fc")
    read = run_data.Run(run)
    first = lambda tensor, layer: layer == 0
    assert plot_tensors.joined(read, "norm", "gradient", first) == [(0, 10), (20, 10)]
    assert plot_tensors.root_mean_square(read, "weight", first) == [(0, 1), (20, 1)]
    assert [(step, round(ratio, 9)) for step, ratio in plot_tensors.update_ratio(read, first)] == [(0, 0.1), (20, 0.1)]
    assert plot_tensors.root_mean_square(read, "residual", lambda tensor, layer: layer == 1)[0] == (0, 2)
    command(run)
    check_picture(run / "plot.svg", "gradient of a layer, norm", "residual stream", "layer 0", "layer 1", "qkvw",
                  "1 not finite")
    command(run, folder / "first", run, "-o", folder / "both.svg", "--x", "tokens")
    check_picture(folder / "both.svg", "norm of the update / norm of the weights", "residual stream")


def test_other_scripts(folder):
    """The pictures of dev/recompute.py and dev/quality.py, whose points lie close together."""
    rows = [[level, 0, 150 - 20 * level, 148 - 20 * level, 100 + 3 * level] for level in range(4)]
    rows += [[4, k, 60 + 7 * k, 58 + 7 * k, 130 - 2 * k + 9 * (12 % k > 0)] for k in range(1, 13)]
    out = folder / "script.svg"
    out.write_text(recompute.picture(rows, "MiB: a model"))
    check_picture(out, "-r 0", "-r 3", "k 1", "k 12", "ms per step")
    out.write_text(quality.plot({name: [(step, 4 + 6 / (step + 1)) for step in range(0, 3001, 100)]
                                 for name in (*quality.OURS, "PyTorch, fp32")}))
    check_picture(out, *quality.OURS, "validation loss", "percent from PyTorch")


def test_refuses(folder):
    empty = folder / "empty"
    empty.mkdir()
    assert "is not the out dir (-o) of a run" in command(empty, status=1)
    assert "no such folder" in command(folder / "none", status=1)
    (empty / "metrics.csv").write_text("")
    assert "no steps yet" in command(empty, status=1)
    (empty / "metrics.csv").write_text(HEADER)
    assert "no steps yet" in command(empty, status=1)
    (empty / "metrics.csv").write_text("1,2,3\n4,5,6\n")
    assert "the first line must name its columns" in command(empty, status=1)
    assert not (empty / "plot.svg").exists()
    (empty / "metrics.csv").write_bytes(b"\xff\x00\n\n")
    command(empty, status=1)
    run = folder / "first"
    assert ".svg or .png is accepted" in command(run, "-o", "x.gif", status=2)
    assert "takes one RUN" in command(run, run, "--memory", status=2)
    assert "cannot write" in command(run, "-o", run / "metrics.csv/x.svg", status=1)
    hidden = {**os.environ, "PYTHONPATH": str(folder)}
    for name, flags in (("tensorboard", ["--tensorboard", folder / "t"]), ("wandb", ["--wandb"]),
                        ("cairosvg", ["-o", folder / "x.png"])):
        code = ("import importlib.util as u, sys, runpy; real = u.find_spec;"
                f"u.find_spec = lambda name, *more: None if name == '{name}' else real(name, *more);"
                f"sys.argv = {['plot.py', str(run), *map(str, flags)]};"
                "runpy.run_path('dev/plot.py', run_name='__main__')")
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**hidden, "PYTHONPATH": str(ROOT / "dev")}, timeout=60)
        assert done.returncode == 1 and f"pip install {name}" in done.stdout, done.stdout
        assert "Traceback" not in done.stdout, done.stdout


WANDB = """
import json, sys
def init(**keywords):
    class Run:
        def log(self, values, step):
            print("sent", json.dumps([keywords["name"], step, values]))
    return Run()
"""


def test_wandb(folder):
    """What it is given, by a module of that name that only prints it: steps do not go back, and no value is missing."""
    (folder / "stand_in").mkdir()
    (folder / "stand_in/wandb.py").write_text(WANDB)
    run, stand_in = make_run(folder / "sent", 45), str(folder / "stand_in")
    said = command(run, "--wandb", env={**os.environ, "PYTHONPATH": stand_in})
    sent = [json.loads(line[5:]) for line in said.splitlines() if line.startswith("sent ")]
    assert [step for _, step, _ in sent] == list(range(45)) and {name for name, _, _ in sent} == {"sent"}, said
    assert all("train/loss" in values for _, _, values in sent) and sent[40][2]["evaluation/hellaswag"] == 0.27, said


def test_watch(folder):
    run = folder / "watched"
    run.mkdir()
    (run / "metrics.csv").write_text(HEADER)
    process = subprocess.Popen([sys.executable, ROOT / "dev/plot.py", run, "--watch"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    for step in (1, 40):  # the run has no step yet; then one, then more
        with open(run / "metrics.csv", "a") as file:
            file.write("".join(row(at, 3) for at in range(0 if step == 1 else 1, step)))
        line = process.stdout.readline()
        assert f"watched to step {step - 1}" in line, line
        check_picture(run / "plot.svg", "training loss")
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=30)[0]
    assert rest == "" and process.returncode == 0, (rest, process.returncode)


def test_watch_ends(folder):
    """With the run: what it wrote last is in the picture."""
    run = folder / "ending"
    run.mkdir()
    (run / "metrics.csv").write_text(HEADER + row(0, 3))
    with open(run / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a trainer does that is at work
        process = subprocess.Popen([sys.executable, ROOT / "dev/plot.py", run, "--watch"], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        assert "ending to step 0" in process.stdout.readline()
        time.sleep(2 * plot.WATCH_S)
        assert process.poll() is None
        with open(run / "metrics.csv", "a") as file:
            file.write(row(1, 3))
    rest = process.communicate(timeout=30)[0]
    assert "ending to step 1" in rest and process.returncode == 0, rest
    assert "ending to step 1" in command(run, "--watch")  # one that has ended long ago


def test_smoothed_alike(folder):
    """Lines of one panel are means over the same number of steps, whatever their length."""
    long, short = make_run(folder / "long", 2000), make_run(folder / "short", 300)
    command(long, short, "-o", folder / "lengths.svg")
    check_picture(folder / "lengths.svg", "training loss, mean of 31 steps", "tokens per second, mean of 31 steps")
    command(short, "-o", folder / "lengths.svg")
    check_picture(folder / "lengths.svg", "training loss, mean of 7 steps")
    command(long, short, "-o", folder / "lengths.svg", "--smooth", 9)
    check_picture(folder / "lengths.svg", "training loss, mean of 9 steps")


def test_memory(folder):
    """Which copies are needed when, at each recompute level; the picture; the measured peak."""
    for level, every in ((0, None), (1, None), (2, None), (3, None), (4, 1), (4, 2), (4, 3)):
        flags = [*RUN, "-r", str(level), *(["--recompute-every", str(every)] if every else [])]
        done = subprocess.run(["./train_gpt2_cpu", *flags, "-x", "2", "--plan"], stdout=subprocess.PIPE, text=True,
                              cwd=ROOT, check=True, timeout=60)
        place = folder / "plan.txt"
        place.write_text(done.stdout)
        plan = plot_memory.Plan(done.stdout, place)
        order = plot_memory.phases(plan)
        assert plan.total == int(re.search(r"^total (\d+)", done.stdout, re.M)[1])
        recomputed = [layer for kind, layer, _ in order if kind == "recompute"]
        k = {3: 1, 4: every}.get(level, 3)
        last = 2 // k * k
        assert sorted(recomputed) == list(range(last)), (level, every, recomputed)
        for row in plan.rows:
            if row.category != "activations":
                continue
            counts = plot_memory.copies_in_use(row, plan, order)
            assert max(counts) == (0 if row.lives_in == "generation" else row.copies), (level, every, row, counts)
            assert counts[-1] == 0, f"{row.name} is needed during the update"
            if row.name == "qkv" and level < 3:
                kinds = [kind for kind, _, _ in order]
                assert counts[kinds.index("forward"):kinds.index("classifier") + 1] == [1, 2, 3, 3], counts
                assert counts[kinds.index("backward"):][:3] == [3, 2, 1], counts
        command("--memory", place, "-o", folder / "memory.svg")
        check_picture(folder / "memory.svg", f"plan {plot_memory.mib(plan.total)}", "qkv", "logits", "forward",
                      "update")
    done = subprocess.run(["./train_gpt2_cpu", *RUN, "-x", "0", "--plan"], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                          check=True, timeout=60)
    place.write_text(done.stdout)
    assert "without training" in command("--memory", place, status=1)
    assert "no plan" in command("--memory", folder / "first/metrics.csv", status=1)
    assert "no run.json" in command("--memory", folder / "first", status=1)
    (folder / "plan.txt").write_text(re.sub(r"(?m)^activations    qkv .*\n", "", done.stdout))
    assert "do not add up" in command("--memory", folder / "plan.txt", status=1)


def test_memory_of_run(folder):
    """The trainer's own run: its peak, which is measured, is within the plan, and not far below it."""
    tokens = folder / "t_train.bin"
    header = b"".join(v.to_bytes(4, "little") for v in [20240520, 1, 4000] + [0] * 253)
    tokens.write_bytes(header + b"".join((i * 7919 % 300).to_bytes(2, "little") for i in range(4000)))
    run = folder / "trained"
    subprocess.run(["./train_gpt2_cpu", "-e", "L4C256H4T128V2000", "-b", "4", "-t", "128", "-i", tokens, "-j", tokens,
                    "-o", run, "-x", "3", "-v", "1", "-m", "1", "-s", "0", "--log-tensors", "2"],
                   stdout=subprocess.DEVNULL, check=True, cwd=ROOT, timeout=120)
    command(run)
    check_picture(run / "plot.svg", "training loss", "validation loss", "tokens per second", "residual stream")
    command("--memory", run)
    root = check_picture(run / "memory.svg", "plan", "peak", "logits")
    plan, peak, _ = plot_memory.plan_of_run(run, None)
    assert 0.6 * plan.total < peak < 1.15 * plan.total, (plan.total, peak)
    assert len(curves(root, charts.BAD)) == 1


def test_ticks():
    for low, high in ((0, 1), (0, 2849), (-3, 7), (1e-9, 3e-9), (10.9, 11), (0.1, 12345.6)):
        for most in (2, 5, 9):
            found = charts.ticks(low, high, most)
            assert len(found) <= most + 1 and all(low - 1e-9 * high <= v <= high * (1 + 1e-9) for v in found), found
            assert all(b > a for a, b in zip(found, found[1:])), found
    assert charts.log_ticks(0.5, 2000, 8) == [1, 10, 100, 1000]
    assert [charts.tick_text(v) for v in (0, 0.25, 3e-4, 1500, 2e7, -4)] == ["0", "0.25", "3e-4", "1.5k", "20M", "-4"]
    assert charts.smooth([(i, i % 2) for i in range(9)], 3)[4] == (4, 2 / 3)
    points = [(i, (i * 37 % 101) / 100) for i in range(10000)]
    thin = charts.thinned(points, 100, lambda x: x // 100)
    assert len(thin) <= 200 and {min(y for _, y in thin), max(y for _, y in thin)} == {0, 1}


def test_packages(folder):
    """Event files, read back by TensorBoard; a run that goes on, and one that goes back; PNG."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    import plot_export
    place, board = make_run(folder / "events", 50), folder / "board"
    run, sender = run_data.Run(place), plot_export.TensorBoard(board)

    def read():
        sender.write("events", run)
        found = EventAccumulator(str(board / "events"), size_guidance={"scalars": 0})
        found.Reload()
        return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}

    def expect(loss):
        got = read()
        assert [step for step, _ in got["train/loss"]] == list(range(len(loss))), got["train/loss"]
        for (_, value), expected in zip(got["train/loss"], loss):
            assert abs(value - expected) < 1e-5 or math.isnan(value) and math.isnan(expected), (value, expected)
        return got

    losses = [3 + 8 / (step + 1) for step in range(50)]
    got = expect(losses)
    assert [step for step, _ in got["evaluation/hellaswag"]] == [0, 20, 40]
    wanted = {"train/grad_norm", "train/learning_rate", "speed/tokens_per_s", "evaluation/val_loss"}
    assert wanted <= set(got), got.keys()
    with open(place / "metrics.csv", "a") as file:
        file.write(row(50, "nan"))
    for _ in range(2):  # nothing is written twice
        run.read()
        expect(losses + [math.nan])
    (place / "metrics.csv").write_text(HEADER + "".join(row(step, 5) for step in range(30)))  # resumed from step 30
    run.read()
    expect([5] * 30)
    said = command(place, "-o", folder / "picture.png", "--tensorboard", folder / "other")
    assert f"event files in {folder / 'other'}; to see them: tensorboard --logdir" in said, said
    png = (folder / "picture.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(png[16:20], "big") == 2 * plot.WIDTH and len(png) > 20000
    assert list((folder / "other/events").glob("events.*"))


def main():
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if sys.argv[1:] == ["packages"]:
            test_packages(folder)
            return
        test_ticks()
        for test in (test_reads, test_draws, test_references, test_tensors, test_other_scripts, test_refuses,
                     test_wandb, test_watch, test_watch_ends, test_smoothed_alike, test_memory, test_memory_of_run):
            test(folder)


main()
