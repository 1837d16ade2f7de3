//! What a module's calls do and where its memory has what, whichever engine runs it.

use orbit_services::grant::Granted;
use orbit_services::{Account, Answer, Control, Error, Event, Kind, Questions, Result, Verdict, WORDS, sys};
use std::sync::Arc;
use std::time::Duration;

use crate::WasmSpec;

/// Bytes of a page of a module's memory. The host adds one for context, event and arguments.
pub const PAGE: usize = 65_536;
/// Where the event is in the page that the host adds; the context is at its start.
pub const EVENT_AT: u32 = 512;
/// Where the arguments are in that page.
pub const ARGUMENTS_AT: u32 = 1024;
/// Bytes of `struct orbit_control`.
pub const CONTROL: usize = 56;
/// The least time between two ticks: below it the agent, which is real-time where it may be, would
/// do nothing but count ticks that the budget does not cover.
const MIN_PERIOD: Duration = Duration::from_micros(100);
/// Handles of a service at most, as in `orbit_service.h`.
const HANDLES: usize = 32;
/// Bytes of arguments at most.
const ARGUMENTS: usize = 1024;
/// Bytes of memory at most: what a module of 32-bit addresses can reach, less the host's page.
const MEMORY: usize = (1 << 32) - PAGE;
/// `-EBADF`, `-EACCES`, `-ERANGE`, `-ENOENT`, `-EIO`.
const NO_HANDLE: i64 = -9;
const NO_RIGHT: i64 = -13;
const OUT_OF_RANGE: i64 = -34;
const NO_QUESTION: i64 = -2;
const FAILED: i64 = -5;

/// Judges what is asked for before an engine sees the module.
///
/// # Errors
/// `Invalid` for too many handles or arguments, a short period, no memory or more than a module can
/// reach; `BadObject` for what is no module.
pub fn check(spec: &WasmSpec, module: &[u8], handles: usize) -> Result<()> {
    let name = &spec.name;
    let invalid = |text: String| Err(Error::new(Kind::Invalid, format!("service {name:?}: {text}")));
    if handles > HANDLES || spec.arguments.len() > ARGUMENTS {
        let bytes = spec.arguments.len();
        return invalid(format!(
            "{handles} handles and {bytes} bytes of arguments, of at most {HANDLES} and {ARGUMENTS}"
        ));
    }
    if let Some(period) = spec.period.filter(|period| *period < MIN_PERIOD) {
        return invalid(format!("a period of {period:?}: the least is {MIN_PERIOD:?}"));
    }
    if !(1..=MEMORY).contains(&spec.memory) {
        return invalid(format!("{} bytes of memory: give 1 to {MEMORY}, for example 256K", spec.memory));
    }
    if !module.starts_with(b"\0asm") {
        let text = format!(
            "service {name:?}: no wasm module: its first bytes are not \\0asm; an ELF object needs --class native"
        );
        return Err(Error::new(Kind::BadObject, text));
    }
    Ok(())
}

/// `struct orbit_context` of a module whose added page begins at `page`.
pub fn context(page: u32, spec: &WasmSpec, handles: usize) -> Vec<u8> {
    let mut context = Vec::new();
    context.extend_from_slice(&u64::from(page + ARGUMENTS_AT).to_le_bytes());
    context.extend_from_slice(&(spec.arguments.len() as u32).to_le_bytes());
    context.extend_from_slice(&(handles as u32).to_le_bytes());
    for nth in 1..=handles as u64 {
        context.extend_from_slice(&nth.to_le_bytes());
    }
    context
}

/// `struct orbit_event`.
pub fn event(event: &Event) -> [u8; 32] {
    let mut bytes = [0u8; 32];
    bytes[..4].copy_from_slice(&event.kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&event.lost.to_le_bytes());
    bytes[8..16].copy_from_slice(&event.due_ns.to_le_bytes());
    bytes[16..24].copy_from_slice(&event.now_ns.to_le_bytes());
    bytes[24..].copy_from_slice(&event.value.to_le_bytes());
    bytes
}

/// The host's side of a module's calls: its handles, and what they used.
#[derive(Debug)]
pub struct Calls {
    /// Its handles; one is its place here, counted from 1.
    pub grants: Vec<Granted>,
    /// What it used.
    pub account: Account,
    /// The questions that wait for it.
    pub questions: Arc<Questions>,
}

