//! A call as one line in the form that `strace` made common, and as JSON.

use crate::calls::{self, Kind};
use crate::reader::{Blob, Event, Traced, What, never_returns};
use serde_json::{Value, json};
use std::fmt::Write;

/// Bytes of a path or string that are shown.
const MAX_SHOWN_BYTES: usize = 256;
/// Errors that the kernel gives itself to begin a call anew.
const ERESTARTSYS: i64 = -512;

/// Turns time stamps into seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    stamp: u64,
    epoch: f64,
    /// Stamps a second.
    rate: f64,
}

impl Clock {
    /// Measures the rate of the time stamp counter for 20 ms.
    pub fn measure() -> Clock {
        let (began, stamp) = (std::time::Instant::now(), now());
        let epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let rate = (now() - stamp) as f64 / began.elapsed().as_secs_f64();
        Clock { stamp, epoch, rate }
    }

    /// Seconds since 1970 of a stamp.
    pub fn seconds(&self, stamp: u64) -> f64 {
        self.epoch + stamp.wrapping_sub(self.stamp) as i64 as f64 / self.rate
    }

    /// Seconds between two stamps.
    pub fn between(&self, from: u64, to: u64) -> f64 {
        to.saturating_sub(from) as f64 / self.rate
    }
}

/// The time stamp counter.
#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The time stamp counter; guests run on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    0
}

/// The line of an event, without the thread; `None` for one that is not shown.
pub fn line(event: &Event) -> Option<String> {
    match &event.what {
        What::Call(call) => Some(call_line(call)),
        What::Signal(number, code, sender) => {
            let name = signal(*number);
            Some(match code {
                0 | -6 => format!("--- {name} from process {} ---", sender & 0xffff_ffff),
                _ => format!("--- {name} code {code} ---"),
            })
        }
        What::Note(rule, _) => Some(format!("--- rule {} acts ---", rule + 1)),
        What::Start(..) => None,
        What::Gone => Some("+++ ended +++".to_owned()),
    }
}

/// How long a call took, in seconds; `None` for other events, and calls that never returned.
pub fn duration(event: &Event, clock: &Clock) -> Option<f64> {
    match &event.what {
        What::Call(call) => call.result.map(|_| clock.between(event.time, call.end)),
        _ => None,
    }
}

fn call_line(call: &Traced) -> String {
    let name = calls::by_number(call.number).map_or_else(|| format!("call_{}", call.number), |known| known.name.into());
    let result = match call.result {
        None if never_returns(call.number) => "?".to_owned(),
        None => "? <unfinished ...>".to_owned(),
        Some(ERESTARTSYS) => "? ERESTARTSYS (a signal comes first)".to_owned(),
        Some(error @ -4095..=-1) => match calls::name_of("errno", error.unsigned_abs()) {
            Some(known) => format!("-1 {known}"),
            None => format!("-1 error {}", -error),
        },
        Some(value) if shows_address(&name) => format!("{value:#x}"),
        Some(value) => value.to_string(),
    };
    format!("{name}({}) = {result}", arguments(call).join(", "))
}

fn shows_address(name: &str) -> bool {
    matches!(name, "mmap" | "brk" | "mremap" | "shmat")
}

/// The arguments as text.
pub fn arguments(call: &Traced) -> Vec<String> {
    let unknown = [Kind::Unknown; 6];
    let kinds = calls::by_number(call.number).map_or(&unknown[..], |known| &known.arguments);
    let mut shown: Vec<String> = kinds.iter().zip(0..).map(|(kind, nth)| argument(call, *kind, nth)).collect();
    // The mode matters only where a file is made.
    let mode = match calls::by_number(call.number).map(|known| known.name) {
        Some("open") => Some((1, 2)),
        Some("openat") => Some((2, 3)),
        _ => None,
    };
    if let Some((flags, mode)) = mode
        && call.arguments[flags] & 0o20_000_100 == 0
    {
        shown.truncate(mode);
    }
    shown
}

