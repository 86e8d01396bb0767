"""Downloads from the Hugging Face hub, and from other places whose checksums are known. A download resumes where it
stopped, and is checked against its size and checksum.
"""
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from files import ROOT, Progress, fail, flush_folder

URL = "https://huggingface.co"
FOLDER = ROOT / "dev/data/downloads"
TOKENIZER = r"(tokenizer|vocab|tokenizer_config|special_tokens_map|added_tokens)\.json|merges\.txt"
WANTED = re.compile(r"config\.json|model\.safetensors(\.index\.json)?|model-\d+-of-\d+\.safetensors|" + TOKENIZER)
ATTEMPTS = 5  # in a row that bring no bytes
TIMEOUT_S = 60
TRY_AGAIN = (408, 429)  # a timeout; too many requests


def is_name(text):
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", text, re.ASCII) and ".." not in text


def failed(what, url, error):
    fail(f"{what} cannot be read from {url}: {getattr(error, 'reason', None) or error}")


def answer_of(url, what, kind, hub):
    """What the hub answers, parsed, and the address of the next page if there is one."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            more = re.search(r'<([^>]*)>; *rel="next"', response.headers.get("Link") or "")
            return json.load(response), more and more[1]
    except urllib.error.HTTPError as error:
        if error.code in (401, 404):  # the hub says 401 of what is not there, or is not for everybody
            fail(f"{what} is neither a file or folder here nor a public {kind} of {hub}")
        failed(what, url, error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        failed(what, url, error)


def listed_file(name, size, blob, large, checksum_name):
    """(name, size, kind of checksum, checksum) of a file; a large one has a sha256, others what git calls them by."""
    kind, checksum = ("sha256", large[checksum_name]) if large else ("git", blob)
    if not re.fullmatch("[0-9a-f]{40,64}", checksum):
        raise ValueError
    return name, int(size), kind, checksum


def unlisted(url):
    fail(f"{url} does not list files with sizes and checksums")


def listed_model(name, hub):
    """The revision of a model, and its files that import needs, as listed_file() gives them."""
    url = f"{hub}/api/models/{name}?blobs=true"
    answer, _ = answer_of(url, name, "model", hub)
    try:
        files = [listed_file(file["rfilename"], file["size"], file["blobId"], file.get("lfs"), "sha256")
                 for file in answer["siblings"] if WANTED.fullmatch(file["rfilename"])]
        return str(answer["sha"]), files
    except (KeyError, TypeError, ValueError):
        unlisted(url)


def listed_dataset(name, folder, hub):
    """The revision of a dataset, and the .parquet files in one of its folders, sorted, as listed_file() gives them."""
    url = f"{hub}/api/datasets/{name}/refs"
    try:
        branches, _ = answer_of(url, name, "dataset", hub)
        revision = next(branch["targetCommit"] for branch in branches["branches"] if branch["name"] == "main")
        files, url = [], f"{hub}/api/datasets/{name}/tree/{revision}/{folder}"
        while url:
            answer, more = answer_of(url, f"{folder} of {name}", "dataset", hub)
            files += [listed_file(file["path"], file["size"], file["oid"], file.get("lfs"), "oid")
                      for file in answer if file["type"] == "file" and file["path"].endswith(".parquet")]
            url = more
        return revision, sorted(files)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        unlisted(url)


def has_checksum(path, kind, checksum):
    """Whether a file has this sha256, or, if small, the sha1 that git gives it."""
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == checksum


def receive(url, file, size, progress):
    """Appends the rest of a download to its file. Returns the problem if the connection ended too early."""
    headers = {"Range": f"bytes={file.tell()}-"} if file.tell() else {}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code < 500 and error.code not in TRY_AGAIN:
            failed(url.rpartition("/")[2], url, error)
        return error
    except (OSError, http.client.HTTPException) as error:
        return error
    with response:
        if response.status != 206:  # the server sends the whole file, whatever range was asked for
            file.seek(0)
            file.truncate()
        while file.tell() < size:
            try:
                block = response.read1(1 << 18)  # what is there by now
            except (OSError, http.client.HTTPException) as error:
                return error
            if not block:
                return "the connection ended too early"
            file.write(block)
            progress.reach(file.tell())


def is_there(path, size, kind, checksum):
    return path.is_file() and path.stat().st_size == size and has_checksum(path, kind, checksum)


def fetch(url, path, size, kind, checksum, progress=None):
    """Downloads one file. The partial file has the checksum in its name, so only the same content is ever resumed."""
    part = path.with_name(f"{path.name}.{checksum[:16]}.part")
    failures = 0
    with open(part, "ab") as file:
        if file.tell():
            print(f"{path.name}: goes on from byte {file.tell():,}", flush=True)
        progress = progress or Progress(path.name, size, "MB", 1_000_000, file.tell())
        while (have := file.tell()) < size:
            problem = receive(url, file, size, progress)
            failures = 0 if file.tell() > have else failures + 1
            if failures == ATTEMPTS:
                failed(path.name, url, problem)
            if failures:
                time.sleep(2 ** (failures - 1))
        file.flush()
        os.fsync(file.fileno())
    progress.done()
    if part.stat().st_size != size or not has_checksum(part, kind, checksum):
        part.unlink()
        fail(f"{url} did not send the file that was expected: the checksum of {path.name} is wrong; it was removed")
    os.replace(part, path)
    flush_folder(path.parent)


def single_file(url, folder, size, kind, checksum):
    """Downloads one file whose checksum is known, if it is not there yet; returns its path."""
    path = folder / url.rpartition("/")[2]
    if not is_there(path, size, kind, checksum):
        print(f"{url} ({size / 1e6:,.1f} MB) into {path}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch(url, path, size, kind, checksum)
    return path


def download(name, hub, base):
    """Downloads the files of a model that are not there yet; returns their folder."""
    hub = hub.rstrip("/")
    revision, files = listed_model(name, hub)
    if not any(file[0].endswith(".safetensors") for file in files):
        fail(f"{name} of {hub} has no .safetensors file")
    sharded = any(file[0] == "model.safetensors.index.json" for file in files)
    single = any(file[0] == "model.safetensors" for file in files)
    if single and sharded:
        files = [file for file in files if not re.match(r"model-|model\.safetensors\.index", file[0])]
    folder = base / name.replace("/", "--")
    megabytes = sum(size for _, size, *_ in files) / 1e6
    print(f"{name} from {hub}, revision {revision[:12]}: {', '.join(file[0] for file in files)} "
          f"({megabytes:,.1f} MB) into {folder}", flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, size, *checksum in files:
            path = folder / file
            if not is_there(path, size, *checksum):
                fetch(f"{hub}/{name}/resolve/{urllib.parse.quote(revision)}/{file}", path, size, *checksum)
    except OSError as error:
        fail(f"cannot write {error.filename or folder}: {error.strerror}")
    return folder
