//! The rules of request mode: which calls are the moments of a request, from a list of calls or a
//! file.
//!
//! ```toml
//! processes = "children"            # first, children or all
//! mutexes = ["fcntl"]               # locks between processes: pthread, semop, fcntl, flock
//! [begins]                          # where a process waits for the next request
//! calls = ["accept"]
//! [input]                           # what brings it, and is dropped if it kills
//! calls = ["recv"]
//! on = "accepted"
//! [reply]                           # what must be the same again in a replay
//! calls = ["send"]
//! on = "accepted"
//! [ends]                            # with what it is over
//! calls = ["close"]
//! on = "accepted"
//! ```
//!
//! The bits are those of `side/side.h`; `side/moments.c` acts by them.

use serde::Deserialize;
use toml::Spanned;

const WAITS: [(&str, u32); 4] = [("accept", 0), ("poll", 1), ("select", 2), ("epoll", 3)];
const LOCKS: [(&str, u32); 1] = [("lock", 15)];
const READS: [(&str, u32); 4] = [("read", 4), ("readv", 5), ("recv", 6), ("recvmsg", 7)];
const WRITES: [(&str, u32); 5] = [("write", 8), ("writev", 9), ("send", 10), ("sendmsg", 11), ("sendfile", 12)];
const CLOSES: [(&str, u32); 2] = [("close", 13), ("shutdown", 14)];
/// `KEEP_WAITS`: calls to which `on` does not apply.
const WAITS_MASK: u32 = 0x800f;
/// Of these, those that also come within a request.
const LOCK: u32 = 1 << 15;

/// Names of the same call.
const SYNONYMS: [(&str, &str); 8] = [
    ("accept4", "accept"),
    ("ppoll", "poll"),
    ("pselect", "select"),
    ("epoll_wait", "epoll"),
    ("epoll_pwait", "epoll"),
    ("recvfrom", "recv"),
    ("sendto", "send"),
    ("sendfile64", "sendfile"),
];

const ON: [(&str, u32); 2] = [("accepted", 0), ("other", 1)];
const MUTEXES: [(&str, u32); 4] = [("pthread", 0), ("semop", 1), ("fcntl", 2), ("flock", 3)];
const PROCESSES: [(&str, Processes); 3] =
    [("first", Processes::First), ("children", Processes::Children), ("all", Processes::All)];

/// Calls, and the descriptors on which they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// A bit each; 0: no rule.
    pub calls: u32,
    /// A bit for each kind of descriptor; 0: all.
    pub on: u32,
}

/// Which processes of a family serve requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    First,
    Children,
    All,
}

impl Processes {
    /// Whether the first process does, or the others.
    pub fn serves(self, is_first: bool) -> bool {
        match self {
            Processes::First => is_first,
            Processes::Children => !is_first,
            Processes::All => true,
        }
    }
}

/// See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub processes: Processes,
    pub begins: Calls,
    pub input: Calls,
    pub reply: Calls,
    pub ends: Calls,
    /// Kinds of locks, a bit each.
    pub locks: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    processes: Option<Spanned<String>>,
    mutexes: Option<Vec<Spanned<String>>>,
    begins: Option<Table>,
    input: Option<Table>,
    reply: Option<Table>,
    ends: Option<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    calls: Spanned<Vec<Spanned<String>>>,
    on: Option<Spanned<String>>,
}

/// A mistake: where in the file, the key, and what would be right.
struct Mistake {
    at: usize,
    key: String,
    what: String,
}

impl Rules {
    /// From the value of `--requests`: calls, or the path of a file that ends in `.toml`.
    ///
    /// # Errors
    /// A sentence: line, key, and what would be right.
    pub fn of(text: &str) -> Result<Rules, String> {
        if !text.ends_with(".toml") {
            let calls = text.split(',').try_fold(0, |all, name| Ok::<u32, String>(all | moment(name)?))?;
            return Ok(Rules::waiting_at(calls));
        }
        let content = std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?;
        Rules::parse(&content).map_err(|why| format!("{text}, {why}"))
    }

