//! The service side of first-class services: what runs inside the sandbox region, in whichever
//! process is current.
//!
//! The crate is built twice. The host (`orbit-services`) depends on it for the layout of the
//! region, so that both sides have one definition. Its build script also compiles it, with
//! `--cfg sandbox_object`, to a shared object that the host loads into the region itself: there its
//! functions are the signal handlers of members, the loop of agents, and the calls that native
//! services import.
//!
//! Code here runs in processes that were not made for it. So it uses no libc, no thread-local
//! storage, no vdso and no `errno`; it allocates nothing; it makes system calls itself, all of them
//! bounded.
//!
//! | file | what it owns |
//! |---|---|
//! | [`abi`] | the region: addresses, structures, which side writes each field |
//! | [`sys`] | system calls |
//! | [`guard`] | the judge of a value that a service asks for |
//! | [`attribute`] | reading and applying attributes by system calls |
//! | [`group`] | weight and most CPU time of a process, by its control group |
//! | [`published`] | attributes that programs publish of themselves |
//! | [`question`] | questions to a slot and their answers |
//! | [`queue`] | posted events of a slot |
//! | [`control`] | the controller of CPU shares (PID), a pure function |
//! | [`run`] | one run of a handler: claim, open, arm, call, close, charge |
//! | [`gate`] | opening and closing a slot, by protection key or by `mprotect` |
//! | [`bound`] | what bounds a run: a timer, or an agent that checks it |
//! | [`entry`] | the ways in: upcall, over budget, fault |
//! | [`direct`] | a program's own call of a service |
//! | [`spin`] | a bounded wait on the CPU before a sleep |
//! | [`calls`] | what services import |
//! | [`files`] | descriptors that a service was given |
//! | [`agent`] | the loop of an agent process |
#![no_std]
#![allow(unexpected_cfgs, reason = "sandbox_object is given by the build script of orbit-services")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod abi;
pub mod agent;
pub mod attribute;
pub mod bound;
pub mod calls;
pub mod control;
pub mod direct;
pub mod entry;
pub mod files;
pub mod gate;
pub mod group;
pub mod guard;
pub mod published;
pub mod question;
pub mod queue;
pub mod run;
pub mod spin;
pub mod sys;

/// A bug in this crate: there is nobody to report it to, so the process that runs it stops at an
/// illegal instruction. In a handler that is a fault like any other, which aborts the handler.
#[cfg(sandbox_object)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: raises SIGILL.
        unsafe { core::arch::asm!("ud2") };
    }
}
