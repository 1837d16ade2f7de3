"""A client of name servers.

    dns_check make hosts|unbound|bind     prints 200 names below test. in that server's form
    dns_check ask PORT                    asks for each many times, by UDP and TCP, and for names that are not there
"""

import random
import socket
import struct
import sys
import time

from text_check import Count

NAMES = 200


def address(number):
    return f"10.1.{number // 100}.{number % 100 + 1}"


def make(form):
    if form == "bind":
        print("$TTL 60\n@ IN SOA ns hostmaster 1 60 60 60 60\n@ IN NS ns\nns IN A 127.0.0.1")
    for number in range(NAMES):
        name = f"host{number}.test"
        print({
            "hosts": f"{address(number)} {name}",
            "unbound": f'  local-data: "{name}. 60 IN A {address(number)}"',
            "bind": f"host{number} IN A {address(number)}",
        }[form])


def question(number, name):
    words = b"".join(bytes([len(word)]) + word.encode() for word in name.split("."))
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + words + b"\0\0\1\0\1"


def judged(answer, number):
    """(number is the question's, code, address of the one answer)."""
    got, flags, _, answers = struct.unpack(">HHHH", answer[:8])
    at = answer.index(b"\0", 12) + 5
    found = None
    if answers == 1:
        kind, _, _, size = struct.unpack(">HHIH", answer[at + 2 : at + 12])
        found = socket.inet_ntoa(answer[at + 12 : at + 12 + size]) if kind == 1 else None
    return got == number, flags & 15, found


def ask(port):
    source, count = random.Random(5), Count()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.settimeout(20)
    udp.connect(("127.0.0.1", port))
    # A server may listen before it has read its names.
    end = time.monotonic() + 20
    sent = question(1, "host0.test")
    udp.send(sent)
    while judged(udp.recv(4096), 1)[1] != 0 and time.monotonic() < end:
        time.sleep(0.05)
        udp.send(sent)
    for turn in range(6000):
        number = source.randrange(NAMES + 20)
        name, expected = f"host{number}.test", (True, 0, address(number)) if number < NAMES else (True, 3, None)
        sent = question(turn, name)
        if turn % 20:
            udp.send(sent)
            answer = udp.recv(4096)
        else:
            with socket.create_connection(("127.0.0.1", port), 20) as tcp:
                tcp.sendall(struct.pack(">H", len(sent)) + sent)
                file = tcp.makefile("rb")
                answer = file.read(struct.unpack(">H", file.read(2))[0])
        count.expect(judged(answer, turn), expected)
    return count


def main():
    if sys.argv[1] == "make":
        make(sys.argv[2])
        return
    count = ask(int(sys.argv[2]))
    print(f"right {count.right}, wrong {count.wrong}")
    sys.exit(count.wrong > 0)


if __name__ == "__main__":
    main()
