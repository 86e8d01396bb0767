#!/usr/bin/env python3
"""Ctrl-C in a script, and a closed terminal: no traceback, the status of an interrupted program, and nothing that it
started goes on."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTING = [["dev/bench.py"], ["dev/bench_processes.py"], ["dev/quality.py"], ["dev/bench_gpu.py", "--sim"],
            ["dev/gpu_day.py", "--simulate", "--state", "build/gpu_day_interrupted", "--only", "steps_16"],
            ["dev/data/shakespeare.py"], ["dev/data/tokenizer_file.py"],
            ["dev/cuda/step_model.py", "--stored", "--program", "build/sleeper"],
            ["dev/cuda/count_table.py", "build/sleeper"]]
COMPUTING = [["dev/torch_step.py", "--steps", "1000"]]  # these start nothing, and need PyTorch


def marked(mark):
    """The processes that have the mark in their environment."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def wait_until(condition, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def computes(pid):
    return "libtorch_cpu" in pathlib.Path(f"/proc/{pid}/maps").read_text()


def interrupt(command, number):
    mark = "INTERRUPTED_TEST=" + uuid.uuid4().hex
    environment = {**os.environ, **dict([mark.split("=")])}
    script = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, text=True, start_new_session=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    under_way = lambda: computes(script.pid) if command in COMPUTING else len(marked(mark)) > 1
    assert wait_until(lambda: script.poll() is not None or under_way(), 60), "it starts nothing"
    assert script.poll() is None, f"it ended by itself: {script.communicate()[0][-500:]}"
    script.send_signal(number)
    output, _ = script.communicate(timeout=60)
    assert "Traceback" not in output, output
    assert script.returncode == -number, f"status {script.returncode}: {output[-500:]}"
    assert wait_until(lambda: not marked(mark), 10), f"still there: {marked(mark)}"


def with_nohup():
    """A script that ignores SIGHUP from the start goes on, and so does what it has started."""
    mark = "INTERRUPTED_TEST=" + uuid.uuid4().hex
    script = subprocess.Popen(["nohup", sys.executable, "-c", "import children; children.run(['sleep', '1000'])"],
                              cwd=ROOT / "dev", env={**os.environ, **dict([mark.split("=")])}, start_new_session=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: len(marked(mark)) == 2, 60), "it starts nothing"
    script.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert script.poll() is None and len(marked(mark)) == 2, "it has ended"
    script.terminate()
    assert wait_until(lambda: script.poll() is not None and not marked(mark), 10), f"still there: {marked(mark)}"


def main():
    if not pathlib.Path("/proc/self/environ").exists():
        return print("skipped: looks for processes in /proc")
    sleeper = ROOT / "build/sleeper"
    sleeper.write_text("#!/bin/sh\nsleep 1000\n")
    sleeper.chmod(0o755)
    have_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
    with_nohup()
    failed = 0
    for command in STARTING + (COMPUTING if have_torch else []):
        all_signals = command[0] == "dev/bench.py"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if all_signals else (signal.SIGINT,):
            try:
                interrupt(command, number)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{' '.join(command)}, signal {number}: {error}")
    sys.exit(failed)


main()
