"""A terminal for programs that want one: types keys as a user does, who waits for what the screen shows.

Keys are a list of texts. `wait:TEXT` waits until the program has written TEXT since the last keys, `pause` for 0.3 seconds, as
a user reads; anything else is typed.
"""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import threading

# Sequences that move, colour and ask, which stand between the letters of a screen.
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78DEHMNOZc])")


class Terminal:
    """A terminal whose other end belongs to the program; what is written there goes to a file."""

    def __init__(self, keys, path):
        self.keys, self.path, self.over = list(keys), path, threading.Event()
        self.own, self.programs = pty.openpty()
        fcntl.ioctl(self.programs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def start(self):
        """After the program has started: its end is then held by it alone."""
        os.close(self.programs)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        keys, screen = self.keys, b""
        with open(self.path, "wb", buffering=0) as file:
            while not self.over.is_set():
                if keys and keys[0] == "pause":
                    keys.pop(0)
                    self.over.wait(0.3)
                elif keys and not keys[0].startswith("wait:"):
                    screen = b""
                    self.type(keys.pop(0).encode())
                elif keys and keys[0].removeprefix("wait:").encode() in _SEQUENCE.sub(b"", screen):
                    keys.pop(0)
                elif select.select([self.own], [], [], 0.1)[0]:
                    try:
                        got = os.read(self.own, 65536)
                    except OSError:
                        return  # the program has closed its end
                    file.write(got)
                    screen += got

    def awaited(self):
        """What the screen has yet to show, in words."""
        return next((f"the screen, which never showed {key.removeprefix('wait:')!r}" for key in self.keys[:1]), "")

    def type(self, keys):
        while keys:
            keys = keys[os.write(self.own, keys) :]

    def close(self):
        self.over.set()
        self.thread.join()
        os.close(self.own)
