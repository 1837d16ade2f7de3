//! What a campaign sees of a run beside its trace: guests ask at the call that meets the fault,
//! before each call that makes a file, and at their exit. Each question stops the thread that asks
//! until it is answered, so that what is inspected stands still. The answer is always that the call
//! passes.

use super::judge::{AllHeld, Held};
use super::parsed;
use crate::rules::{Action, Asked, Rule, Rules};
use crate::{Answer, Decider, Question, calls};
use orbit_inspect::Maps;
use orbit_inspect::stacks::{Frame, Unwinder};
use orbit_linux::remote;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Frames of a stack that are kept.
const MAX_FRAMES: usize = 24;
/// Clocks of file systems are up to a tick behind.
const CLOCK_STEP: Duration = Duration::from_millis(20);
/// Executive, its stacks and the shared memory: not the program's.
const EXECUTIVE: std::ops::Range<u64> = 0x1f00_0000_0000..0x1f30_0000_0000;

/// Calls that make a file: index of the directory's argument (`NO_DIRECTORY`: none) and of the
/// path's.
const MAKERS: [(&str, &str, usize, usize); 15] = [
    ("open", "(flags&O_CREAT)", NO_DIRECTORY, 0),
    ("openat", "(flags&O_CREAT)", 0, 1),
    ("creat", "", NO_DIRECTORY, 0),
    ("mkdir", "", NO_DIRECTORY, 0),
    ("mkdirat", "", 0, 1),
    ("mknod", "", NO_DIRECTORY, 0),
    ("mknodat", "", 0, 1),
    ("symlink", "", NO_DIRECTORY, 1),
    ("symlinkat", "", 1, 2),
    ("link", "", NO_DIRECTORY, 1),
    ("linkat", "", 2, 3),
    ("rename", "", NO_DIRECTORY, 1),
    ("renameat", "", 2, 3),
    ("renameat2", "", 2, 3),
    ("bind", "", NO_DIRECTORY, 1),
];
const NO_DIRECTORY: usize = 6;

/// The rules by which guests ask: `site` at the fault, then before each call that makes a file, and
/// at exit.
pub(super) fn rules(site: Option<&str>) -> io::Result<Rules> {
    let makers: Vec<String> = MAKERS.iter().map(|(call, when, ..)| format!("{call}{when} -> ask makes")).collect();
    let mut rules = parsed(&format!("{}\n{}", site.unwrap_or(""), makers.join("\n")))?;
    let exit = calls::by_name("exit_group").map(|call| call.number).into_iter().collect();
    let exit = Rule {
        text: "exit_group -> ask exits".to_owned(),
        calls: exit,
        conditions: Vec::new(),
        site: 0,
        action: Action::Ask(Asked::Decider("exits".to_owned())),
        skip: 0,
        times: 0,
        every: 1,
        chance: u32::MAX,
    };
    rules.add(exit).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(rules)
}

/// The stack at the call that met the fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Stack {
    /// Innermost first.
    pub frames: Vec<String>,
    /// The loader made the call, or libc for it, before anything of the program ran.
    pub is_loaders: bool,
}

/// The first call that a stack made.
#[derive(Clone, Debug)]
pub(super) struct First {
    /// Index of the rule by which it asked.
    pub rule: usize,
    pub call: &'static str,
    pub site: u64,
    /// How many calls of this name had asked by this rule before.
    pub order: u64,
}

