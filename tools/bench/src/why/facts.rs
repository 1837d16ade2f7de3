//! The programs that hang, and the words by which a tool's output names the facts of each.
//!
//! Of a fact there are several lists of words, since tools have words of their own; one list is
//! enough, and all its words are needed. A name in braces stands for the id of the thread that has
//! it, `{main}` and `{child}` for those of processes. A fact that no list has a program does not
//! have.

/// What there is to name.
pub const FACTS: [&str; 5] = ["threads", "lock", "holder", "frame", "deadlock"];

/// What a program is written in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    C,
    Python,
    Java,
    Go,
}

type Words = &'static [&'static [&'static str]];

/// A way to hang.
pub struct Target {
    pub name: &'static str,
    pub program: Program,
    /// The program's first argument.
    pub way: &'static str,
    /// The process that hangs is the program's child.
    pub is_of_child: bool,
    pub facts: &'static [(&'static str, Words)],
}

impl Target {
    /// The words of a fact.
    pub fn words(&self, fact: &str) -> Words {
        self.facts.iter().find(|(name, _)| *name == fact).map_or(&[], |(_, words)| words)
    }

    /// The commands that the program needs.
    pub fn needs(&self) -> &'static [&'static str] {
        match self.program {
            Program::C => &["cc"],
            Program::Python => &["python3"],
            Program::Java => &["java", "javac"],
            Program::Go => &["go"],
        }
    }

    /// Whether a tool is for programs like this.
    pub fn is_for(&self, tool: &str) -> bool {
        match tool {
            "py-spy" => self.program == Program::Python,
            "jstack" => self.program == Program::Java,
            "SIGQUIT" => self.program == Program::Go,
            _ => true,
        }
    }
}

/// Both threads of a ring hold what the other one waits for.
const HELD_BY_BOTH: Words =
    &[&["held by thread {pays}", "held by thread {refunds}"], &["held by \"pays\"", "held by \"refunds\""]];
const DEADLOCK: Words = &[&["deadlock"]];

const fn target(
    name: &'static str,
    program: Program,
    way: &'static str,
    facts: &'static [(&'static str, Words)],
) -> Target {
    Target { name, program, way, is_of_child: false, facts }
}

const fn of_child(way: &'static str, name: &'static str, facts: &'static [(&'static str, Words)]) -> Target {
    Target { name, program: Program::C, way, is_of_child: true, facts }
}

