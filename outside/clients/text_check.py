"""Clients of servers that speak simple text protocols, each with a model of what they must answer.

    text_check memcached SOCKET     sets, gets, counters of four connections with keys of their own
    text_check beanstalkd PORT      jobs of one producer and two consumers: none lost, doubled or foreign
    text_check nats PORT            messages of three publishers: each subscriber gets its own, in their order
"""

import random
import socket
import sys


class Lines:
    """A connection that reads lines and bodies."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(30)
        self.socket.connect(address)
        self.file = self.socket.makefile("rb")

    def ask(self, text):
        self.socket.sendall(text.encode())
        return self.line()

    def line(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the connection ended")
        return line.decode().rstrip("\r\n")

    def body(self, size):
        return self.file.read(size + 2)[:-2].decode()


class Count:
    """What the answers were."""

    def __init__(self):
        self.right = self.wrong = 0

    def expect(self, answer, expected):
        if answer == expected:
            self.right += 1
        else:
            self.wrong += 1
            print(f"{answer!r:.200} in place of {expected!r:.200}")


def memcached(path):
    source, count = random.Random(2), Count()
    clients = [(f"c{number}", Lines(path), {}, [0]) for number in range(4)]
    for name, connection, _, _ in clients:
        count.expect(connection.ask(f"set {name}:n 0 0 1\r\n0\r\n"), "STORED")
    for _ in range(15000):
        name, connection, held, counter = source.choice(clients)
        key = f"{name}:k{source.randrange(40)}"
        what = source.choice(["set", "get", "delete", "incr"])
        if what == "set":
            held[key] = source.randbytes(source.choice([2, 50, 5000])).hex()
            count.expect(connection.ask(f"set {key} 7 0 {len(held[key])}\r\n{held[key]}\r\n"), "STORED")
        elif what == "delete":
            count.expect(connection.ask(f"delete {key}\r\n"), "DELETED" if held.pop(key, None) else "NOT_FOUND")
        elif what == "incr":
            counter[0] += 3
            count.expect(connection.ask(f"incr {name}:n 3\r\n"), str(counter[0]))
        else:
            line = connection.ask(f"get {key}\r\n")
            if key in held:
                count.expect(line, f"VALUE {key} 7 {len(held[key])}")
                count.expect(connection.body(len(held[key])), held[key])
                line = connection.line()
            count.expect(line, "END")
    return count


def beanstalkd(port):
    source, count = random.Random(3), Count()
    producer, consumers = Lines(("127.0.0.1", port)), [Lines(("127.0.0.1", port)) for _ in range(2)]
    waiting, number = [], 0
    for _ in range(15000):
        if waiting and source.random() < 0.5:
            consumer, (job, text) = source.choice(consumers), waiting.pop(0)
            count.expect(consumer.ask("reserve-with-timeout 10\r\n"), f"RESERVED {job} {len(text)}")
            count.expect(consumer.body(len(text)), text)
            count.expect(consumer.ask(f"delete {job}\r\n"), "DELETED")
        else:
            number += 1
            text = source.randbytes(source.choice([4, 40, 4000])).hex()
            waiting.append((number, text))
            count.expect(producer.ask(f"put 0 0 60 {len(text)}\r\n{text}\r\n"), f"INSERTED {number}")
    for job, text in waiting:
        count.expect(consumers[0].ask("reserve-with-timeout 10\r\n"), f"RESERVED {job} {len(text)}")
        count.expect(consumers[0].body(len(text)), text)
        count.expect(consumers[0].ask(f"delete {job}\r\n"), "DELETED")
    count.expect(consumers[0].ask("reserve-with-timeout 0\r\n"), "TIMED_OUT")
    return count


def nats(port):
    source, count = random.Random(6), Count()
    readers = []
    for number in range(3):
        reader = Lines(("127.0.0.1", port))
        reader.line()
        count.expect(reader.ask(f'CONNECT {{"verbose":false}}\r\nSUB own.{number} 1\r\nSUB all.* 2\r\nPING\r\n'), "PONG")
        readers.append((reader, []))
    writer = Lines(("127.0.0.1", port))
    writer.line()
    writer.socket.sendall(b'CONNECT {"verbose":false}\r\n')
    for _ in range(8000):
        number, text = source.randrange(3), source.randbytes(source.choice([4, 40, 1000])).hex()
        subject = f"own.{number}" if source.random() < 0.6 else "all.x"
        writer.socket.sendall(f"PUB {subject} {len(text)}\r\n{text}\r\n".encode())
        for reader, expected in readers[number : number + 1] if subject != "all.x" else readers:
            expected.append((subject, text))
            line = reader.line()
            while line == "PING":
                reader.socket.sendall(b"PONG\r\n")
                line = reader.line()
            _, got, _, size = line.split()
            count.expect((got, reader.body(int(size))), (subject, text))
    count.expect(writer.ask("PING\r\n"), "PONG")
    return count


def main():
    protocol, address = sys.argv[1:]
    clients = {"memcached": memcached, "beanstalkd": beanstalkd, "nats": nats}
    count = clients[protocol](int(address) if address.isdigit() else address)
    print(f"right {count.right}, wrong {count.wrong}")
    sys.exit(count.wrong > 0)


if __name__ == "__main__":
    main()
