//! The rival: ptrace and nothing else. Threads are stopped as they are found; calls are made by a
//! `syscall` instruction that is put where the first thread stands. It knows no interrupted calls,
//! signals, new threads or restartable sequences, and a tracer that dies leaves a ruined program:
//! it is the least that entering can cost.

use super::{REGION, Work, failed};
use graft::Process;
use orbit_console::out::Failure;
use orbit_linux::ptrace::{self, state};
use std::io;

pub fn enter(process: &Process, work: Work) -> Result<(), Failure> {
    let pid = process.pid();
    // The kernel ties a tracer to a thread, as it does for graft: what it holds is released when
    // that ends.
    let done = std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new().spawn_scoped(scope, || enter_traced(pid, work))?;
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    done.map_err(|error| failed(format!("bare ptrace: {error}")))
}

fn enter_traced(pid: i32, work: Work) -> io::Result<()> {
    let tids: Vec<i32> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for tid in &tids {
        ptrace::seize(*tid, 0)?;
        ptrace::interrupt(*tid)?;
    }
    for tid in &tids {
        state::wait_status(*tid)?;
    }
    if work == Work::Calls {
        call_and_map(pid)?;
    }
    for tid in &tids {
        ptrace::detach(*tid, 0)?;
    }
    Ok(())
}

/// Makes the calls in the first thread, which runs in its own code.
fn call_and_map(pid: i32) -> io::Result<()> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let own = ptrace::registers(pid)?;
    let mut code = [0u8; 8];
    if orbit_linux::remote::read(pid, own.rip, &mut code)? != code.len() {
        return Err(io::Error::other("its code cannot be read"));
    }
    let mut changed = code;
    changed[..2].copy_from_slice(&SYSCALL);
    state::poke(pid, own.rip, u64::from_ne_bytes(changed))?;
    let make = |number: libc::c_long, [rdi, rsi, rdx, r10, r8, r9]: [u64; 6]| {
        let rax = number as u64;
        let registers = libc::user_regs_struct { rax, rdi, rsi, rdx, r10, r8, r9, orig_rax: u64::MAX, ..own };
        ptrace::set_registers(pid, &registers)?;
        ptrace::step(pid)?;
        state::wait_status(pid)?;
        ptrace::registers(pid).map(|registers| registers.rax)
    };
    let answer = make(libc::SYS_getpid, [0; 6])?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let page = make(libc::SYS_mmap, [0, REGION, protection as u64, flags as u64, u64::MAX, 0])?;
    let unmapped = make(libc::SYS_munmap, [page, REGION, 0, 0, 0, 0])?;
    state::poke(pid, own.rip, u64::from_ne_bytes(code))?;
    ptrace::set_registers(pid, &own)?;
    match answer == pid as u64 && unmapped == 0 {
        true => Ok(()),
        false => Err(io::Error::other(format!("calls answered {answer} and {unmapped}"))),
    }
}
