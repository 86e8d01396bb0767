#!/usr/bin/env python3
"""The first minutes on a GPU: correctness, speed, every kernel beside the model, PyTorch; the most valuable first.

    scripts/gpu_day.sh [MINUTES] [--state FOLDER]       on a machine with a GPU
    scripts/gpu_day.sh --simulate                       from start to end in the simulator, with tiny shapes

    scripts/gpu_day.sh 9 --archive FILE                 9 minutes of it, in a fresh folder: the state comes from FILE
                                                        and goes there, in pieces of 16 MiB: FILE.0, FILE.1, ...

The first part checks that driver, toolkit and GPU fit; if they do not, the day stops with a sentence that says why.
Each part is a process of its own with a time limit, and leaves FOLDER/PART.json and FOLDER/PART.log; the archive has
each as soon as it is done, so that the day may be cut off at any time. A second call goes on with the parts that are
not done; --again PART repeats one. What the parts found goes to FOLDER/gpu_day.json, of which --write makes the tables
of the pages, beside those of other GPUs. The report ends with the questions that only a GPU decides, and what follows
from their answers. No part needs the internet.

Programs come from build/gpu_day (make gpu_day_programs) or GPU_DAY_PROGRAMS.
"""
import children  # noqa: F401: Ctrl-C
import argparse
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import zlib

import gpu_day_questions
from gpu_day_parts import PARTS, Day, Skipped, are_built, programs_of, restore_products
from readme import replace

ROOT = pathlib.Path(__file__).resolve().parents[1]


def part_process(args):
    """Runs one part; its result is a file of the state."""
    day = Day(args)
    restore_products(day)
    begun = time.monotonic()
    try:
        record = {"status": "done", **PARTS[args.part].run(day)}
    except Skipped as reason:
        record = {"status": "skipped", "said": str(reason)}
    except Exception as problem:  # what a part meets is its result; the other parts go on
        day.log.write(f"{problem!r}\n")
        record = {"status": "failed", "said": str(problem)[-400:]}
    record["seconds"] = round(time.monotonic() - begun, 1)
    replace(args.state / f"{args.part}.json", json.dumps(record, indent=1))


