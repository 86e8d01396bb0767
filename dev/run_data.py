"""The numbers that a run leaves behind, for pictures: metrics.csv, evals.jsonl, tensors.csv, run.json and main.log of
an out dir (llmc/run/metrics.h, llmc/run/run_files.h), or the main.log of llm.c alone."""
import csv
import fcntl
import json
import math
import pathlib
import re
import sys

# A column of metrics.csv, and what main.log calls it.
OF_TRAINING_LINE = {"trl": "loss", "lr": "learning_rate", "norm": "grad_norm"}
OF_EVALUATION_LINE = {"tel": "val_loss", "eval": "hellaswag"}


def number(text):
    """A float, nan and inf included; None for anything else."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def whole_lines(path):
    """The lines of a file; what follows the last newline is still being written."""
    text = path.read_text(errors="replace").replace("\0", "") if path.is_file() else ""
    return text[:text.rfind("\n") + 1].splitlines()


class Run:
    """series[column] is a list of (step, value) by rising step; value may be nan or inf. tensors is a dictionary of
    such lists by (column, what, tensor, layer); layer is None outside the layers. skipped: lines not read."""

    FILES = ("metrics.csv", "evals.jsonl", "tensors.csv", "main.log", "run.json")

    def __init__(self, place):
        place = pathlib.Path(place)
        self.folder = place if place.is_dir() else place.parent
        self.paths = [self.folder / name for name in self.FILES] if place.is_dir() else [place]
        if not place.exists():
            sys.exit(f"{place}: no such folder or file; give the out dir (-o) of a run, or a main.log")
        if not any(path.is_file() for path in self.paths):
            names = ", ".join(self.FILES)
            sys.exit(f"{place} is not the out dir (-o) of a run: none of {names} is in it")
        self.place, self.name = place, (place if place.is_dir() else place.parent).resolve().name
        self.read()

    def version(self):
        """Changes when a file does."""
        found = [path.stat() for path in self.paths if path.exists()]
        return [(status.st_mtime_ns, status.st_size) for status in found]

    def is_over(self):
        """Whether steps are recorded and no trainer is at work: one holds run.lock of its out dir (llmc/base/folder.h).
        Where there is no such file, as with llm.c, nobody knows."""
        lock = self.folder / "run.lock"
        if not self.series or not lock.is_file():
            return False
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return False
        return True

    def read(self):
        self.steps, self.skipped, self.flags, self.command, self.tensors = {}, 0, {}, "", {}
        log = {}
        for path in self.paths:
            if path.name == "metrics.csv":
                self.read_metrics(path)
            elif path.name == "evals.jsonl":
                self.read_evals(path)
            elif path.name == "tensors.csv":
                self.read_tensors(path)
            elif path.name == "run.json":
                self.read_flags(path)
            else:
                log = self.read_log(path)
        for column, values in log.items():  # rounded there: only what no other file has
            self.steps.setdefault(column, values)
        self.series = {column: sorted(values.items()) for column, values in self.steps.items() if values}

    def table(self, path, needed):
        """The rows of a CSV file, as dictionaries. Rows of another length than the header are skipped."""
        lines = whole_lines(path)
        header = next(csv.reader(lines[:1]), [])
        if header and not set(needed) <= set(header):
            sys.exit(f"{path}: the first line must name its columns, {', '.join(needed)} among them; "
                     f"it is {lines[0][:60]!r}")
        for cells in csv.reader(lines[1:]):
            row = dict(zip(header, cells))
            if len(cells) == len(header) and row["step"].isdigit():
                yield int(row["step"]), row
            else:
                self.skipped += 1

    def read_metrics(self, path):
        for step, row in self.table(path, ["step", "loss"]):
            for column, text in row.items():
                if column != "step" and text:
                    self.steps.setdefault(column, {})[step] = number(text)
        for values in self.steps.values():
            for step in [step for step, value in values.items() if value is None]:
                del values[step]

    def read_evals(self, path):
        for line in whole_lines(path):
            try:
                row = json.loads(line)
                step = int(row["step"])
            except (ValueError, KeyError, TypeError):
                self.skipped += 1
                continue
            for column in ("val_loss", "bits_per_byte", "hellaswag"):
                if column in row:
                    value = number(row[column])
                    self.steps.setdefault(column, {})[step] = math.nan if value is None else value

    def read_tensors(self, path):
        found = {}
        for step, row in self.table(path, ["step", "what", "tensor", "layer", "elems", "norm"]):
            layer = int(row["layer"]) if row["layer"].isdigit() else None
            for column in ("elems", "norm", "max", "zeros", "ratio"):
                if number(row.get(column)) is not None:
                    key = column, row["what"], row["tensor"], layer
                    found.setdefault(key, {})[step] = number(row[column])
        self.tensors = {key: sorted(values.items()) for key, values in found.items()}

    def read_flags(self, path):
        try:
            run = json.loads(path.read_text()) if path.is_file() else {}
            self.flags, self.command = dict(run.get("flags") or {}), str(run.get("command") or "")
        except (ValueError, AttributeError, TypeError):
            self.skipped += 1

    def read_log(self, path):
        """s:STEP KEY:VALUE ... A run of llm.c that was started again writes some steps twice; the last counts."""
        log = {}
        for line in whole_lines(path):
            match = re.match(r"s:(\d+) ((?:\w+:\S+ ?)+)$", line)
            pairs = dict(pair.split(":", 1) for pair in match[2].split()) if match else {}
            columns = OF_TRAINING_LINE if "trl" in pairs else OF_EVALUATION_LINE
            known = {columns[key]: number(value) for key, value in pairs.items() if key in columns}
            if not known or None in known.values():
                self.skipped += 1
                continue
            for column, value in known.items():
                log.setdefault(column, {})[int(match[1])] = value
        return log

    def last_step(self):
        return max((values[-1][0] for values in self.series.values()), default=-1)
