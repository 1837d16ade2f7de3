"""A task in Python: an orbit sums an array that main changes; a call whose task crashes costs main nothing.

Usage: sum.py LIBORBIT LIBSHIM
"""

import ctypes
import sys
import threading

if len(sys.argv) != 3 or sys.argv[1] == "--help":
    sys.exit(__doc__)

# Set-up with PyDLL: it keeps the interpreter lock, so that in the copy of this process, too, this
# thread has it. CDLL would release it, and another thread that takes it meanwhile is in no orbit.
set_up = ctypes.PyDLL(sys.argv[1])
library = ctypes.CDLL(sys.argv[1])
shim = ctypes.CDLL(sys.argv[2])

COUNT = 1000
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class Outcome(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int), ("signal", ctypes.c_int), ("code", ctypes.c_int), ("status", ctypes.c_int),
        ("value", ctypes.c_long), ("address", ctypes.c_void_p), ("frame_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("frames", ctypes.c_void_p * 32), ("text", ctypes.c_char * 1024),
    ]


class CallOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("func_once", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("reserved", ctypes.c_int), ("deadline_us", ctypes.c_uint64),
    ]


class Request(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("args", ctypes.c_ulong * 2)]


@FUNCTION
def task(_store, args):
    address, crashes = ctypes.cast(args, ctypes.POINTER(ctypes.c_ulong * 2)).contents
    if crashes:
        ctypes.string_at(0)
    return sum((ctypes.c_long * COUNT).from_address(address))


def checked(answer):
    if not answer:
        sys.exit(library.orbit_last_error().decode())
    return answer


for name in ("orbit_area_create", "orbit_calloc"):
    getattr(library, name).restype = ctypes.c_void_p
library.orbit_last_error.restype = ctypes.c_char_p
set_up.orbit_create.restype = ctypes.c_void_p

# Threads that take the interpreter lock whenever they can: they do no harm.
for _ in range(3):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()

# In the copy the interpreter is made new, as after os.fork.
init = ctypes.cast(ctypes.pythonapi.PyOS_AfterFork_Child, ctypes.c_void_p)
orbit = checked(set_up.orbit_create(b"sum", ctypes.cast(shim.shim_entry, ctypes.c_void_p), init))
area = checked(library.orbit_area_create(ctypes.c_size_t(1 << 20), None))
memory = checked(library.orbit_calloc(ctypes.c_void_p(area), ctypes.c_size_t(COUNT), ctypes.c_size_t(8)))
numbers = (ctypes.c_long * COUNT).from_address(memory)
areas = (ctypes.c_void_p * 1)(area)
# There is no deadline unless one is given.
options = CallOptions(size=ctypes.sizeof(CallOptions), deadline_us=60_000_000)


def call(crashes):
    request = Request(ctypes.cast(task, ctypes.c_void_p).value, (ctypes.c_ulong * 2)(memory, crashes))
    outcome = Outcome()
    answer = library.orbit_call_with(
        ctypes.c_void_p(orbit), ctypes.c_size_t(1), areas, ctypes.byref(request),
        ctypes.c_size_t(ctypes.sizeof(request)), ctypes.byref(options), ctypes.byref(outcome))
    return answer, outcome


def result(answer, outcome):
    """The value, or the first line of why there is none."""
    if answer == 0:
        return outcome.value
    return (outcome.text or library.orbit_last_error()).decode().splitlines()[0]


for number in range(3):
    numbers[number] = 10 + number
    print("sum", result(*call(0)))
print(result(*call(1)))
print("sum", result(*call(0)))
