"""Runs programs for a script so that Ctrl-C, a closed terminal and a closed pipe (`| head`) end them and the script,
without a traceback. Import it first: modules that take long to import would otherwise print one."""
import atexit
import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import time

PATIENCE_S = 3  # between asking a program to end and ending it
running = set()
temporary_files = set()  # paths that are removed if the script is interrupted
starting, stopped_by = False, None
stopping = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
    stopping.append(signal.SIGHUP)


def signal_all(number):
    for process in running:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass


def stop(number, _frame=None):
    global stopped_by
    stopped_by = number
    if starting:  # run() calls stop() again once it knows the process that it is starting
        return
    for again in stopping:
        signal.signal(again, signal.SIG_IGN)
    signal_all(signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(0.02)
    signal_all(signal.SIGKILL)
    for path in temporary_files:
        path.unlink(missing_ok=True)
    if number in stopping:
        with contextlib.suppress(OSError):  # the terminal is closed
            print("\ninterrupted", file=sys.stderr, flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def expect_reader(more=""):
    """Ends the script as SIGPIPE ends other programs if nobody reads its output any more."""
    try:
        print(more, end="", flush=True)
    except BrokenPipeError:
        stop(signal.SIGPIPE)


def failed(kind, error, trace):
    if issubclass(kind, BrokenPipeError):  # of stdout, or of something else
        expect_reader("\n")
    sys.__excepthook__(kind, error, trace)


for number in stopping:
    signal.signal(number, stop)
sys.excepthook = failed
atexit.register(signal_all, signal.SIGTERM)  # a script that fails ends what it has started
atexit.register(expect_reader)


PR_SET_PDEATHSIG = 1
end_with_parent = getattr(ctypes.CDLL(None), "prctl", None)  # Linux


def tie_to(parent):
    """In a program that is being started: it ends when the script does, by SIGKILL too, where the system can."""
    if end_with_parent:
        end_with_parent(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def start(command, **keywords):
    """Starts a program that ends when the script is interrupted. The script ends if it does not start."""
    global starting
    starting, parent = True, os.getpid()
    try:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: tie_to(parent), **keywords)
    except OSError as error:
        sys.exit(f"{command[0]} does not start: {error.strerror}")
    running.add(process)
    starting = False
    if stopped_by:
        stop(stopped_by)
    return process


def run(command, text="", env=None, cwd=None):
    """Runs a command to its end, with text on its stdin. Returns what it printed, and its peak of resident memory in
    MiB. If it fails, the script ends with its message."""
    command = [str(c) for c in command]
    process = start(command, cwd=cwd, env={**os.environ, **(env or {})}, text=True, errors="replace",
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:  # it reads nothing
        pass
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    running.remove(process)
    if process.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{output[-2000:]}")
    return output, usage.ru_maxrss / 1024


def need(*modules):
    """Ends the script if one of the modules is missing, naming the pip command that helps. --help needs none."""
    missing = [module for module in modules if not have(module)]
    if missing and "--help" in sys.argv:
        sys.exit(print(sys.modules["__main__"].__doc__))
    if missing:
        sys.exit(f"missing: {', '.join(missing)} (pip install {' '.join(missing)})")


def have(module):
    """Whether Python has the module. Does not import it."""
    return importlib.util.find_spec(module) is not None
