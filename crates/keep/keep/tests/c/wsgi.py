# What gunicorn serves in a test: the path; /poison reads from address 0.
import ctypes
import os


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/poison":
        ctypes.string_at(0)
    body = f"{os.getpid()} {path}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
