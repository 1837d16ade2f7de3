"""The named rules by which output that differs from run to run is made comparable. Few, and each one visible here.

A rule replaces what is volatile by its name in brackets. `sorted` is for lines whose order is not promised, `ignored` for
output that nobody promised anything about.
"""

import re

_TIME = (
    rb"\d{4}[-/.]\d\d[-/.]\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?( ?(UTC|GMT|Z|[+-]\d\d:?\d\d))?"
    rb"|(\d{1,2} [A-Z][a-z]{2} \d{4}|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2}) \d\d:\d\d:\d\d([.,]\d+)?( \d{4})?"
    rb"|(?<=[(])1\d{9}(?=[)])|\d{1,2}/[A-Z][a-z]{2}/\d{4}[: ]\d\d:\d\d:\d\d( [+-]\d{4})?|\d\d:\d\d:\d\d([.,]\d+)?"
)

RULES = {
    # numbers of processes and threads: "pid 17", "pid=17", "[17]", "17:M", "17#17"
    "pids": (rb"(?i)\b((?:pid|tid|process|thread)[ =:#]*)\d+|(?<![\w.])()\[\d+\]|^()\d+(?=:(?:[A-Z] |signal-handler))|()\b\d+#\d+(?=:)",
             rb"\1\2\3\4<pid>"),
    "times": (_TIME, b"<time>"),
    # what something took: "0.2 s", "13 ms", "1.5 seconds", "in 0.004s"
    "durations": (rb"\b\d+ min\b(?! \d)|\b(\d+ min )?\d+(\.\d+)? ?(s|ms|us|ns|secs?|seconds?|milliseconds)\b", b"<duration>"),
    # of the machine: "load avg: 1.52"
    "loads": (rb"(?i)\bload av(g|erage): \d+\.\d+", b"load <load>"),
    "addresses": (rb"\b0x[0-9a-f]+\b", b"<address>"),
    "client-ports": (rb"(127\.0\.0\.1|::1|localhost)[:.]\d{4,5}\b", rb"\1:<port>"),
    "numbers": (rb"\d+(\.\d+)?", b"<number>"),
    "sorted": None,
    "ignored": None,
}


def check(where, rule):
    """ValueError, if there is no such rule."""
    if rule not in RULES:
        raise ValueError(f"{where}: no rule {rule!r}; known: {', '.join(RULES)}")


def normal(text, rules):
    """Text with what the rules name replaced."""
    if "ignored" in rules:
        return b""
    for rule in rules:
        if RULES[rule]:
            pattern, by = RULES[rule]
            text = re.sub(pattern, by, text, flags=re.MULTILINE)
    if "sorted" in rules:
        text = b"".join(line + b"\n" for line in sorted(text.splitlines()))
    return text
