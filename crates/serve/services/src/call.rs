//! A member's own calls of services: see [`orbit_sandbox_lib::direct`], which the library inside
//! the region has. The C face of the same is `orbit_call` of `orbit_program.h`.

use crate::error::{Error, Kind, Result};
use orbit_linux::maps;
use orbit_sandbox_lib::{abi, direct};

/// A native service that this process, a member, can call. Any thread may, as long as the process
/// is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callee {
    slot: u64,
    generation: u64,
}

/// Slot and generation of a service's number: `n2.1`.
fn parse(id: &str) -> Option<(u64, u64)> {
    let (slot, generation) = id.strip_prefix('n')?.split_once('.')?;
    Some((slot.parse().ok()?, generation.parse().ok()?))
}

impl Callee {
    /// The service of this number, as `orbit service ls` shows it.
    ///
    /// # Errors
    /// `Invalid` for what is no number of a native service, and in a process that is no member.
    pub fn find(id: &str) -> Result<Callee> {
        let (slot, generation) = parse(id).ok_or_else(|| {
            Error::new(
                Kind::Invalid,
                format!("{id:?} is no native service: its number is like n2.1, see orbit service ls"),
            )
        })?;
        let mappings = maps::of(std::process::id() as i32).map_err(|error| Error::system("/proc/self/maps", &error))?;
        if !crate::region::is_in(&mappings) {
            let text = "this process is no member: join it, or start it by orbit service exec";
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(Callee { slot, generation })
    }

    /// Calls the handler with this value and waits for its end. Answers what it does
    /// (`orbit_return`), 0 if it does not.
    ///
    /// # Errors
    /// `NotFound` when the service is gone or revoked; `Full` when its queue or its reservation is
    /// used up; `Unsupported` for a service whose events are an agent's; `System` with `ECANCELED`
    /// when the run was aborted, with `EINPROGRESS` when it waits in a thread.
    pub fn call(&self, value: u64) -> Result<i64> {
        let mut answer = 0i64;
        // SAFETY: `find` has seen the region in this process, whose host wrote the address of this
        // function, of this signature; the answer is a local.
        let result = unsafe {
            let enter: unsafe extern "C" fn(u64, u64, u64, *mut i64) -> i64 =
                std::mem::transmute(abi::directory().library.call as usize);
            enter(self.slot, self.generation, value, &raw mut answer)
        };
        let id = format!("service n{}.{}", self.slot, self.generation);
        match result {
            0 => Ok(answer),
            direct::GONE => Err(Error::new(Kind::NotFound, format!("{id} is not loaded any more, or revoked"))),
            direct::BUSY => Err(Error::new(Kind::Full, format!("{id} has as many events waiting as fit: call later"))),
            direct::UNPAID => Err(Error::new(Kind::Full, format!("{id} has used up the CPU time of its window"))),
            direct::NOT_HERE => {
                let text = format!(
                    "{id} cannot run in this process: its events are an agent's, or the program has its own handler \
                     of SIGSEGV: post them"
                );
                Err(Error::new(Kind::Unsupported, text))
            }
            other => {
                let why = if other == direct::PROMOTED { "waits, and begins again in a thread" } else { "was aborted" };
                Err(Error::new(Kind::System(-other as i32), format!("{id}: its run {why}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Callee, parse};

    #[test]
    fn numbers_are_read_and_strangers_are_refused() {
        assert_eq!(parse("n2.17"), Some((2, 17)));
        for bad in ["", "n2", "w1", "n.1", "n2.x", "n-1.1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let error = Callee::find("n2.1").expect_err("this process is no member");
        assert!(error.to_string().contains("no member"), "{error}");
    }
}
