"""What the scripts of this folder share: errors, files that are whole or absent, progress."""
import os
import pathlib
import sys
import time

import children

ROOT = pathlib.Path(__file__).resolve().parents[2]


def in_one_line(message):
    """With ? for control characters, which names and values in the message may hold, and a terminal would obey."""
    return "".join("?" if ord(c) < 32 or ord(c) == 127 else c for c in str(message))


def fail(sentence):
    clear = "\r\033[K" if sys.stderr.isatty() else ""  # a line of progress
    sys.exit(f"{clear}error: {in_one_line(sentence)}")


def wrong_use(sentence):
    print(f"error: {in_one_line(sentence)}", file=sys.stderr)
    sys.exit(2)


def flush_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(writers, outdated=()):
    """Writes files that are whole or absent: {path: function that writes to an open file}. All are first written under
    temporary names and flushed to the disk; then the outdated files are removed and the new ones renamed, in order."""
    temporary = {path: pathlib.Path(f"{path}.tmp") for path in map(pathlib.Path, writers)}
    children.temporary_files.update(temporary.values())
    path = None
    try:
        for path, write in zip(temporary, writers.values()):
            temporary[path].unlink(missing_ok=True)
            with open(temporary[path], "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        for path in map(pathlib.Path, outdated):
            path.unlink(missing_ok=True)
        for path in temporary:
            os.replace(temporary[path], path)
        for folder in {path.parent for path in temporary}:
            flush_folder(folder)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        children.temporary_files.difference_update(temporary.values())


def time_text(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


class Progress:
    """How far long work is: on a terminal in the last line, elsewhere on stderr every 10 s."""

    def __init__(self, what, total, unit, divisor=1, start=0):
        """start is what was done earlier, which says nothing about the speed."""
        self.what, self.total, self.unit, self.divisor, self.start = what, total, unit, divisor, start
        self.terminal = sys.stderr.isatty()
        self.begin = self.shown = time.monotonic()

    def reach(self, done, note=""):
        now = time.monotonic()
        if now - self.shown < (0.2 if self.terminal else 10) or not self.total:
            return
        self.shown = now
        line = f"{self.what}: {done // self.divisor:,} of {self.total // self.divisor:,} {self.unit}"
        if done > self.start:
            line += f", {time_text((now - self.begin) * (self.total - done) / (done - self.start))} left"
        line += note
        print(f"\r{line}\033[K" if self.terminal else f"{line}\n", end="", file=sys.stderr, flush=True)

    def done(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
