"""Sends the numbers of a run to TensorBoard, as event files, or to Weights & Biases. What has been sent is not sent
again; after a run has been resumed from an earlier step, its event file is written anew."""
import shlex
import sys
import time

import children

SUFFIX = ".gpt2-run"  # of the event files written here


def tag_of(column):
    if column in ("val_loss", "bits_per_byte", "hellaswag"):
        return f"evaluation/{column}"
    if column.startswith("gpu_") or column == "peak_bytes":
        return f"device/{column}"
    if column.endswith("_ms") or column in ("seconds", "tokens_per_s", "flops_per_s", "mfu", "slowest_rank"):
        return f"speed/{column}"
    return f"train/{column}"


def series_of(run):
    """All that a run has: tag -> points."""
    found = {tag_of(column): points for column, points in run.series.items()}
    for (column, what, tensor, layer), points in run.tensors.items():
        if column != "elems":
            found[f"{what}_{column}/{tensor}" + ("" if layer is None else f"/{layer:02}")] = points
    return found


class Unsent:
    """Which points of a run have not been sent."""

    def __init__(self):
        self.last = {}  # by name of the run and tag: the last point that was sent

    def goes_back(self, name, found):
        """Whether a point that was sent is no longer there."""
        return any(key[0] == name and repr(dict(found.get(key[1], [])).get(step)) != value
                   for key, (step, value) in self.last.items())

    def forget(self, name):
        self.last = {key: point for key, point in self.last.items() if key[0] != name}

    def take(self, name, found):
        """The new points by step: {step: {tag: value}}."""
        by_step = {}
        for tag, points in found.items():
            sent = self.last.get((name, tag), (-1, ""))[0]
            for step, value in points:
                if step > sent:
                    by_step.setdefault(step, {})[tag] = value
            if points:
                self.last[name, tag] = points[-1][0], repr(points[-1][1])  # text, because nan differs from itself
        return dict(sorted(by_step.items()))


class TensorBoard:
    def __init__(self, folder):
        children.need("tensorboard")
        self.folder, self.writers, self.unsent = folder, {}, Unsent()

    def open(self, name):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        if name in self.writers:
            self.writers.pop(name).close()
        self.unsent.forget(name)
        folder = self.folder / name.strip("/")
        for old in folder.glob(f"events.*{SUFFIX}"):
            old.unlink()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"cannot make the folder {folder}: {error.strerror}")
        self.writers[name] = EventFileWriter(str(folder), filename_suffix=SUFFIX)

    def where(self):
        return f"event files in {self.folder}; to see them: tensorboard --logdir {shlex.quote(str(self.folder))}"

    def write(self, name, run):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        found = series_of(run)
        if name not in self.writers or self.unsent.goes_back(name, found):
            self.open(name)
        seconds, began = dict(run.series.get("seconds", [])), time.time()
        if seconds:
            began -= max(seconds.values())
        for step, values in self.unsent.take(name, found).items():
            scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self.writers[name].add_event(event_pb2.Event(wall_time=began + seconds.get(step, 0), step=step,
                                                         summary=summary_pb2.Summary(value=scalars)))
        self.writers[name].flush()


class Wandb:
    def __init__(self):
        children.need("wandb")
        self.runs, self.unsent = {}, Unsent()

    def where(self):
        return f"in the project gpt2 of Weights & Biases: {', '.join(self.runs)}"

    def write(self, name, run):
        import wandb
        if name not in self.runs:
            self.runs[name] = wandb.init(project="gpt2", name=name, config=run.flags, reinit="create_new")
        for step, values in self.unsent.take(name, series_of(run)).items():
            self.runs[name].log(values, step=step)
