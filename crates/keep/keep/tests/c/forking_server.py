# threadless.py SOCKET: the standard library's server that forks a child for each connection; /poison reads from address 0.
import ctypes
import http.server
import socketserver
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/poison":
            ctypes.string_at(0)
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "local"

    def log_message(self, *_):
        pass


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    pass


Server(sys.argv[1], Handler).serve_forever()