impl Calls {
    /// With these handles.
    pub fn new(grants: Vec<Granted>) -> Calls {
        Calls { grants, account: Account::default(), questions: Arc::default() }
    }

    fn grant(&mut self, handle: u64) -> Option<&Granted> {
        let at = usize::try_from(handle).ok()?.checked_sub(1)?;
        if at >= self.grants.len() {
            self.account.refused += 1;
        }
        self.grants.get(at)
    }

    /// `orbit_get`: the value, or the number that the call answers.
    ///
    /// # Errors
    /// The negative number that the module gets.
    pub fn get(&mut self, handle: u64) -> std::result::Result<i64, i64> {
        let grant = self.grant(handle).ok_or(NO_HANDLE)?;
        if !grant.may_get() {
            return Err(NO_RIGHT);
        }
        grant.read().map_err(|error| number(&error))
    }

    /// `orbit_question`: the bytes of `struct orbit_question`, or the number that the call answers.
    ///
    /// # Errors
    /// The negative number that the module gets.
    pub fn question(&self, number: u64) -> std::result::Result<[u8; WORDS * 8], i64> {
        let words = self.questions.read(number).ok_or(NO_QUESTION)?;
        let mut bytes = [0; WORDS * 8];
        bytes.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        Ok(bytes)
    }

    /// `orbit_answer`: what it answers.
    pub fn answer(&self, number: u64, answer: Answer) -> i64 {
        let Some(bell) = self.questions.answer(number, answer) else { return NO_QUESTION };
        sys::wake(bell);
        0
    }

    /// `orbit_set`: what it answers.
    pub fn set(&mut self, handle: u64, value: i64) -> i64 {
        let Some(grant) = self.grant(handle) else { return NO_HANDLE };
        let (verdict, result) = grant.set(value);
        let account = &mut self.account;
        match verdict {
            Verdict::NoRight => return NO_RIGHT,
            Verdict::OutOfRange => {
                account.refused += 1;
                return OUT_OF_RANGE;
            }
            Verdict::Clamp(_) => account.clamped += 1,
            Verdict::Pass(_) => {}
        }
        match result {
            Ok(()) => 0,
            Err(error) => {
                account.failed += 1;
                number(&error)
            }
        }
    }
}

/// `-errno` of an error.
fn number(error: &Error) -> i64 {
    match error.kind() {
        Kind::NotFound => -3,
        Kind::Denied => -1,
        Kind::System(errno) => -i64::from(errno),
        _ => FAILED,
    }
}

/// `orbit_control_step` on the bytes of a `struct orbit_control`: 1 if the process is owed time.
pub fn step(bytes: &mut [u8; CONTROL], now: u64, used: u64) -> i32 {
    let mut words = [0u64; CONTROL / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    let [target_ns, period_ns, began_ns, used_ns, budget_ns, integral, error] = words;
    let (integral_ns, error_ns) = (integral as i64, error as i64);
    let mut control = Control { target_ns, period_ns, began_ns, used_ns, budget_ns, integral_ns, error_ns };
    let is_owed = control.step(now, used);
    let Control { target_ns, period_ns, began_ns, used_ns, budget_ns, integral_ns, error_ns } = control;
    let words = [target_ns, period_ns, began_ns, used_ns, budget_ns, integral_ns as u64, error_ns as u64];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    i32::from(is_owed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(memory: usize) -> WasmSpec {
        let budget = "1ms/10ms".parse().expect("a budget");
        WasmSpec { name: "s".into(), owner: 1, budget, memory, period: None, arguments: vec![] }
    }

    #[test]
    fn memory_is_bounded_on_both_sides() {
        for memory in [0, MEMORY + 1, usize::MAX] {
            let error = check(&spec(memory), b"\0asm", 0).expect_err("out of bounds");
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(&memory.to_string()), "{error}");
        }
        assert!(check(&spec(1), b"\0asm", 0).is_ok() && check(&spec(MEMORY), b"\0asm", 0).is_ok());
    }

    #[test]
    fn a_share_is_stepped_in_the_bytes_of_the_module() {
        let mut bytes = [0u8; CONTROL];
        bytes[..8].copy_from_slice(&10_000_000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&100_000_000u64.to_le_bytes());
        assert_eq!(step(&mut bytes, 5, 3_000_000), 1, "it is owed time");
        assert_eq!(step(&mut bytes, 50_000_000, 14_000_000), 0, "it has had its share");
    }
}
