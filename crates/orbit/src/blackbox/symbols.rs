//! Addresses of a crash turned into functions, files and lines. Done in main: an orbit's code has
//! the same addresses, and main has a heap that works. Any number is a fit address: what belongs to
//! no code gets no name.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::OnceLock;

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
    /// The same as functions, once somebody has asked: a restart does not wait for that.
    backtrace: OnceLock<Vec<Frame>>,
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

impl Frame {
    /// Whether this is the machinery of dying, or of a standard library, which the task called with
    /// something wrong.
    fn is_messenger(&self) -> bool {
        let by_name = self.function.as_ref().is_none_or(|name| {
            MESSENGERS.iter().any(|start| name.starts_with(start))
                || MESSENGERS_INSIDE.iter().any(|part| name.contains(part))
        });
        by_name
            || self.file.as_ref().is_some_and(|file| file.starts_with("/rustc/"))
            || module_and_offset(self.address)
                .is_some_and(|(module, _)| SYSTEM_LIBRARIES.iter().any(|start| module.starts_with(start)))
    }
}

impl Crash {
    /// A crash of which nothing is known but the signal.
    pub(crate) fn bare(signal: i32) -> Crash {
        Crash::new(signal, 0, 0, Vec::new(), None)
    }

    /// A crash by this signal, with this code, about this address, at these addresses of code.
    pub(crate) fn new(signal: i32, code: i32, address: usize, addresses: Vec<u64>, message: Option<String>) -> Crash {
        Crash { signal, code, address, message, addresses, backtrace: OnceLock::new() }
    }

    /// The call stack, innermost function first; empty if the orbit could not leave one. Finds
    /// names and lines when first asked, which reads debug information from disk and may take some
    /// tenths of a second.
    pub fn backtrace(&self) -> &[Frame] {
        self.backtrace.get_or_init(|| {
            let mut frames = symbolise(&self.addresses);
            // Below the task there is only the orbit's own loop.
            let own = |frame: &Frame| frame.function.as_ref().is_some_and(|name| name.contains("orbit::border::"));
            if let Some(at) = frames.iter().position(own) {
                frames.truncate(at);
            }
            frames
        })
    }

    /// Writes the call stack, each frame on a line of its own that it begins.
    pub(crate) fn write_stack(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, frame) in self.backtrace().iter().enumerate() {
            write!(f, "\n  {number:2}: {frame}")?;
        }
        Ok(())
    }

    /// The frame to blame.
    fn culprit(&self) -> Option<&Frame> {
        let first = self.backtrace().iter().find(|frame| !frame.is_messenger());
        first.or_else(|| self.backtrace().iter().find(|frame| frame.function.is_some()))
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
        if let Some(culprit) = self.culprit() {
            write!(f, " in {}", culprit.function.as_deref().unwrap_or_default())?;
            if let Some(file) = &culprit.file {
                let name = file.rsplit('/').next().unwrap_or(file);
                write_place(f, name, culprit.line)?;
            }
        }
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        self.write_stack(f)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} {}", self.address, self.function.as_deref().unwrap_or("(no code known here)"))?;
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

/// Finds the functions for a call stack: the exact program counter first, then return addresses.
pub(super) fn symbolise(addresses: &[u64]) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(addresses.len());
    for (depth, &address) in addresses.iter().enumerate() {
        // A return address is looked up one byte earlier, inside the call; an exact one is moved so
        // that this fits it.
        let lookup = if depth == 0 { (address as usize).wrapping_add(1) } else { address as usize };
        let before = frames.len();
        backtrace::resolve(lookup as *mut c_void, |symbol| {
            frames.push(Frame {
                address: address as usize,
                function: symbol.name().map(|name| readable(&name)),
                file: symbol.filename().map(|file| file.display().to_string()),
                line: symbol.lineno(),
            });
        });
        if frames.len() == before {
            frames.push(Frame { address: address as usize, function: None, file: None, line: None });
        }
        for frame in &mut frames[before..] {
            if frame.function.is_none() {
                frame.function = module_and_offset(address as usize).map(|(module, at)| format!("{module}+{at:#x}"));
            }
        }
    }
    frames
}

/// The name of the function at this address, which is exact.
pub(crate) fn function_at(address: usize) -> Option<String> {
    symbolise(&[address as u64]).pop()?.function
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
