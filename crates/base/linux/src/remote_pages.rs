//! Many pages of another process, copied with few calls.

use crate::{check, invalid};
use std::io;

/// Bytes of a page, as [`read`] and [`write()`] copy them.
pub const PAGE: usize = 4096;
/// Pages in one call: what the kernel takes at most.
const AT_ONCE: usize = 1024;

/// Copies the pages at `addresses` into `pages`, in order; returns how many were copied before the
/// first that cannot be read.
///
/// # Errors
/// `InvalidInput` if there are fewer pages than addresses; `EPERM`, `ESRCH`.
pub fn read<'a>(pid: i32, addresses: &[u64], pages: impl IntoIterator<Item = &'a mut [u8; PAGE]>) -> io::Result<usize> {
    let local = pages.into_iter().map(|page| part(page.as_mut_ptr()));
    copy(addresses, local, |local, remote| {
        // SAFETY: the local parts are live pages that nothing else refers to; the remote ones are
        // numbers to the kernel.
        unsafe {
            libc::process_vm_readv(
                pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        }
    })
}

/// Copies `pages` to `addresses`, in order; returns how many were written before the first that the
/// program itself may not write.
///
/// # Errors
/// As [`read`].
pub fn write<'a>(pid: i32, addresses: &[u64], pages: impl IntoIterator<Item = &'a [u8; PAGE]>) -> io::Result<usize> {
    let local = pages.into_iter().map(|page| part(page.as_ptr().cast_mut()));
    copy(addresses, local, |local, remote| {
        // SAFETY: as in `read`; the local parts are only read.
        unsafe {
            libc::process_vm_writev(
                pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        }
    })
}

fn part(at: *mut u8) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: PAGE }
}

fn copy(
    addresses: &[u64],
    mut local: impl Iterator<Item = libc::iovec>,
    call: impl Fn(&[libc::iovec], &[libc::iovec]) -> libc::ssize_t,
) -> io::Result<usize> {
    let mut done = 0;
    for some in addresses.chunks(AT_ONCE) {
        let here: Vec<libc::iovec> = local.by_ref().take(some.len()).collect();
        if here.len() < some.len() {
            return Err(invalid(format!("{} pages for {} addresses", done + here.len(), addresses.len())));
        }
        let there: Vec<libc::iovec> = some.iter().map(|address| part(*address as *mut u8)).collect();
        match check(call(&here, &there) as libc::c_long) {
            Ok(bytes) => done += bytes as usize / PAGE,
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => return Ok(done),
            Err(e) => return Err(e),
        }
        if !done.is_multiple_of(AT_ONCE) {
            break;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_there_and_back_up_to_a_gap() {
        let memory = crate::map::Mapping::anonymous(3 * PAGE, true).expect("three pages");
        let me = std::process::id() as i32;
        let at = |i: usize| memory.addr() as u64 + (i * PAGE) as u64;
        let (seven, eight) = ([7u8; PAGE], [8u8; PAGE]);
        assert_eq!(write(me, &[at(2), at(0)], [&seven, &eight]).expect("written"), 2);
        let mut pages = [[0u8; PAGE]; 3];
        assert_eq!(read(me, &[at(0), at(1), at(2)], &mut pages).expect("read"), 3);
        assert_eq!((pages[0][9], pages[1][9], pages[2][9]), (8, 0, 7));
        assert_eq!(read(me, &[at(2), 4096, at(0)], &mut pages).expect("up to the gap"), 1);
        assert!(read(me, &[at(0)], []).is_err());
    }
}
