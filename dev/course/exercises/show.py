#!/usr/bin/env python3
"""make exercise EX=NAME SHOW=1: a page of the reader's own run in the simulator, for exercise.py.

The simulator writes what the first block of each launch asks of memory, and when its threads wait for each other
(CUSIM_SHOW, dev/cusim/README.md); its counts are of all blocks. The page has both, by line of the reader's file, and
two accesses of this block to the same bytes, one of them a store, that nothing puts in order: a race.
"""
import json
import pathlib
import re
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "cusim"))
import counts  # noqa: E402
import programs  # noqa: E402
import runs  # noqa: E402

PAGE_BYTES = 800_000  # of requests; what does not fit is counted, and not drawn
MOST_RACES = 40
WRITES = ("store", "atomic", "cp_async_shared")


def lines_of(e, program, codes):
    """Code address -> (line of the reader's file or 0, where it is)."""
    places = {}
    for code, frames in counts.source_frames(program, codes).items():
        own = [frame.rsplit(":", 1)[1] for frame in frames if frame.rsplit(":", 1)[0] == str(e.my)]
        places[code] = (int(own[0]) if own and own[0].isdigit() else 0, frames[0] if frames else "?")
    return places


def read_trace(path):
    """The launches of a trace: {launch, grid, block, events}."""
    launches = []
    for line in path.read_text().split("\n") if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            break  # the program was stopped while it wrote
        if "launch" in event:
            launches.append({**event, "events": []})
        else:
            launches[-1]["events"].append(event)
    return launches


# ---- races