pub static TARGETS: [Target; 12] = [
    target(
        "C: two mutexes in opposite orders",
        Program::C,
        "ring",
        &[
            (
                "threads",
                &[
                    &["thread {pays} (pays) waits for mutex", "thread {refunds} (refunds) waits for mutex"],
                    &["\"pays\"", "\"refunds\"", "lll_lock_wait"],
                ],
            ),
            ("lock", &[&["(accounts)", "(ledger)"], &["<accounts>", "<ledger>"]]),
            ("holder", HELD_BY_BOTH),
            ("frame", &[&["pay_order", "refund_order", "hangs.c:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "C: a thread's own mutex",
        Program::C,
        "self",
        &[
            ("threads", &[&["thread {saves} (saves) waits for mutex"], &["\"saves\"", "lll_lock_wait"]]),
            ("lock", &[&["(accounts)"], &["<accounts>"]]),
            ("holder", &[&["held by thread {saves}"]]),
            ("frame", &[&["save_twice", "hangs.c:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    of_child(
        "fork",
        "C: a mutex held when the process was forked",
        &[
            ("threads", &[&["thread {child} (hangs) waits for mutex"], &["lll_lock_wait"]]),
            ("lock", &[&["(ledger)"], &["<ledger>"]]),
            ("holder", &[&["held by thread {keeps} of the parent {main}", "forked"]]),
            ("frame", &[&["write_entry", "hangs.c:"]]),
        ],
    ),
    target(
        "C: a pipe whose other end sleeps",
        Program::C,
        "pipe",
        &[
            ("threads", &[&["thread {main} (hangs) waits for bytes"], &["libc_read ("]]),
            ("lock", &[&["the pipe at descriptor 3"], &["fd=3"]]),
            ("holder", &[&["held by {child}"]]),
            ("frame", &[&["read_answer", "hangs.c:"]]),
        ],
    ),
    of_child(
        "file",
        "C: a file lock of another process",
        &[
            ("threads", &[&["thread {child} (hangs) waits for a lock"], &["flock ()"]]),
            ("lock", &[&["a lock on", "/turns, held"]]),
            ("holder", &[&["held by process {main}"]]),
            ("frame", &[&["take_turn", "hangs.c:"]]),
        ],
    ),
    target(
        "Python: two RLocks, by calls",
        Program::Python,
        "rlocks",
        &[
            (
                "threads",
                &[
                    &["in Python pays) waits for Python lock", "in Python refunds) waits for Python lock"],
                    &["(idle): \"pays\"", "(idle): \"refunds\""],
                    &["\"pays\"", "\"refunds\"", "sem_wait"],
                ],
            ),
            ("lock", &[&["Python lock 0x"], &["(sem=0x"], &["lock=0x"]]),
            ("holder", HELD_BY_BOTH),
            ("frame", &[&["pay_order", "refund_order", "hangs.py:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "Python: two Locks in with",
        Program::Python,
        "with",
        &[
            (
                "threads",
                &[
                    &["in Python pays) waits for Python lock", "in Python refunds) waits for Python lock"],
                    &["(idle): \"pays\"", "(idle): \"refunds\""],
                    &["\"pays\"", "\"refunds\"", "sem_wait"],
                ],
            ),
            ("lock", &[&["Python lock 0x"], &["(sem=0x"], &["lock=0x"]]),
            ("holder", HELD_BY_BOTH),
            ("frame", &[&["pay_within", "refund_within", "hangs.py:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "Python: a call to C that keeps the global lock",
        Program::Python,
        "gil",
        &[
            (
                "threads",
                &[
                    &["in Python MainThread) waits for Python's global lock"],
                    &["(idle): \"MainThread\""],
                    &["take_gil ("],
                ],
            ),
            ("lock", &[&["global lock (GIL)"], &["take_gil ("], &["+gil"]]),
            ("holder", &[&["held by thread {reads}"], &["+gil"]]),
            ("frame", &[&["read_in_c", "hangs.py:"]]),
        ],
    ),
    target(
        "Python: two locks of asyncio",
        Program::Python,
        "asyncio",
        &[
            ("threads", &[&["(pays, refunds)", "awaits"]]),
            ("lock", &[&["Lock.acquire"]]),
            ("holder", &[&["held by task"]]),
            ("frame", &[&["query_stock", "hangs.py:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "Java: two monitors",
        Program::Java,
        "monitors",
        &[
            (
                "threads",
                &[
                    &["(pays) waits for Java monitor", "(refunds) waits for Java monitor"],
                    &["\"pays\"", "\"refunds\"", "BLOCKED"],
                    &["\"pays\"", "\"refunds\"", "monitorenter"],
                ],
            ),
            ("lock", &[&["Java monitor 0x"], &["waiting to lock <0x"]]),
            ("holder", HELD_BY_BOTH),
            ("frame", &[&["Hangs.payOrder", "Hangs.java:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "Java: two ReentrantLocks",
        Program::Java,
        "locks",
        &[
            (
                "threads",
                &[
                    &["(pays) waits for Java lock", "(refunds) waits for Java lock"],
                    &["\"pays\"", "\"refunds\"", "parking to wait for"],
                    &["\"pays\"", "\"refunds\"", "Unsafe_Park"],
                ],
            ),
            ("lock", &[&["Java lock 0x"], &["parking to wait for  <0x"]]),
            ("holder", HELD_BY_BOTH),
            ("frame", &[&["Hangs.lockOrder", "Hangs.java:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
    target(
        "Go: two mutexes in opposite orders",
        Program::Go,
        "",
        &[
            ("threads", &[&["goroutine (sync.Mutex.Lock)"], &["[sync.Mutex.Lock]"]]),
            ("lock", &[&["sync.Mutex 0x"], &["main.payOrder(0x"]]),
            ("holder", &[&["seems to hold"], &["held by goroutine"]]),
            ("frame", &[&["main.payOrder", "hangs.go:"]]),
            ("deadlock", DEADLOCK),
        ],
    ),
];