fn argument(call: &Traced, kind: Kind, nth: u16) -> String {
    let value = call.arguments[usize::from(nth)];
    let blobs = || call.blobs.iter().filter(move |blob| blob.argument == nth);
    let blob = || blobs().next();
    let pointer = || if value == 0 { "NULL".to_owned() } else { format!("{value:#x}") };
    match kind {
        Kind::Unknown | Kind::Hex => format!("{value:#x}"),
        Kind::Int | Kind::Fd | Kind::Pid => (value as i32).to_string(),
        Kind::Uint => (value as u32).to_string(),
        Kind::Octal => format!("0{value:o}"),
        Kind::Size => value.to_string(),
        Kind::Offset => (value as i64).to_string(),
        Kind::Address => pointer(),
        Kind::DirFd if value as i32 == libc::AT_FDCWD => "AT_FDCWD".to_owned(),
        Kind::DirFd => (value as i32).to_string(),
        Kind::Signal => signal(value),
        Kind::Text(_) | Kind::In(_) | Kind::Out => blob().map_or_else(pointer, quoted),
        Kind::Vector(true) => pointer(),
        Kind::Vector(false) | Kind::Buffers(_) => {
            let all: Vec<String> = blobs().map(quoted).collect();
            if all.is_empty() { pointer() } else { format!("[{}]", all.join(", ")) }
        }
        Kind::Address4(_) | Kind::OutAddress(_) => blob().map_or_else(pointer, |blob| socket_address(&blob.bytes)),
        Kind::OutPair => {
            blob().map_or_else(pointer, |blob| format!("[{}, {}]", int(&blob.bytes, 0), int(&blob.bytes, 4)))
        }
        Kind::Time => blob().map_or_else(pointer, |blob| {
            format!("{{tv_sec={}, tv_nsec={}}}", long(&blob.bytes, 0), long(&blob.bytes, 8))
        }),
        Kind::Set => blob().map_or_else(pointer, |blob| signal_set(long(&blob.bytes, 0) as u64)),
        Kind::Futex => futex(value),
        Kind::Flags(table) => flags(table, value),
        Kind::Enum(table) => calls::name_of(table, value)
            .map_or_else(|| if value < 10 { value.to_string() } else { format!("{value:#x}") }, str::to_owned),
    }
}

fn int(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, i32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> i64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, i64::from_ne_bytes)
}

fn signal(number: u64) -> String {
    calls::name_of("signal", number)
        .map_or_else(|| if number > 31 { format!("SIGRT_{}", number - 32) } else { number.to_string() }, str::to_owned)
}

fn signal_set(set: u64) -> String {
    let names: Vec<String> = (1..=64).filter(|number| set >> (number - 1) & 1 == 1).map(signal).collect();
    if names.len() > 40 {
        let absent: Vec<String> = (1..=64).filter(|number| set >> (number - 1) & 1 == 0).map(signal).collect();
        return format!("~[{}]", absent.join(" "));
    }
    format!("[{}]", names.join(" "))
}

fn futex(value: u64) -> String {
    let name = calls::name_of("futex", value & 0x7f).map_or_else(|| (value & 0x7f).to_string(), str::to_owned);
    let private = if value & 128 == 0 { "" } else { "_PRIVATE" };
    let clock = if value & 256 == 0 { "" } else { "|FUTEX_CLOCK_REALTIME" };
    format!("{name}{private}{clock}")
}

fn flags(table: &str, value: u64) -> String {
    let value = u64::from(value as u32);
    let mut rest = value;
    let mut shown: Vec<&str> = Vec::new();
    if table == "open" && value & 3 == 0 {
        shown.push("O_RDONLY");
    }
    let mut known: Vec<(u64, &str)> = calls::names(table).to_vec();
    // A value of several bits is named before its parts.
    known.sort_by_key(|(bits, _)| std::cmp::Reverse(bits.count_ones()));
    let mut found: Vec<(u64, &str)> = Vec::new();
    for (bits, name) in known {
        if bits != 0 && rest & bits == bits {
            rest &= !bits;
            found.push((bits, name));
        }
    }
    found.sort_unstable();
    shown.extend(found.iter().map(|(_, name)| *name));
    let mut text = shown.join("|");
    if rest != 0 {
        let _ = write!(text, "{}{rest:#x}", if text.is_empty() { "" } else { "|" });
    }
    if text.is_empty() { "0".to_owned() } else { text }
}

fn socket_address(bytes: &[u8]) -> String {
    let family = bytes.get(..2).map_or(0, |part| u16::from_ne_bytes([part[0], part[1]]));
    let port = bytes.get(2..4).map_or(0, |part| u16::from_be_bytes([part[0], part[1]]));
    match (family, bytes) {
        (1, _) => {
            let path = bytes.get(2..).unwrap_or_default();
            match path.split_first() {
                Some((0, name)) => format!("{{AF_UNIX, @{}}}", escaped(name)),
                _ => format!("{{AF_UNIX, {}}}", escaped(path.split(|&byte| byte == 0).next().unwrap_or_default())),
            }
        }
        (2, [_, _, _, _, a, b, c, d, ..]) => format!("{{AF_INET, {a}.{b}.{c}.{d}:{port}}}"),
        (10, bytes) if bytes.len() >= 24 => {
            let mut address = [0; 16];
            address.copy_from_slice(&bytes[8..24]);
            format!("{{AF_INET6, [{}]:{port}}}", std::net::Ipv6Addr::from(address))
        }
        _ => format!("{{family {family}}}"),
    }
}