def bytes_of(request, unit):
    """(where, lane) of every unit of bytes that the request touches."""
    for lane, at in enumerate(request["at"]):
        if at >= 0:
            for place in range(at // unit, (at + request["bytes"] + unit - 1) // unit):
                yield place, lane


def collide(a, b):
    """Of two accesses (request, lane, step of its warp) to the same bytes, one a store, between the same barriers:
    nothing puts them in order."""
    (first, lane, step), (second, other, later) = a, b
    if first["warp"] == second["warp"] and (lane == other or step != later):
        return False
    return "atomic" not in first["kind"] or "atomic" not in second["kind"]


def races(launch):
    """[(the two accesses, where, how often)], one of each pair of lines."""
    unit = min([4] + [x["bytes"] for x in launch["events"] if x.get("bytes")])
    found, steps, touched = {}, {}, {}
    for event in launch["events"]:
        if "barrier" in event:
            touched.clear()
        elif "step" in event:
            steps[event["step"]] = steps.get(event["step"], 0) + 1
        elif "kind" in event:
            memory = event["memory"] if event["memory"].startswith("0x") else "shared"
            step, writes = steps.get(event["warp"], 0), any(w in event["kind"] for w in WRITES)
            for place, lane in bytes_of(event, unit):
                stores, loads = touched.setdefault((memory, place), ({}, {}))
                now = (event, lane, step)
                for old in [*stores.values(), *(loads.values() if writes else ())]:
                    if collide(old, now):
                        pair = tuple(sorted((old[0]["code"], event["code"])))
                        found.setdefault(pair, [old, now, place * unit, 0])[3] += 1
                # Of each instruction, warp and step one lane is kept, and one more where several came.
                kept, key = stores if writes else loads, (event["code"], event["warp"], step)
                kept.setdefault(key if key not in kept else (*key, "another"), now)
    return list(found.values())[:MOST_RACES]


# ---- the page

def places_in_memory(at):
    """[first, distance] where 32 lanes are at equal distances, else all of them."""
    distances = {b - a for a, b in zip(at, at[1:])}
    return [at[0], distances.pop()] if min(at) >= 0 and len(distances) == 1 else at


def tallies(e, kernel, places):
    """The counts of a launch's instructions, by line, kind and bytes of a lane."""
    lines = {}
    for site in kernel["sites"]:
        row = lines.setdefault((places[site["code"]], site["kind"], site["lane_bytes"]), {
            "requests": 0, "bytes": 0, "transfers": 0, "least": 0})
        for to, names in (("requests", ["requests"]), ("bytes", ["bytes"]), ("transfers", ["sectors", "wavefronts"]),
                          ("least", ["wavefronts_without_conflicts"])):
            row[to] += sum(site.get(name, 0) for name in names)
    return [{"line": line, "place": place, "kind": kind, "lane_bytes": lane_bytes, **row}
            for ((line, place), kind, lane_bytes), row in sorted(lines.items())]


def figures(kernel):
    """What limits are about (runs.MEANING), of one launch."""
    return {name: runs.metric(kernel, name) for name in runs.MEANING}


def size_key(launch, name):
    return (launch[name], tuple(launch["grid"]), tuple(launch["block"]))


def read_all_counts(path):
    if not path.exists():
        return {}
    return {size_key(k, "kernel"): k for k in map(json.loads, path.read_text().split("\n")[1:-1])}


def launch_data(e, launch, counted, model, places):
    """One launch as the page has it, and its requests, which may not all fit."""
    key = size_key(launch, "launch")
    memories, sites, events = {}, {}, []
    for event in launch["events"]:
        if "kind" in event:
            memory = memories.setdefault(event["memory"], [len(memories), event["size"], event["begin"]])
            line, place = places[event["code"]]
            site = sites.setdefault((line, place, event["kind"], event["bytes"]), len(sites))
            events.append([site, event["warp"], memory[0], event["transfers"], event["least"],
                           places_in_memory(event["at"])])
        elif "barrier" in event:
            line = event["barrier"].rsplit(":", 1)
            events.append(int(line[1]) if line[0] == str(e.my) else 0)
    names = list(memories)
    side = lambda a: [*places[a[0]["code"]], a[0]["kind"], a[0]["warp"], a[1]]
    found = [{"sides": [side(a), side(b)], "memory": names.index(b[0]["memory"]), "at": at - b[0]["begin"],
              "times": times} for a, b, at, times in races(launch)]
    return {"name": launch["launch"], "grid": launch["grid"], "block": launch["block"], "races": found,
            "memories": [[name, *memories[name][1:]] for name in names], "sites": list(sites),
            "lines": tallies(e, counted[key], places) if key in counted else [],
            "barriers": counted[key]["barriers"] if key in counted else None,
            "cut": any("cut" in event for event in launch["events"]),
            "figures": [figures(of[key]) if key in of else None for of in (counted, model)], "events": events}


def fill(launches):
    """Leaves out events that do not fit on the page, from the end of each launch."""
    order = sorted(launches, key=lambda x: (not x["races"], x["name"] != "counted"))
    left = PAGE_BYTES
    for launch in order:
        kept = []
        for event in launch["events"]:
            left -= len(json.dumps(event)) + 1
            if left < 0:
                break
            kept.append(event)
        launch["left_out"] = len(launch["events"]) - len(kept)
        launch["events"] = kept
    return launches.index(order[0]) if order else 0


def data_of(e, program, said, passed, trace, counted, model):
    launches = read_trace(trace)
    codes = {event["code"] for launch in launches for event in launch["events"] if "code" in event}
    codes |= {site["code"] for kernel in counted.values() for site in kernel["sites"]}
    places = lines_of(e, str(program), sorted(codes)) if codes else {}
    shown = [launch_data(e, launch, counted, model, places) for launch in launches]
    return {"first": fill(shown), "launches": shown, "name": e.name, "title": e.title, "file": str(e.my), "said": said,
            "passed": passed, "source": e.my.read_text(errors="replace").split("\n"), "meaning": runs.MEANING}


def write_page(path, data):
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = (HERE / "show.html").read_text().replace("NAME OF THE EXERCISE", data["name"])
    part = path.with_suffix(".tmp")
    part.write_text(page.replace("null; // the run", text + ";"))
    part.rename(path)


def show(e):
    """Judges the reader's file and writes the page. Returns (passed, what the judge said, path or None)."""
    if not e.cuda:
        raise programs.Problem(f"{e.name} is no exercise in CUDA: SHOW=1 shows what happens in the simulator")
    if not programs.settings("COUNT"):
        raise programs.Problem("SHOW=1 needs the counts of the simulator: g++, without SANITIZE")
    program, said, refused = programs.student_program(e)
    if not program:
        return False, said + (runs.hint("forbidden", refused) if refused else f"\n{e.my} does not compile.\n"), None
    trace = program.with_name(program.name + ".trace")
    trace.unlink(missing_ok=True)
    passed, text = runs.run_judge(program, [], e, trace)
    text = said + re.sub(r"^  bits .*\n", "", text, flags=re.M)
    solution = programs.solution_program(e)
    model_counts = solution.with_name(solution.name + ".counts")
    runs.run([str(solution)], {"CUSIM_SEED": "0", "CUSIM_COUNT": str(model_counts)})
    counted = read_all_counts(runs.counts_path(program, []))
    page = e.my.with_suffix(".html")
    write_page(page, data_of(e, program, text, passed, trace, counted, read_all_counts(model_counts)))
    trace.unlink(missing_ok=True)
    return passed, text, page
