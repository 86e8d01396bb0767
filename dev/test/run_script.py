"""How the tests of the scripts run commands, and scripts of this repository without a new process for each."""
import contextlib
import io
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402


def run(*command, status=0, **keywords):
    """A command's output, all of it; it must end with this status and without a traceback."""
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            cwd=ROOT, timeout=600, **keywords)
    shown = f"{' '.join(map(str, command))}: status {result.returncode}: {result.stdout[-2000:]}"
    assert result.returncode == status and "Traceback" not in result.stdout, shown
    return result.stdout


def script(module, *arguments, status=0, **keywords):
    """What a script prints. It runs in this process, which is faster, unless keywords ask for a special one."""
    if keywords:
        return run(sys.executable, module.__file__, *arguments, status=status, **keywords)
    output, ended = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        sys.argv, before = [module.__file__, *map(str, arguments)], sys.argv
        try:
            module.main()
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else 1
            if isinstance(end.code, str):
                print(end.code)
        finally:
            sys.argv = before
            children.signal_all(signal.SIGTERM)
    assert ended == status, f"{module.__name__} {arguments}: status {ended}: {output.getvalue()}"
    return output.getvalue()
