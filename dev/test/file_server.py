"""A server of files for the tests of downloads. Like the Hugging Face hub it redirects to where large files are."""
import http.server
import json
import re
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Connections end after most_bytes of an answer; with stalls, they stay open without sending more."""
    most_bytes, ranges, stalls, asked = 1 << 30, True, False, []

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body[:self.most_bytes])
        if self.stalls and len(body) > self.most_bytes:
            self.server.stalled.wait()
        self.close_connection = True

    def answer_json(self, value, **headers):
        self.answer(200, json.dumps(value).encode(), **headers)

    def answer_file(self, data):
        """The bytes that were asked for."""
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if not begin or not self.ranges:
            return self.answer(200, data)
        at = int(begin[1])
        return self.answer(206, data[at:], Content_Range=f"bytes {at}-{len(data) - 1}/{len(data)}")

    def log_message(self, *arguments):
        pass


def serve(handler):
    """A running server, and its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.stalled = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
