//! For programs that run under `orbit keep`: asking for checkpoints at moments that the program
//! knows to be good.
//!
//! Nothing happens where there is no keeper. May be called from any thread.

use std::ffi::CStr;
use std::sync::OnceLock;

type Call = unsafe extern "C" fn() -> libc::c_int;

/// The function of the keeper's library, if that is loaded.
fn find(name: &CStr) -> Option<Call> {
    // SAFETY: a name that ends with 0; the answer is only compared with null, and called as what
    // `orbit_keep.h` declares it.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Call>(found))
    }
}

/// Asks for a checkpoint soon: this is a good moment. Does not wait; returns whether there is a
/// keeper.
pub fn point() -> bool {
    static CALL: OnceLock<Option<Call>> = OnceLock::new();
    // SAFETY: takes nothing, and may be called at any time.
    CALL.get_or_init(|| find(c"orbit_keep_point")).is_some_and(|call| unsafe { call() } == 1)
}

/// Waits until all that the program did before is in a checkpoint: output made before is never
/// repeated by a recovery. Blocks for at most ten seconds; false if there is no keeper or no
/// checkpoint came.
pub fn output_barrier() -> bool {
    static CALL: OnceLock<Option<Call>> = OnceLock::new();
    // SAFETY: as above.
    CALL.get_or_init(|| find(c"orbit_keep_output_barrier")).is_some_and(|call| unsafe { call() } == 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn without_a_keeper_nothing_happens() {
        assert!(!super::point() && !super::output_barrier());
    }
}