def run_part(args, name, seconds):
    """Runs a part in a process for at most so long. True if it came to an end, also a bad one."""
    command = [sys.executable, __file__, "--part", name, "--state", args.state]
    command += ["--simulate"] if args.simulate else []
    process = children.start(command, cwd=ROOT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return False
    finally:
        children.running.discard(process)
    if not (args.state / f"{name}.json").exists():
        replace(args.state / f"{name}.json",
                json.dumps({"status": "failed", "seconds": 0, "said": f"its process ended with {process.returncode}"}))
    return True


def record_of(state, name):
    path = state / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def run_day(args):
    """False if what the first part found stops the day."""
    end = time.monotonic() + 60 * args.minutes
    for name in ("check", "build"):  # whether they were done elsewhere says nothing of this machine
        if not args.only or name in args.only:
            (args.state / f"{name}.json").unlink(missing_ok=True)
    for name, part in PARTS.items():
        left = end - time.monotonic()
        if record_of(args.state, name) or args.only and name not in args.only:
            continue
        takes_none = args.simulate or name == "build" and are_built(programs_of(args))
        if left < (0 if takes_none else part.usual_s):
            print(f"{name}: left for the next call ({left:.0f} s left, it usually takes {part.usual_s} s)", flush=True)
            continue
        print(f"{name}: {part.what} (about {part.usual_s} s, at most {part.limit_s} s)", flush=True)
        most = part.limit_s * (10 if args.simulate else 1)  # the simulator may share its cores
        limit = most if args.simulate else min(most, left)
        if not run_part(args, name, limit) and limit == most:
            replace(args.state / f"{name}.json",
                    json.dumps({"status": "failed", "seconds": limit, "said": f"it took longer than {limit} s"}))
        if args.archive:
            pack(args.state, args.archive)
        if name == "check" and (record_of(args.state, name) or {}).get("status") == "failed":
            print(f"the day stops here: {record_of(args.state, name)['said']}", flush=True)
            return False
    return True


# ---- the archive

PIECE_BYTES, MOST_PIECES, LOG_BYTES = 16 << 20, 8, 1 << 20


def pieces_of(archive):
    found = [archive.with_name(f"{archive.name}.{n}") for n in range(MOST_PIECES)]
    return [path for path in found if path.exists()]


def unpack(archive, state):
    """The state of the call before, of whatever folder and machine."""
    data = b"".join(path.read_bytes() for path in pieces_of(archive))
    if not data:
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            tar.extractall(state)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
        sys.exit(f"{archive}.0 to {archive.name}.{MOST_PIECES - 1} are no whole archive of a state ({problem}): remove "
                 "them to begin anew")


def pack(state, archive):
    """All files of the state, of logs the end. Old pieces go once all new ones are there."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path in sorted(path for path in state.iterdir() if path.is_file() and not path.suffix == ".part"):
            content = path.read_bytes()
            content = content[-LOG_BYTES:] if path.suffix == ".log" else content
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            tar.addfile(entry, io.BytesIO(content))
    data = data.getvalue()
    count = -(-len(data) // PIECE_BYTES)
    if count > MOST_PIECES:
        sys.exit(f"the state has {len(data) >> 20} MiB packed; {MOST_PIECES} pieces of {PIECE_BYTES >> 20} MiB are "
                 f"accepted: remove what is large in {state}")
    place = lambda n, more="": archive.with_name(f"{archive.name}.{n}{more}")
    for n in range(count):
        place(n, ".new").write_bytes(data[n * PIECE_BYTES:(n + 1) * PIECE_BYTES])
    for n in range(count):
        place(n, ".new").replace(place(n))
    for n in range(count, MOST_PIECES):
        place(n).unlink(missing_ok=True)


def collect(state):
    """What all parts found, in one JSON."""
    records = {name: record_of(state, name) for name in PARTS}
    machine = records.get("machine") or {}
    steps, ladders = [], []
    for record in filter(None, records.values()):
        steps += record.get("steps", [])
        ladders += record.get("ladders", [])
    latest = {(r["who"], r["model"], r["B"], r["T"]): r for r in steps}
    day = {"gpu": machine.get("gpu", "unknown"), "cuda": machine.get("cuda", ""), "date": time.strftime("%Y-%m-%d"),
           "steps": list(latest.values()), "kernels": (records.get("kernels") or {}).get("kernels", {}),
           "products": (records.get("products") or {}).get("products", []),
           "ladders": ladders, "questions": gpu_day_questions.answered(records),
           "parts": {name: r for name, r in records.items() if r}}
    replace(state / "gpu_day.json", json.dumps(day, indent=1))
    return day


def summary(day):
    lines = [f"{day['gpu']}, {day['cuda']}, {day['date']}", f"{'part':24} {'status':8} {'s':>6}  "]
    for name in PARTS:
        record = day["parts"].get(name)
        if not record:
            lines.append(f"{name:24} {'left':8}")
            continue
        lines.append(f"{name:24} {record['status']:8} {record['seconds']:6.0f}  {record.get('said', '')}"[:150])
    count = lambda status: sum(r["status"] == status for r in day["parts"].values())
    left = len(PARTS) - len(day["parts"])
    lines += gpu_day_questions.lines(day["questions"])
    lines.append(f"{count('done')} done, {count('failed')} failed, {count('skipped')} skipped, {left} left")
    return "\n".join(lines)


# What the page says below the steps; the rest is in the file that is kept.
SAID = {"torch_attention": "Attention of a layer at B 16 by PyTorch's back ends, forward and backward: ",
        "products": "cuBLASLt's algorithms for the products of steps: ", "gelu_fusion": "GELU in epilogues, ",
        "cuda_graph": "CUDA graphs, ", "defaults_64": "200 steps at B 64 with default flags: ",
        "same_bits": "", "curve": "On Shakespeare ", "features": "Short trainings with one feature each: "}


def found_text(day):
    """Below the table of steps: what the parts have said, and how many found all right."""
    parts = {name: r for name, r in day["parts"].items() if r["status"] != "skipped"}
    lines = [f"- {before}{parts[name]['said']}." for name, before in SAID.items() if name in parts]
    checks = [r["said"] for name, r in parts.items() if name.startswith("tests_") and r["status"] == "done"]
    passed = sum(int(text.split()[0]) for text in checks)
    clean = [name.split("_")[1] for name, r in parts.items() if name.startswith("sanitizer_") and " 0 " in r["said"]]
    lines.append(f"- {passed} tests of kernels and model pass, in bf16, fp32 and fp16; compute-sanitizer finds nothing "
                 f"({', '.join(clean)}).")
    lines += [f"- {PARTS[name].what}: {r['said']}." for name, r in parts.items() if r["status"] == "failed"]
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def keep(day):
    """What is worth keeping of a day, for the model of a step and whoever asks: a file of the repository."""
    kept = {key: day[key] for key in ("gpu", "cuda", "date", "steps", "kernels", "products", "questions")}
    kept["counters"] = day["parts"].get("ncu", {}).get("counters", {})
    kept["parts"] = {name: {key: r[key] for key in ("status", "seconds", "said") if key in r}
                     for name, r in day["parts"].items()}
    path = ROOT / "dev/cuda/measured" / (day["gpu"].replace(" ", "_") + ".json")
    lines = [f' "{key}": {json.dumps(value)}' for key, value in kept.items()]
    replace(path, "{\n" + ",\n".join(lines) + "\n}\n")


def write_tables(args, day):
    import bench_gpu
    import bench_table
    keep(day)
    origin = f"{day['cuda']}, {day['date']}, by `scripts/gpu_day.sh`"
    steps = sorted(day["steps"], key=lambda r: (r["model"], r["B"], not r["who"].startswith("this trainer")))
    bench_gpu.write_table(day["gpu"], steps, origin, found_text(day))
    lab = ROOT / "dev/cuda/README.md"
    for ladder in day["ladders"]:
        for name in dict.fromkeys(r["bench"] for r in ladder["results"] if r["main"]):
            bench_table.write_ladder(lab, lab.parent / "charts", name, ladder)
    print("written; this puts the model beside it: python3 dev/cuda/step_model.py --stored --write")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="parts: " + "; ".join(f"{n}: {p.what}" for n, p in PARTS.items()))
    parser.add_argument("minutes", nargs="?", type=float, default=30)
    parser.add_argument("--state", type=pathlib.Path)
    parser.add_argument("--archive", type=pathlib.Path, help="where the state comes from and goes to")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--only", type=lambda s: s.split(","), help="parts, with commas")
    parser.add_argument("--again", type=lambda s: s.split(","), default=[], help="parts to repeat, with commas")
    parser.add_argument("--write", action="store_true", help="only write the tables of the pages")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.state = (args.state or ROOT / ("build/gpu_day_sim" if args.simulate else "build/gpu_day/state")).resolve()
    unknown = [name for name in [*args.again, *(args.only or [])] if name not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]} is no part; accepted: {', '.join(PARTS)}")
    if not args.minutes > 0:
        parser.error(f"{args.minutes:g} minutes; more than 0 are accepted")
    args.state.mkdir(parents=True, exist_ok=True)
    if args.part:
        return part_process(args)
    if args.archive:
        unpack(args.archive, args.state)
    for name in args.again:
        (args.state / f"{name}.json").unlink(missing_ok=True)
    goes_on = args.write or run_day(args)
    day = collect(args.state)
    if args.archive:
        pack(args.state, args.archive)
    if not goes_on:
        sys.exit(1)
    print(summary(day))
    print(f"all of it: {args.state}/gpu_day.json")
    if args.write:
        if not day["steps"] and not day["ladders"]:
            sys.exit("nothing was measured: there are no tables to write")
        write_tables(args, day)
    if any(r["status"] == "failed" for r in day["parts"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
