"""An API server of Kubernetes, as far as an agent asks one: api_server.py DIR. It serves TLS with DIR/cert.pem and DIR/key.pem,
writes its port to DIR/port, appends each request to DIR/requests.jsonl, answers lists with DIR/pods.json (403 where that is
missing), and takes Events unless DIR/refuses is there."""

import http.server
import json
import pathlib
import ssl
import sys

DIR = pathlib.Path(sys.argv[1])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def note(self, body):
        line = {"method": self.command, "path": self.path, "head": dict(self.headers.items()), "body": body}
        with open(DIR / "requests.jsonl", "a") as to:
            to.write(json.dumps(line) + "\n")

    def answer(self, status, body, chunked=False):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if chunked:
            # As the API server has it for lists.
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 1000):
                part = body[at : at + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def do_GET(self):
        self.note(None)
        pods = DIR / "pods.json"
        if pods.exists():
            self.answer(200, pods.read_bytes(), chunked=True)
        else:
            self.answer(403, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.note(body)
        self.answer(503 if (DIR / "refuses").exists() else 201, b"{}")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(DIR / "cert.pem", DIR / "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
(DIR / "port.new").write_text(str(server.server_address[1]))
(DIR / "port.new").rename(DIR / "port")
server.serve_forever()