    /// Request mode with nothing said but where the next request is waited for.
    fn waiting_at(calls: u32) -> Rules {
        let begins = Calls { calls, on: 0 };
        let none = Calls::default();
        Rules { processes: Processes::All, begins, input: none, reply: none, ends: none, locks: 0xf }
    }

    fn parse(text: &str) -> Result<Rules, String> {
        let line_of = |at: usize| 1 + text.get(..at).unwrap_or(text).matches('\n').count();
        let file: File = toml::from_str(text).map_err(|error| {
            format!("line {}: {}", line_of(error.span().map_or(0, |span| span.start)), error.message())
        })?;
        build(&file).map_err(|Mistake { at, key, what }| format!("line {}: {key}: {what}", line_of(at)))
    }
}

fn build(file: &File) -> Result<Rules, Mistake> {
    let missing = |what: &str| Mistake { at: 0, key: "[begins]".into(), what: what.into() };
    let begins = file.begins.as_ref().ok_or_else(|| {
        missing(
            "this table is missing: it names the calls at which a process waits for a request, as calls = [\"accept\"]",
        )
    })?;
    let mut rules = Rules::waiting_at(0);
    rules.begins = calls("begins", begins, &[&WAITS, &LOCKS, &READS])?;
    let optional = |name, table: &Option<Table>, allowed: &[&[(&str, u32)]]| {
        table.as_ref().map_or(Ok(Calls::default()), |table| calls(name, table, allowed))
    };
    rules.input = optional("input", &file.input, &[&READS])?;
    rules.reply = optional("reply", &file.reply, &[&WRITES])?;
    rules.ends = optional("ends", &file.ends, &[&CLOSES, &WRITES])?;
    if rules.begins.calls & (!WAITS_MASK | LOCK) != 0 && rules.ends.calls == 0 {
        let what = "a request that begins with reading or a lock may have several of them: [ends] must name the call \
            after which the next one begins a new request";
        return Err(Mistake { at: begins.calls.span().start, key: "begins.calls".into(), what: what.into() });
    }
    if let Some(name) = &file.processes {
        rules.processes = one_of(name, "processes", &PROCESSES)?;
    }
    if let Some(names) = &file.mutexes {
        let bits = names.iter().map(|name| one_of(name, "mutexes", &MUTEXES));
        rules.locks = bits.collect::<Result<Vec<u32>, _>>()?.into_iter().fold(0, |all, bit| all | 1 << bit);
    }
    Ok(rules)
}

fn calls(table: &str, of: &Table, allowed: &[&[(&str, u32)]]) -> Result<Calls, Mistake> {
    let (key, allowed) = (format!("{table}.calls"), allowed.concat());
    let names = of.calls.as_ref();
    if names.is_empty() {
        let what = format!("no call is named: {}", list(&allowed));
        return Err(Mistake { at: of.calls.span().start, key, what });
    }
    let bits = names.iter().map(|name| {
        let synonym = SYNONYMS.iter().find(|(other, _)| *other == name.as_ref().as_str());
        let plain = Spanned::new(name.span(), synonym.map_or(name.as_ref().as_str(), |(_, plain)| plain).to_owned());
        one_of(&plain, &key, &allowed)
    });
    let calls = bits.collect::<Result<Vec<u32>, _>>()?.into_iter().fold(0, |all, bit| all | 1 << bit);
    let Some(on) = &of.on else { return Ok(Calls { calls, on: 0 }) };
    let key = format!("{table}.on");
    if calls & !WAITS_MASK == 0 {
        let what = format!(
            "{} wait, on whatever descriptors the program says: leave it out",
            list(&[&WAITS[..], &LOCKS].concat())
        );
        return Err(Mistake { at: on.span().start, key, what });
    }
    Ok(Calls { calls, on: 1 << one_of(on, &key, &ON)? })
}

fn one_of<T: Copy>(name: &Spanned<String>, key: &str, all: &[(&str, T)]) -> Result<T, Mistake> {
    let found = all.iter().find(|(other, _)| *other == name.as_ref().as_str());
    found.map(|(_, value)| *value).ok_or_else(|| Mistake {
        at: name.span().start,
        key: key.into(),
        what: format!("{:?} is none of {}", name.as_ref(), list(all)),
    })
}

