//! The executive as a guest sees it that knows of it: the Rust face of `include/orbit_hijack.h`.
//!
//! Natively there is no gate, and [`Gate::find`] says so. x86-64 only; elsewhere there never is
//! one.

use orbit_linux::process;

/// The executive's entry for function calls.
#[derive(Clone, Copy, Debug)]
pub struct Gate(#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there is no gate"))] usize);

const PRCTL_GATE: u64 = 0x4f72_6274;
const CALL: u64 = 0x10001;
const RECEIVE: u64 = 0x10002;
const REPLY: u64 = 0x10003;
const CONTEXT_CREATE: u64 = 0x10004;
const CONTEXT_RUN: u64 = 0x10005;
const CONTEXT_YIELD: u64 = 0x10006;
const CONTEXT_CYCLES: u64 = 0x10008;

/// Words of a request between guests.
pub type Words = [u64; 6];

/// What a context begins with; `struct orbit_context_request`.
#[repr(C)]
struct Request {
    function: extern "C" fn(usize),
    argument: usize,
    stack_end: *mut u8,
    share: u64,
}

impl Gate {
    /// The gate, if this process runs under an executive.
    pub fn find() -> Option<Gate> {
        // Natively an unknown option, which fails; the executive answers it.
        let address = process::control(PRCTL_GATE).ok()?;
        usize::try_from(address).ok().filter(|address| *address > 0 && cfg!(target_arch = "x86_64")).map(Gate)
    }

    /// Calls the policy object's `rpc` (numbers below 0x10000) or the executive; `-ENOSYS` without
    /// a policy.
    ///
    /// # Safety
    /// What the number takes: addresses in `a`, `b` and `c` must be valid for what the policy does
    /// with them.
    pub unsafe fn call(self, number: u64, a: u64, b: u64, c: u64) -> i64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the executive gave this address for a function of this form, and stays as long as
        // the process.
        return unsafe {
            std::mem::transmute::<usize, extern "C" fn(u64, u64, u64, u64) -> i64>(self.0)(number, a, b, c)
        };
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (number, a, b, c);
            i64::from(-libc::ENOSYS)
        }
    }

    /// Calls into the executive and back, and nothing else.
    pub fn nothing(self) {
        // SAFETY: the number takes nothing.
        unsafe { self.call(0x10000, 0, 0, 0) };
    }

    /// Calls the guest that receives on a channel (0 to 63), and waits for its reply.
    ///
    /// # Errors
    /// `EINTR`: a signal came before the request was taken. `EPIPE`: the receiver died. `EINVAL`:
    /// no such channel.
    pub fn call_guest(self, channel: u32, words: &Words) -> std::io::Result<i64> {
        let mut result = 0i64;
        let to = &raw mut result as u64;
        // SAFETY: both addresses are of values that live until the call returns.
        check(unsafe { self.call(CALL, channel.into(), words.as_ptr() as u64, to) })?;
        Ok(result)
    }

    /// Waits for a request on a channel.
    ///
    /// # Errors
    /// `EINTR`; `EBUSY`: another thread receives there. `EINVAL`: no such channel.
    pub fn receive(self, channel: u32) -> std::io::Result<Words> {
        let mut words = [0; 6];
        // SAFETY: the address is of a value that lives until the call returns.
        check(unsafe { self.call(RECEIVE, channel.into(), words.as_mut_ptr() as u64, 0) })?;
        Ok(words)
    }

    /// Answers the request that this thread received last on the channel.
    ///
    /// # Errors
    /// `EINVAL`: there is none.
    pub fn reply(self, channel: u32, result: i64) -> std::io::Result<()> {
        // SAFETY: no address is named.
        check(unsafe { self.call(REPLY, channel.into(), result as u64, 0) }).map(|_| ())
    }

    /// Makes a context of this thread, which runs `function(argument)` by its share (1 to 1000).
    /// Returns its id, from 1.
    ///
    /// # Errors
    /// `EAGAIN`: 63 contexts are the limit. `EINVAL`: the share.
    ///
    /// # Safety
    /// `stack` must live until the context has returned, which [`Gate::run_contexts`] waits for,
    /// and be large enough.
    pub unsafe fn create_context(
        self,
        function: extern "C" fn(usize),
        argument: usize,
        stack: &mut [u8],
        share: u64,
    ) -> std::io::Result<u64> {
        let request = Request { function, argument, stack_end: stack.as_mut_ptr_range().end, share };
        // SAFETY: the request lives until the call returns; the stack is the caller's promise.
        check(unsafe { self.call(CONTEXT_CREATE, &raw const request as u64, 0, 0) })
    }

    /// Runs this thread's contexts until all have returned, changing between them after `slice_ns`
    /// of CPU time (0: only where they yield).
    ///
    /// # Errors
    /// `EINVAL` in a context.
    pub fn run_contexts(self, slice_ns: u64) -> std::io::Result<()> {
        // SAFETY: the contexts' stacks are the promise of the code that made them.
        check(unsafe { self.call(CONTEXT_RUN, slice_ns, 0, 0) }).map(|_| ())
    }

    /// Lets another context run.
    pub fn yield_context(self) {
        // SAFETY: no address is named.
        unsafe { self.call(CONTEXT_YIELD, 0, 0, 0) };
    }

    /// Cycles that a context of this thread has run; 0 for one that was never made.
    pub fn context_cycles(self, id: u64) -> u64 {
        // SAFETY: no address is named.
        unsafe { self.call(CONTEXT_CYCLES, id, 0, 0) }.try_into().unwrap_or(0)
    }
}

fn check(result: i64) -> std::io::Result<u64> {
    u64::try_from(result).map_err(|_| std::io::Error::from_raw_os_error(-result as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn natively_there_is_no_gate() {
        assert!(Gate::find().is_none());
    }
}
