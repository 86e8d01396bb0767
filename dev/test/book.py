#!/usr/bin/env python3
"""The book in a headless Chromium, from file://: no page has an error on its console, asks the network for anything or
is wider than a phone; the search finds; lesson zero trains, writes and shows its attention. Planted faults are seen.

    dev/test/book.py           build/book (make book)
    dev/test/book.py links     the check of links sees planted faults; needs no Chromium
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, SECONDS = 390, 60
BAD = {"wide.html": '<p style="width: 500px">wide</p>', "error.html": "<script>nothing()</script>",
       "missing.html": '<script src="no_such.js"></script>', "network.html": '<img src="http://localhost:9/a.png">'}


class Chromium:
    """The DevTools protocol over two pipes, which the browser has as files 3 and 4."""

    def __init__(self, folder):
        (from_us, self.to), (self.answers, to_us) = os.pipe(), os.pipe()

        def pipes():
            os.dup2(os.dup(from_us), 3)
            os.dup2(os.dup(to_us), 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             f"--user-data-dir={folder}"], preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
        self.number, self.rest, self.events, self.session = 0, b"", [], None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(domain + ".enable")
        self("Emulation.setDeviceMetricsOverride", width=WIDTH, height=844, deviceScaleFactor=1, mobile=True)

    def read(self):
        while b"\0" not in self.rest:
            data = os.read(self.answers, 1 << 20)
            assert data, "Chromium has ended"
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def __call__(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "result" in answer, answer
                return answer["result"]
            self.events.append(answer)

    def value(self, expression):
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression, what):
        end = time.time() + SECONDS
        while not self.value(expression):
            assert time.time() < end, f"{what}: not after {SECONDS} s"
            time.sleep(0.1)

    def open(self, page):
        self.events.clear()
        self("Page.navigate", url=page.as_uri())
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(page.as_uri())}", page.name)

    def problems(self):
        for event in self.events:
            name, about = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                yield about["exceptionDetails"].get("exception", {}).get("description", "an exception").split("\n")[0]
            if name == "Log.entryAdded" and about["entry"]["level"] == "error":
                yield about["entry"]["text"]
            if name == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
                yield "an error on the console"
            if name == "Network.requestWillBeSent" and about["request"]["url"].startswith("http"):
                yield "asks for " + about["request"]["url"]
        wide = self.value("document.documentElement.scrollWidth")
        if wide > WIDTH:
            yield f"is {wide} wide on a screen of {WIDTH}"


def look(browser, page):
    browser.open(page)
    return sorted(set(browser.problems()))


def search(browser):
    browser.value("document.querySelector('[data-md-toggle=search]').click()")
    browser.wait("/Type/.test(document.querySelector('.md-search-result__meta').textContent)", "the search is ready")
    browser.value("""{
        const line = document.querySelector('.md-search__input');
        line.focus();
        line.value = 'softmax';
        for (const name of ['input', 'keyup']) line.dispatchEvent(new Event(name, {bubbles: true}));
    }""")
    browser.wait("document.querySelectorAll('.md-search-result__item a').length > 0", "the search finds")


def train(browser):
    browser.value("document.getElementById('go').click()")
    browser.wait("/^step [2-9]/.test(document.getElementById('state').textContent)", "the second step")
    said = browser.value("document.getElementById('state').textContent")
    loss = float(said.split("loss ")[1].split(",")[0])
    assert 4 < loss < 6, said
    browser.wait("document.getElementById('sample').textContent.length >= 160", "a sample")
    light = browser.value("Array.from(document.getElementById('attention').getContext('2d')"
                          ".getImageData(0, 0, 64, 64).data).filter((x, i) => i % 4 === 0 && x > 250).length")
    assert light >= 64, f"{light} light points in the picture of a head"  # the largest of each row
    return said


LINKS = {'<a href="no.html">': "leads nowhere", '<a href="#no">': "no such place", '<a href="#yes" id="yes">': "",
         '<img src="https://a/b.png">': "loads https://a/b.png", '<a href="https://a/">': "",
         "x" * 8_000_001: "MB; a book"}


def links():
    sys.path.insert(0, str(ROOT / "dev/course"))
    import book
    failed = 0
    for text, expected in LINKS.items():
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "index.html").write_text(text)
            said = " ".join(book.problems(pathlib.Path(folder).resolve()))
        if expected not in said or bool(expected) != bool(said):
            print(f"{text[:40]}: {said or 'nothing'}, expected: {expected or 'nothing'}")
            failed += 1
    sys.exit(failed > 0)


def main():
    book, failed = ROOT / "build/book", 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Chromium(folder)
        try:
            for page in sorted(book.glob("*.html")):
                for problem in look(browser, page):
                    print(f"{page.name}: {problem}")
                    failed += 1
            for name, text in BAD.items():
                bad = pathlib.Path(folder) / name
                bad.write_text(f'<meta name="viewport" content="width=device-width">{text}')
                if not look(browser, bad):
                    print(f"{name}, planted, was not seen")
                    failed += 1
            browser.open(book / "index.html")
            search(browser)
            if (book / "lesson.js").stat().st_size:
                browser.open(book / "index.html")
                print(train(browser))
            for problem in browser.problems():
                print(f"the first page in use: {problem}")
                failed += 1
        finally:
            browser.process.terminate()
            browser.process.wait()
    sys.exit(failed > 0)


if __name__ == "__main__":
    links() if "links" in sys.argv else main()