/// What was seen of one run.
#[derive(Default)]
struct Seen {
    stack: Stack,
    firsts: Vec<First>,
    /// Rule, call and stack of each of `firsts`.
    known: HashSet<(usize, &'static str, String)>,
    orders: HashMap<(usize, &'static str), u64>,
    made: BTreeSet<PathBuf>,
    /// By process. A question may come twice, if a signal comes first.
    held: BTreeMap<u32, Held>,
}

impl Seen {
    /// A call that may meet a fault.
    fn count(&mut self, question: &Question) {
        let (rule, call) = (question.rule.unwrap_or(0), question.call);
        let order = self.orders.entry((rule, call)).or_default();
        *order += 1;
        let order = *order - 1;
        let frames: Vec<String> = frames(question).iter().map(Frame::to_string).collect();
        if self.known.insert((rule, call, frames.join("\n"))) {
            self.firsts.push(First { rule, call, site: question.site, order });
        }
    }
}

/// Answers the questions of one run.
#[derive(Default)]
pub(super) struct Witness(Arc<Mutex<Seen>>);

impl Witness {
    pub fn decider(&self) -> Decider {
        let seen = Arc::clone(&self.0);
        Decider::new(move |question| {
            match question.name.as_str() {
                "site" => {
                    let stack = stack(question);
                    lock(&seen).stack = stack;
                }
                "stack" => lock(&seen).count(question),
                "makes" => lock(&seen).made.extend(made(question)),
                "exits" => _ = lock(&seen).held.insert(question.pid, held(question.pid)),
                _ => {}
            }
            Answer::Pass
        })
    }

    /// What processes had at their exit, and the stack at the fault.
    pub fn ended(&self, first: u32) -> (AllHeld, Stack) {
        let seen = lock(&self.0);
        let mut all = Held::default();
        for held in seen.held.values() {
            all.descriptors.extend(held.descriptors.iter().cloned());
            all.children.extend(held.children.iter().cloned());
            all.memory += held.memory;
        }
        let held = AllHeld { first: seen.held.get(&first).cloned(), all, processes: seen.held.len() };
        (held, seen.stack.clone())
    }

    /// The first calls of all stacks, in their order.
    pub fn stacks(&self) -> Vec<First> {
        lock(&self.0).firsts.clone()
    }

    /// Files that were made and are still there, and whether each was made since `began`.
    pub fn files(&self, began: SystemTime) -> BTreeMap<PathBuf, bool> {
        let is_new = |path: &PathBuf| {
            let about = path.symlink_metadata().ok()?;
            let made = about.created().or_else(|_| about.modified()).ok()?;
            Some(made + CLOCK_STEP >= began)
        };
        lock(&self.0).made.iter().filter_map(|path| Some((path.clone(), is_new(path)?))).collect()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stack of the thread that asks.
fn stack(question: &Question) -> Stack {
    let frames = frames(question);
    let modules: Vec<&str> = frames.iter().map(|frame| frame.module.as_str()).collect();
    Stack { is_loaders: is_loaders(&modules), frames: frames.iter().take(MAX_FRAMES).map(Frame::to_string).collect() }
}

fn frames(question: &Question) -> Vec<Frame> {
    let Ok(mut unwinder) = Unwinder::new(question.pid as i32) else { return Vec::new() };
    let r = question.registers;
    // In DWARF's order; a call destroys rcx and r11.
    let registers = [
        r.rax,
        r.rdx,
        0,
        r.rbx,
        r.rsi,
        r.rdi,
        r.rbp,
        r.rsp,
        r.r8,
        r.r9,
        r.r10,
        0,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        question.site,
    ];
    let copies = unwinder.copy_from(question.tid as i32, registers);
    unwinder.name(copies).into_iter().flat_map(|stack| stack.frames).collect()
}

/// Whether a stack of these modules, innermost first, is the loader's: it began there, and has
/// nothing but it and libc.
fn is_loaders(modules: &[&str]) -> bool {
    let is = |module: &str, begins: &[&str]| {
        let name = module.rsplit('/').next().unwrap_or(module);
        begins.iter().any(|begin| name.starts_with(begin))
    };
    modules.last().is_some_and(|last| is(last, &["ld-"])) && modules.iter().all(|all| is(all, &["ld-", "libc."]))
}

/// The path that the call would make.
fn made(question: &Question) -> Option<PathBuf> {
    let (_, _, directory, path) = MAKERS.iter().find(|(call, ..)| *call == question.call)?;
    let mut bytes = [0; 4096];
    let read = remote::read(question.pid as i32, question.arguments[*path], &mut bytes).ok()?;
    let mut text = &bytes[..read];
    if question.call == "bind" {
        // struct sockaddr_un: the family, then a path; one that begins with a zero byte is no file.
        text = text.strip_prefix(&(libc::AF_UNIX as u16).to_ne_bytes())?;
        text = &text[..text.len().min(question.arguments[2].saturating_sub(2) as usize)];
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let path = Path::new(std::str::from_utf8(&text[..end]).ok().filter(|text| !text.is_empty())?);
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let descriptor = question.arguments.get(*directory).map_or(libc::AT_FDCWD, |fd| *fd as i32);
    let base = match descriptor {
        libc::AT_FDCWD => format!("/proc/{}/cwd", question.pid),
        fd => format!("/proc/{}/fd/{fd}", question.pid),
    };
    Some(std::fs::read_link(base).ok()?.join(path))
}

/// What the process has now.
fn held(pid: u32) -> Held {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    // What the session keeps open is not the program's.
    let names = names.filter(|name| !name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:hijack"));
    let descriptors = names.map(|name| {
        let name = name.display().to_string();
        // `pipe:[123]`: the number differs in each run.
        name.split_once(":[").map_or(name.clone(), |(kind, _)| kind.to_owned())
    });
    let maps = Maps::of(pid as i32).unwrap_or_default();
    let own = maps.iter().filter(|map| map.write && !map.shared && !EXECUTIVE.contains(&map.start));
    let memory = own.filter(|map| map.path.is_empty() || map.path == "[heap]").map(|map| map.end - map.start).sum();
    let children = processes().filter(|process| process.parent == pid).map(|process| process.name).collect();
    Held { descriptors: descriptors.collect(), memory, children }
}

struct Process {
    name: String,
    pid: u32,
    parent: u32,
    group: i32,
    is_alive: bool,
}

/// All processes that /proc shows.
fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (begin, end) = (text.find('(')?, text.rfind(')')?);
        let mut words = text.get(end + 2..)?.split(' ');
        let is_alive = !matches!(words.next()?, "Z" | "X");
        let (parent, group) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Process { name: text[begin + 1..end].to_owned(), pid, parent, group, is_alive })
    })
}

/// What of a group is alive after `grace`.
pub(super) fn group(group: i32, grace: Duration) -> Vec<String> {
    let end = Instant::now() + grace;
    loop {
        let alive = processes().filter(|process| process.group == group && process.is_alive);
        let alive: Vec<String> = alive.map(|process| format!("process {} ({})", process.pid, process.name)).collect();
        if alive.is_empty() || Instant::now() >= end {
            return alive;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::is_loaders;

    #[test]
    fn a_stack_is_the_loaders_until_the_program_or_a_library_has_a_part_in_it() {
        let (loader, libc) = ("/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libc.so.6");
        assert!(is_loaders(&[loader, loader]) && is_loaders(&[libc, loader]));
        assert!(!is_loaders(&[libc, "/bin/x"]) && !is_loaders(&[libc, "/usr/lib/libfoo.so", loader]));
        assert!(!is_loaders(&[loader, libc]) && !is_loaders(&[]));
    }
}
