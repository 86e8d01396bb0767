"""Runs the programs of a bench one after the other, and shows how long they will take and how far they are."""
import children
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def child(command, env=None):
    return children.run(command, env=env, cwd=ROOT)


class Task:
    """A program to run; `seconds` is about what it takes on two cores of a server. A task of 0 seconds reports."""
    def __init__(self, label, seconds, action):
        self.label, self.seconds, self.action = label, seconds, action


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, seconds):.0f} s"


def run_tasks(tasks):
    """Runs tasks. Says at first how long they will take, and before each how long the rest takes at this pace."""
    total, done, begun = sum(t.seconds for t in tasks), 0, time.monotonic()
    programs = [t for t in tasks if t.seconds]
    print(f"{len(programs)} programs run one after the other, about {minutes(total)} on two cores of a server; "
          "they measure time, so the machine should do nothing else. Ctrl-C ends it.", flush=True)
    for task in tasks:
        if task.seconds:
            pace = (time.monotonic() - begun) / done if done > 0.02 * total else 1
            number = programs.index(task) + 1
            show(f"[{number}/{len(programs)}, about {minutes((total - done) * pace)} left] {task.label}")
        task.action()
        done += task.seconds
    show("")


def show(line):
    """Shows progress on stderr: on a terminal in a line that is replaced, elsewhere line by line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line[:os.get_terminal_size(2).columns - 1]}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def say(text):
    show("")
    print(text, flush=True)
