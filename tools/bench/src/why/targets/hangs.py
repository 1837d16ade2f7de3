"""Hangs for `orbit bench why`: rlocks|with|gil|asyncio."""
import asyncio, ctypes, os, sys, threading, time

accounts, ledger = threading.RLock(), threading.RLock()
if sys.argv[1] == "with":
    accounts, ledger = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def pay_order():
    accounts.acquire()
    both.wait()
    ledger.acquire()


def refund_order():
    ledger.acquire()
    both.wait()
    accounts.acquire()


def pay_within():
    with accounts:
        both.wait()
        with ledger:
            pass


def refund_within():
    with ledger:
        both.wait()
        with accounts:
            pass


def read_in_c():
    empty, _ = os.pipe()
    ctypes.PyDLL(None).read(empty, ctypes.create_string_buffer(1), 1)


async def query_stock(first, second):
    async with first:
        await asyncio.sleep(0.1)
        async with second:
            pass


async def shop():
    first, second = asyncio.Lock(), asyncio.Lock()
    tasks = [asyncio.create_task(query_stock(*order), name=name)
             for name, order in (("pays", (first, second)), ("refunds", (second, first)))]
    await asyncio.gather(*tasks)


def start(name, work):
    # The kernel's name too, by which the thread's id is found.
    def named():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        work()
    threading.Thread(target=named, name=name, daemon=True).start()


print("ready", flush=True)
match sys.argv[1]:
    case "rlocks":
        start("pays", pay_order)
        start("refunds", refund_order)
        time.sleep(1000)
    case "with":
        start("pays", pay_within)
        start("refunds", refund_within)
        time.sleep(1000)
    case "gil":
        start("reads", read_in_c)
        while True:
            time.sleep(0.01)
    case "asyncio":
        asyncio.run(shop())
