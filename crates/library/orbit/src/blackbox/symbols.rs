//! Addresses of a crash turned into functions, files and lines. Never done in main, see
//! [`crate::names`]. Any number is a fit address: what belongs to no code gets no name.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::names::{Desk, Names, lookups};
use crate::template::Template;

/// One function on a call stack. A function that the compiler put inside another one has an entry
/// of its own, with the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address of the instruction (first frame) or of the one a call returns to (the others).
    pub address: usize,
    /// Name of the function; where none is known, the file of code and the offset in it:
    /// `libz.so.1+0x4a10`.
    pub function: Option<String>,
    /// Path of the source file, as the compiler was given it.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
}

/// How a task crashed, as its orbit wrote it down.
#[derive(Clone, Debug)]
pub struct Crash {
    /// Number of the signal that ended it.
    pub signal: i32,
    /// Its `si_code`; see sigaction(2).
    pub code: i32,
    /// The address it was about: what was read, written, or jumped to; 0 for signals that are about
    /// no address.
    pub address: usize,
    /// The message of a Rust panic.
    pub message: Option<String>,
    /// The exact program counter, then return addresses.
    addresses: Vec<u64>,
    /// The names of these, where they were asked for.
    names: Option<Arc<Names>>,
    /// The same as functions, once somebody has asked: a restart does not wait for that.
    stack: OnceLock<Stack>,
}

/// A call stack as functions.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    pub frames: Vec<Frame>,
    /// The frame to blame.
    culprit: Option<usize>,
}

/// What is known of a place in code. A function that the compiler put inside another one has an
/// entry of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub name: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Whether this is the machinery of dying, or of a standard library, which the task called with
    /// something wrong.
    pub is_messenger: bool,
}

impl Stack {
    /// The call stack at these addresses, each with what is `known` of the place looked up for it.
    pub fn new(addresses: &[u64], known: impl Fn(u64) -> Option<Vec<Function>>) -> Stack {
        let mut frames = Vec::with_capacity(addresses.len());
        let mut messengers = Vec::with_capacity(addresses.len());
        for (&address, lookup) in addresses.iter().zip(lookups(addresses)) {
            let address = address as usize;
            let functions = known(lookup).unwrap_or_default();
            if functions.is_empty() {
                frames.push(Frame { address, function: None, file: None, line: None });
                messengers.push(true);
            }
            for Function { name, file, line, is_messenger } in functions {
                frames.push(Frame { address, function: name, file, line });
                messengers.push(is_messenger);
            }
        }
        // Below the task there is only the orbit's own loop.
        let own = |frame: &Frame| frame.function.as_ref().is_some_and(|name| name.contains("orbit::border::"));
        if let Some(at) = frames.iter().position(own) {
            frames.truncate(at);
        }
        let culprit = messengers[..frames.len()].iter().position(|is_messenger| !is_messenger);
        let culprit = culprit.or_else(|| frames.iter().position(|frame| frame.function.is_some()));
        Stack { frames, culprit }
    }
}

impl PartialEq for Crash {
    fn eq(&self, other: &Crash) -> bool {
        let what = |crash: &Crash| (crash.signal, crash.code, crash.address);
        what(self) == what(other) && self.message == other.message && self.addresses == other.addresses
    }
}

impl Eq for Crash {}

/// How the names of functions begin that carry out a crash, rather than cause it.
const MESSENGERS: [&str; 10] =
    ["core::", "std::", "alloc::", "__rust", "rust_", "pthread_kill", "__pthread_kill", "raise", "gsignal", "abort"];
/// What names of such functions contain: inner names of the C library, and our own panic hook.
const MESSENGERS_INSIDE: [&str; 4] = ["__GI_", "__assert", "__libc_message", "leave_panic_message"];
/// How files of code begin that are full of messengers.
const SYSTEM_LIBRARIES: [&str; 4] = ["libc.so", "libgcc_s", "libstdc++", "ld-linux"];

/// Whether a function of this name, in this source file and this file of code, is the machinery of
/// dying, or of a standard library, which the task called with something wrong.
fn is_messenger(name: Option<&str>, file: Option<&str>, module: Option<&str>) -> bool {
    name.is_none_or(|name| {
        MESSENGERS.iter().any(|start| name.starts_with(start))
            || MESSENGERS_INSIDE.iter().any(|part| name.contains(part))
    }) || file.is_some_and(|file| file.starts_with("/rustc/"))
        || module.is_some_and(|module| SYSTEM_LIBRARIES.iter().any(|start| module.starts_with(start)))
}

impl Crash {
    /// A crash of which nothing is known but the signal.
    pub(crate) fn bare(signal: i32) -> Crash {
        Crash::new(signal, 0, 0, Vec::new(), None)
    }

    /// A crash by this signal, with this code, about this address, at these addresses of code.
    pub(crate) fn new(signal: i32, code: i32, address: usize, addresses: Vec<u64>, message: Option<String>) -> Crash {
        Crash { signal, code, address, message, addresses, names: None, stack: OnceLock::new() }
    }

    /// Asks for the names of its call stack. Never waits.
    pub(crate) fn ask_names(&mut self, template: &Arc<Template>) {
        self.names = (!self.addresses.is_empty()).then(|| Desk::ask(template, &self.addresses));
    }

    /// The names of its call stack that are on their way.
    pub(crate) fn awaited_names(&self) -> Option<Arc<Names>> {
        self.names.clone().filter(|names| !names.are_settled())
    }

