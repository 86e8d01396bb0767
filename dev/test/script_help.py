#!/usr/bin/env python3
"""Every script of dev and scripts answers --help with status 0, and does nothing else: run in a copy of the tree,
without the packages that some of them need and without a network, it leaves all files as they were."""
import os
import pathlib
import subprocess
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 60


def tracked():
    """The files of the repository; in a tree without git, those of these folders."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [
        str(path.relative_to(ROOT)) for folder in ("dev", "scripts", "llmc") for path in (ROOT / folder).rglob("*")]
    return [name for name in names if (ROOT / name).is_file()]


def state_of(root):
    return {str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def ask(root, name):
    """What is wrong with the answer of a script; an empty text if nothing."""
    away = {variable: "http://127.0.0.1:9" for variable in ("http_proxy", "https_proxy", "ALL_PROXY")}
    environment = {**os.environ, **away, "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1"}
    try:
        interpreter = [sys.executable, "-S"] if name.endswith(".py") else ["bash"]  # -S: without packages
        result = subprocess.run([*interpreter, str(root / name), "--help"], cwd=root, env=environment, text=True,
                                timeout=SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    if result.returncode or result.stderr or len(result.stdout) < 40:
        return f"{name} --help: status {result.returncode}: {(result.stdout + result.stderr)[-300:]}"
    return ""


def main():
    names = tracked()
    scripts = [name for name in names if name.startswith(("dev/", "scripts/")) and name.endswith((".py", ".sh"))
               and (ROOT / name).read_text(encoding="utf-8").startswith("#!")]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        before = state_of(root)
        with ThreadPoolExecutor(2) as pool:
            wrong = [problem for problem in pool.map(lambda name: ask(root, name), scripts) if problem]
        after = state_of(root)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert len(scripts) > 100, f"only {len(scripts)} scripts were found"
    sys.exit("\n".join(wrong + [f"{name} has changed" for name in changed]) or None)


main()
