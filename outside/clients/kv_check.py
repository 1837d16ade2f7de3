"""Clients of stores that speak JSON over HTTP, each with a model of what they must answer.

    kv_check etcd PORT              puts, gets, deletes and transactions of four connections with keys of their own
    kv_check prometheus PORT        waits until it has scraped itself, and asks for what must hold of its figures
"""

import base64
import http.client
import json
import random
import sys
import time
import urllib.parse

from text_check import Count


class Json:
    """A connection that sends and gets JSON."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def post(self, path, **body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(self.connection.getresponse().read())

    def get(self, path, **query):
        self.connection.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
        return json.loads(self.connection.getresponse().read())


def coded(text):
    return base64.b64encode(text.encode()).decode()


def etcd(port):
    source, count = random.Random(4), Count()
    clients = [(f"c{number}", Json(port), {}) for number in range(4)]
    for _ in range(1200):
        name, connection, held = source.choice(clients)
        key = f"{name}/k{source.randrange(20)}"
        what = source.choice(["put", "get", "delete", "swap"])
        if what == "put":
            value = source.randbytes(source.choice([2, 50, 2000])).hex()
            answer = connection.post("/v3/kv/put", key=coded(key), value=coded(value), prev_kv=True)
            was = answer.get("prev_kv", {}).get("value")
            count.expect(was, coded(held[key]) if key in held else None)
            held[key] = value
        elif what == "delete":
            answer = connection.post("/v3/kv/deleterange", key=coded(key))
            count.expect(answer.get("deleted", "0"), str(int(held.pop(key, None) is not None)))
        elif what == "swap":
            old = held.get(key, "")
            compare = {"target": "VALUE", "key": coded(key), "value": coded(old)}
            put = {"requestPut": {"key": coded(key), "value": coded(f"{name}-swapped")}}
            answer = connection.post("/v3/kv/txn", compare=[compare], success=[put])
            count.expect(answer.get("succeeded", False), key in held)
            if key in held:
                held[key] = f"{name}-swapped"
        else:
            answer = connection.post("/v3/kv/range", key=coded(f"{name}/"), range_end=coded(f"{name}0"))
            got = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in answer.get("kvs", [])}
            count.expect(got, held)
    return count


def prometheus(port):
    count, connection = Count(), Json(port)
    end = time.monotonic() + 40

    def ask(query):
        return connection.get("/api/v1/query", query=query)["data"]["result"]

    while len(found := ask('count_over_time(up[1h]) >= 2')) != 1 and time.monotonic() < end:
        time.sleep(0.2)
    count.expect([result["metric"]["job"] for result in found], ["self"])
    for query, value in (
        ("min_over_time(up[1h])", "1"), ("vector(6) * 7", "42"), ("count(prometheus_build_info)", "1"),
        ("sum(prometheus_tsdb_wal_corruptions_total)", "0"), ("sum(prometheus_rule_evaluation_failures_total) or vector(0)", "0"),
        ("sum(prometheus_target_scrapes_sample_out_of_order_total)", "0"),
    ):
        count.expect([result["value"][1] for result in ask(query)], [value])
    return count


def main():
    count = {"etcd": etcd, "prometheus": prometheus}[sys.argv[1]](int(sys.argv[2]))
    print(f"right {count.right}, wrong {count.wrong}")
    sys.exit(count.wrong > 0)


if __name__ == "__main__":
    main()