    /// The call stack, innermost function first; empty if the orbit could not leave one.
    ///
    /// Names and lines are found outside this process, from the moment of the crash on; this waits
    /// until they are there, for ten seconds at most on a loaded machine. A frame that was given no
    /// name in that time has the file of code and the offset in it, or none.
    /// [`Crash::without_waiting`] never waits.
    pub fn backtrace(&self) -> &[Frame] {
        &self.stack().frames
    }

    /// The crash with the names that have come so far, and no others later: nothing waits for
    /// them any more.
    #[must_use]
    pub fn without_waiting(self) -> Crash {
        self.wait_for_names(Duration::ZERO);
        self
    }

    /// Waits for this long at most for names; others are not waited for later.
    pub(crate) fn wait_for_names(&self, time: Duration) {
        self.stack.get_or_init(|| {
            if let Some(names) = &self.names {
                names.wait(Instant::now().checked_add(time));
            }
            self.stack_now()
        });
    }

    /// The crash with the names that this process finds itself.
    #[cfg(test)]
    pub(crate) fn named_here(self) -> Crash {
        self.stack.get_or_init(|| Stack::new(&self.addresses, |at| Some(find_functions(at))));
        self
    }

    fn stack(&self) -> &Stack {
        self.stack.get_or_init(|| {
            if let Some(names) = &self.names {
                names.wait(None);
            }
            self.stack_now()
        })
    }

    fn stack_now(&self) -> Stack {
        match &self.names {
            Some(names) => names.stack(&self.addresses),
            None => Stack::new(&self.addresses, |_| None),
        }
    }

    /// Writes the call stack, each frame on a line of its own that it begins.
    pub(crate) fn write_stack(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, frame) in self.backtrace().iter().enumerate() {
            write!(f, "\n  {number:2}: {frame}")?;
        }
        Ok(())
    }

    /// Writes the function to blame, if it is known.
    pub(crate) fn write_place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(culprit) = self.culprit() else { return Ok(()) };
        write!(f, " in {}", culprit.function.as_deref().unwrap_or_default())?;
        let Some(file) = &culprit.file else { return Ok(()) };
        write_place(f, file.rsplit('/').next().unwrap_or(file), culprit.line)
    }

    /// The frame to blame.
    fn culprit(&self) -> Option<&Frame> {
        self.stack().culprit.and_then(|at| self.backtrace().get(at))
    }
}

impl fmt::Display for Crash {
    /// One line with the signal, the address and the function to blame; the call stack below it, a
    /// line a frame.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&signal_name(self.signal))?;
        let about_an_address = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
        // A code of 0 or less: the signal was sent by a process, not raised by an address.
        if about_an_address.contains(&self.signal) && self.code > 0 {
            write!(f, " at {:#x}", self.address)?;
        }
        self.write_place(f)?;
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        self.write_stack(f)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} {}", self.address, self.function.as_deref().unwrap_or("(no name known)"))?;
        match &self.file {
            Some(file) => write_place(f, file, self.line),
            None => Ok(()),
        }
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, file: &str, line: Option<u32>) -> fmt::Result {
    match line {
        Some(line) => write!(f, " ({file}:{line})"),
        None => write!(f, " ({file})"),
    }
}

/// The name as the source has it: of C++ and Rust demangled. A function of C named `w` is none of
/// C++'s abbreviations of types.
fn readable(name: &backtrace::SymbolName<'_>) -> String {
    let bytes = name.as_bytes();
    match bytes.starts_with(b"_Z") || bytes.starts_with(b"_R") {
        true => format!("{name:#}"),
        false => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Finds the functions at a place, which is a return address or one more than an exact one. Reads
/// debug information: never in main.
pub(crate) fn find_functions(lookup: u64) -> Vec<Function> {
    let module = module_and_offset(lookup.wrapping_sub(1) as usize);
    let in_module = || module.as_ref().map(|(module, at)| format!("{module}+{at:#x}"));
    let system = |name: Option<&str>, file: Option<&str>| {
        is_messenger(name, file, module.as_ref().map(|(module, _)| module.as_str()))
    };
    let mut functions = Vec::new();
    // Looks one byte earlier, inside the call.
    backtrace::resolve(lookup as *mut c_void, |symbol| {
        let name = symbol.name().map(|name| readable(&name)).or_else(in_module);
        let file = symbol.filename().map(|file| file.display().to_string());
        let is_messenger = system(name.as_deref(), file.as_deref());
        functions.push(Function { name, file, line: symbol.lineno(), is_messenger });
    });
    if functions.is_empty()
        && let Some(name) = in_module()
    {
        let is_messenger = system(Some(&name), None);
        functions.push(Function { name: Some(name), file: None, line: None, is_messenger });
    }
    functions
}

/// The file of code that an address belongs to, and the offset in it.
fn module_and_offset(address: usize) -> Option<(String, usize)> {
    // SAFETY: zeros are a valid `Dl_info`: null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr compares the address with those of loaded objects; it does not follow it.
    if unsafe { libc::dladdr(address as *const c_void, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so this is the name of a loaded object, ended by a zero.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default();
    Some((name.to_owned(), address.wrapping_sub(info.dli_fbase as usize)))
}

/// The name of a signal, such as `SIGSEGV`; `signal 42` for those without one.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrace::SymbolName;

    #[test]
    fn only_names_of_cpp_and_rust_are_demangled() {
        let read = |name: &'static [u8]| readable(&SymbolName::new(name));
        assert_eq!(read(b"w"), "w");
        assert_eq!(read(b"main"), "main");
        assert_eq!(read(b"_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(read(b"_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
    }
}