fn list<T>(all: &[(&str, T)]) -> String {
    all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn moment(text: &str) -> Result<u32, String> {
    let found = WAITS.iter().find(|(name, _)| *name == text);
    found.map(|(_, bit)| 1 << bit).ok_or_else(|| {
        format!("{text:?} is no call at which a request is waited for: {}; a file of rules ends in .toml", list(&WAITS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "processes = \"children\"\nmutexes = [\"fcntl\", \"pthread\"]\n[begins]\ncalls = [\"select\"]\n\
        [input]\ncalls = [\"recvfrom\", \"read\"]\non = \"accepted\"\n[reply]\ncalls = [\"send\"]\non = \"accepted\"\n\
        [ends]\ncalls = [\"close\"]\non = \"accepted\"\n";

    #[test]
    fn a_whole_file() {
        let rules = Rules::parse(WHOLE).expect("right");
        assert_eq!(rules.begins, Calls { calls: 4, on: 0 });
        assert_eq!(rules.input, Calls { calls: 1 << 6 | 1 << 4, on: 1 });
        assert_eq!(rules.reply, Calls { calls: 1 << 10, on: 1 });
        assert_eq!(rules.ends, Calls { calls: 1 << 13, on: 1 });
        assert_eq!(rules.locks, 1 | 4);
        assert!(rules.processes.serves(false) && !rules.processes.serves(true));
    }

    #[test]
    fn a_list_of_calls() {
        assert_eq!(Rules::of("accept,epoll").map(|rules| rules.begins.calls), Ok(9));
        assert!(Rules::of("recv").is_err_and(|why| why.contains("accept, poll, select, epoll")));
    }

    #[test]
    fn mistakes_name_line_key_and_what_is_right() {
        let cases = [
            ("", "line 1: [begins]: this table is missing"),
            (
                "[begins]\ncalls = [\"acept\"]\n",
                "line 2: begins.calls: \"acept\" is none of accept, poll, select, epoll, lock, read",
            ),
            ("[begins]\ncalls = []\n", "line 2: begins.calls: no call is named"),
            (
                "[begins]\ncalls = [\"accept\"]\non = \"accepted\"\n",
                "line 3: begins.on: accept, poll, select, epoll, lock wait",
            ),
            ("[begins]\ncalls = [\"read\"]\n", "line 2: begins.calls: a request that begins with reading"),
            (
                "[begins]\ncalls = [\"accept\"]\n[reply]\ncalls = [\"read\"]\n",
                "line 4: reply.calls: \"read\" is none of write",
            ),
            (
                "[begins]\ncalls = [\"accept\"]\n[input]\ncalls = [\"recv\"]\non = \"peer\"\n",
                "line 5: input.on: \"peer\" is none of accepted, other",
            ),
            (
                "processes = \"workers\"\n[begins]\ncalls = [\"accept\"]\n",
                "line 1: processes: \"workers\" is none of first, children, all",
            ),
            (
                "mutexes = [\"futex\"]\n[begins]\ncalls = [\"accept\"]\n",
                "line 1: mutexes: \"futex\" is none of pthread, semop, fcntl, flock",
            ),
            ("[begins]\ncall = [\"accept\"]\n", "line 2: unknown field `call`, expected `calls` or `on`"),
            ("[begins\ncalls = 1\n", "line 1: "),
            ("[begins]\ncalls = \"accept\"\n", "line 2: invalid type: string \"accept\", expected a sequence"),
        ];
        for (text, expected) in cases {
            let why = Rules::parse(text).expect_err(text);
            assert!(why.starts_with(expected), "{text:?}: {why}");
        }
    }

    #[test]
    fn the_bits_are_those_of_the_side() {
        let header = include_str!("../side/side.h");
        for (name, bit) in [&READS[..], &WRITES, &CLOSES, &LOCKS].concat() {
            let line = format!("KEEP_AT_{} = 1 << {bit},", name.to_uppercase());
            assert!(header.contains(&line), "{line}");
        }
    }
}
