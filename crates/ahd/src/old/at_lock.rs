//! Whether the functions that wait at a futex are a lock's, by their names.
//!
//! Owns: what is read of a name. Promises: only the function itself counts and the type it belongs to; what it takes, what it answers and what its
//! templates are made for says nothing of what it waits for. Only the innermost function that waits counts, and the next one where that has no name
//! or stands for any wait. Refuses: to guess at the bytes of the futex.

/// Whether the functions that wait at a futex are a lock's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtLock {
    Yes,
    No,
    /// They have no names.
    Unknown,
}

/// Innermost functions of a wait, below those that only make the call, of which one is named for what it is.
const TELLING: usize = 2;
/// Functions that wait for whatever they are told to, without the underscores around them.
const ANY_WAIT: [&str; 3] = ["wait", "timedwait", "timedwait_cp"];
/// What compilers put behind the name of a part or a copy of a function.
const PARTS: [&str; 5] = [".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm."];

/// `functions`: names, innermost first.
pub(crate) fn at_lock<'a>(functions: impl Iterator<Item = Option<&'a str>>) -> AtLock {
    let names =
        functions.map(|name| name.map(Name::of)).filter(|name| !name.as_ref().is_some_and(Name::makes_the_call));
    let mut answer = AtLock::Unknown;
    for name in names.take(TELLING) {
        match name {
            Some(name) if name.is_lock() => return AtLock::Yes,
            Some(name) if name.is_any_wait() => answer = AtLock::No,
            Some(_) => return AtLock::No,
            None => {}
        }
    }
    answer
}

/// What a name says, in small letters.
struct Name {
    function: String,
    /// The type or module it belongs to; empty if there is none.
    of: String,
}

impl Name {
    /// Takes a readable name of C, C++, Rust or Go apart.
    fn of(name: &str) -> Name {
        // Methods of Go: `sync.(*Mutex).Lock`.
        let name = name.replace(".(*", ".").replace(").", ".").replace("(anonymous namespace)::", "");
        // Of Rust's `<Type as Trait>::function` the type counts.
        let (whose, rest) = match name.strip_prefix('<').map(|inner| inner.split_at(end_of_brackets(inner))) {
            Some((inner, rest)) => {
                (bare(inner.split(" as ").next().unwrap_or(inner)), bare(rest.trim_start_matches('>')))
            }
            None => (String::new(), bare(&name)),
        };
        let path = format!("{whose}{rest}").to_ascii_lowercase();
        let path =
            PARTS.iter().fold(path.trim_end_matches(".cold"), |path, part| path.split(part).next().unwrap_or(path));
        let mut parts = path.rsplit([':', '.']).filter(|part| !part.is_empty()).map(str::to_owned);
        Name { function: parts.next().unwrap_or_default(), of: parts.next().unwrap_or_default() }
    }

    fn makes_the_call(&self) -> bool {
        self.function.contains("syscall") || self.function.contains("futex")
    }

    fn is_any_wait(&self) -> bool {
        self.of.is_empty() && ANY_WAIT.contains(&self.function.trim_matches('_'))
    }

    fn is_lock(&self) -> bool {
        let before = |name: &str| ["b", "c", "un", "inter"].iter().any(|not| name.ends_with(not));
        let after = |name: &str| ["ed", "free", "_free", "less"].iter().any(|not| name.starts_with(not));
        let lock =
            |(at, word): (usize, &str)| !before(&self.function[..at]) && !after(&self.function[at + word.len()..]);
        let function = self.function.contains("mutex") && !self.function.contains("cond")
            || self.function.match_indices("lock").any(lock);
        let of = ["lock", "mutex"].iter().any(|word| self.of.strip_suffix(word).is_some_and(|rest| !before(rest)));
        function || of
    }
}

/// Where the bracket closes that was opened before this text; at its end if it never does.
fn end_of_brackets(text: &str) -> usize {
    let mut open = 1;
    let close = text.char_indices().find(|&(at, c)| {
        open += change(text, at, c);
        open == 0
    });
    close.map_or(text.len(), |(at, _)| at)
}

/// By how much a character opens or closes brackets; those of `->` and of operators are none.
fn change(text: &str, at: usize, c: char) -> i32 {
    match c {
        '<' | '{' if !text[..at].ends_with("operator") => 1,
        '>' | '}' if !text[..at].ends_with(['-', '=']) && !text[..at].ends_with("operator") => -1,
        _ => 0,
    }
}