fn quoted(blob: &Blob) -> String {
    let shown = &blob.bytes[..blob.bytes.len().min(MAX_SHOWN_BYTES)];
    let more = if blob.is_cut || shown.len() < blob.bytes.len() { "..." } else { "" };
    format!("{}{more}", escaped(shown))
}

/// In quotes, with C's escapes for what is not printable.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for (nth, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' => text.push(byte.into()),
            // A digit that follows must not be taken for part of the escape.
            _ if bytes.get(nth + 1).is_some_and(u8::is_ascii_digit) => _ = write!(text, "\\{byte:03o}"),
            _ => _ = write!(text, "\\{byte:o}"),
        }
    }
    text.push('"');
    text
}

/// An event as one JSON object.
pub fn as_json(event: &Event, clock: &Clock) -> Value {
    let mut object = json!({ "tid": event.tid, "time": clock.seconds(event.time) });
    let more = match &event.what {
        What::Call(call) => {
            let name = calls::by_number(call.number).map(|known| known.name);
            let error = call.result.filter(|result| (-4095..0).contains(result));
            json!({
                "event": "call", "call": name, "number": call.number,
                "arguments": arguments(call), "raw": call.arguments,
                "result": call.result, "error": error.and_then(|error| calls::name_of("errno", error.unsigned_abs())),
                "seconds": duration(event, clock), "site": format!("{:#x}", call.site),
            })
        }
        What::Signal(number, code, sender) => {
            json!({ "event": "signal", "signal": signal(*number), "code": code, "sender": sender & 0xffff_ffff })
        }
        What::Start(pid, parent, kind) => {
            let kind = ["thread", "process", "exec"].get(*kind as usize);
            json!({ "event": "start", "pid": pid, "parent": parent, "kind": kind })
        }
        What::Note(rule, _) => json!({ "event": "rule", "rule": rule + 1 }),
        What::Gone => json!({ "event": "end" }),
    };
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: [u64; 6], blobs: &[(u16, &[u8])], result: Option<i64>) -> String {
        let number = calls::by_name(name).expect("a known call").number.into();
        let blobs =
            blobs.iter().map(|(argument, bytes)| Blob { argument: *argument, is_cut: false, bytes: bytes.to_vec() });
        call_line(&Traced { number, arguments, site: 0, blobs: blobs.collect(), result, end: 0 })
    }

    #[test]
    fn lines_have_the_form_of_strace() {
        let at = libc::AT_FDCWD as u32;
        for (shown, expected) in [
            (
                call("openat", [at.into(), 1, 0o2000000, 0, 0, 0], &[(1, b"/etc/passwd")], Some(3)),
                "openat(AT_FDCWD, \"/etc/passwd\", O_RDONLY|O_CLOEXEC) = 3",
            ),
            (
                call("openat", [at.into(), 1, 0o1101, 0o644, 0, 0], &[(1, b"a\n\x011")], Some(-28)),
                "openat(AT_FDCWD, \"a\\n\\0011\", O_WRONLY|O_CREAT|O_TRUNC, 0644) = -1 ENOSPC",
            ),
            (
                call("mmap", [0, 4096, 3, 0x22, u32::MAX.into(), 0], &[], Some(0x7000)),
                "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0x0) = 0x7000",
            ),
            (
                call("futex", [16, 0x189, 0, 0, 0, 0], &[], Some(-4)),
                "futex(0x10, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, NULL, 0x0) = -1 EINTR",
            ),
            (
                call("connect", [4, 9, 16, 0, 0, 0], &[(1, &[2, 0, 1, 187, 127, 0, 0, 1])], Some(0)),
                "connect(4, {AF_INET, 127.0.0.1:443}, 16) = 0",
            ),
            (call("rt_sigreturn", [0; 6], &[], None), "rt_sigreturn() = ?"),
            (call("pause", [0; 6], &[], None), "pause() = ? <unfinished ...>"),
            (call("kill", [5, 9, 0, 0, 0, 0], &[], Some(0)), "kill(5, SIGKILL) = 0"),
        ] {
            assert_eq!(shown, expected);
        }
    }
}