/// A path without what stands in brackets, in front of it (what the function answers), and from its parameters on.
fn bare(name: &str) -> String {
    let mut open = 0;
    let mut kept = String::new();
    for (at, c) in name.char_indices() {
        let by = change(name, at, c);
        open += by;
        if open == 0 && c == '(' {
            break;
        }
        if open == 0 && by == 0 {
            kept.push(c);
        }
    }
    kept.trim_end().rsplit(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_known_by_the_functions_that_wait() {
        let rust = "std::sys::pal::unix::futex::futex_wait";
        let latch = "void std::__atomic_wait_address<int, std::latch::wait() const::{lambda()#1}>(int const*, \
                     std::latch::wait() const::{lambda()#1})";
        let cases: [(&[Option<&str>], AtLock); 28] = [
            (&[Some("__lll_lock_wait"), Some("pthread_mutex_lock"), Some("main")], AtLock::Yes),
            (&[Some("__lll_lock_wait"), Some("__pthread_mutex_cond_lock"), Some("main")], AtLock::Yes),
            (&[Some("syscall"), Some(rust), Some("std::sys::sync::mutex::futex::Mutex::lock_contended")], AtLock::Yes),
            (
                &[Some("syscall"), Some(rust), Some("<std::sys::sync::rwlock::futex::RwLock>::read_contended")],
                AtLock::Yes,
            ),
            (&[Some("runtime.futex"), Some("runtime.futexsleep"), Some("runtime.lock2")], AtLock::Yes),
            (&[Some("runtime.futex"), Some("sync.(*Mutex).slow")], AtLock::Yes),
            (&[Some("pthread_rwlock_wrlock"), None], AtLock::Yes),
            (&[Some("__wait"), Some("__lock"), Some("malloc")], AtLock::Yes),
            (&[Some("syscall"), Some("bool (anonymous namespace)::SpinLock<int>::enter(unsigned long)")], AtLock::Yes),
            (&[Some("syscall"), Some("<app::Lock<fn() -> app::Queue> as app::Enter>::enter")], AtLock::Yes),
            (&[Some("syscall"), Some("get_lock.constprop.0.isra.0")], AtLock::Yes),
            (&[None, Some("take_lock(int)")], AtLock::Yes),
            (
                &[
                    Some("syscall"),
                    Some(rust),
                    Some("std::sys::sync::condvar::futex::Condvar::wait_optional_timeout"),
                    Some("std::sync::poison::condvar::Condvar::wait"),
                    Some("lock_manager::run"),
                ],
                AtLock::No,
            ),
            (&[Some("syscall"), Some("std::latch::wait"), Some("main")], AtLock::No),
            (&[Some("syscall"), Some(latch), Some("wait_for_jobs(std::latch&, std::mutex&)")], AtLock::No),
            (&[Some("syscall"), Some("jobs::done(std::unique_lock<std::mutex>&)"), Some("main")], AtLock::No),
            (&[Some("syscall"), Some("Jobs<std::shared_ptr<Lockable>, std::mutex>::done()"), None], AtLock::No),
            (&[Some("syscall"), Some("<jobs::Done<std::sync::Mutex<u32>> as jobs::Wait>::wait"), None], AtLock::No),
            (&[Some("syscall"), Some("std::mutex* jobs::done(int)"), Some("lock_all()")], AtLock::No),
            (&[Some("syscall"), Some("Event::wait()"), Some("with_lock(Event&)")], AtLock::No),
            (&[Some("syscall"), Some("LockFreeQueue::pop()"), None], AtLock::No),
            (&[Some("syscall"), Some("wait"), Some("run_all_locked")], AtLock::No),
            (&[Some("syscall"), Some("tokio::block_on"), Some("wait_for_clock")], AtLock::No),
            (&[Some("syscall"), Some("wait_until_unlocked"), None], AtLock::No),
            (&[Some("syscall"), Some("operator<<(Mutex&)"), Some("lock")], AtLock::No),
            (&[None, Some("main")], AtLock::No),
            (&[Some("syscall"), None, None, Some("main")], AtLock::Unknown),
            (&[], AtLock::Unknown),
        ];
        for (functions, answer) in cases {
            assert_eq!(at_lock(functions.iter().copied()), answer, "{functions:?}");
        }
    }
}
