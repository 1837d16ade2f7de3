//! A parent reads which pages its child wrote, from the child's pagemap, tracking having been set
//! up by the child.

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::process::raw_fork;
use orbit_linux::uffd::{self, Uffd};
use orbit_linux::{pidfd, socket};
use std::os::fd::AsFd;

#[test]
fn a_childs_writes_are_seen() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let page = page_size();
    let m = Mapping::anonymous(4 * page, true).expect("mmap");
    let (ours, theirs) = socket::pair().expect("socket pair");
    // SAFETY: the child makes system calls only, and ends by _exit.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        let ok = (|| {
            let mut buf = [0; 1];
            let uffd = Uffd::open_wp_async().ok()?;
            uffd.register_wp_unchecked(m.addr(), m.len()).ok()?;
            uffd.write_protect(m.addr(), m.len(), true).ok()?;
            // SAFETY: the second page of the mapping, which the child has a copy of.
            unsafe { m.as_ptr().add(page).write_volatile(1) };
            socket::send(theirs.as_fd(), &[1], &[]).ok()?;
            socket::receive(theirs.as_fd(), &mut buf, &mut Vec::new(), false).ok()
        })();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(ok.is_none())) };
    };
    drop(theirs);
    let pidfd = child.pidfd.expect("pidfd");
    let mut buf = [0; 1];
    assert_eq!(
        socket::receive(ours.as_fd(), &mut buf, &mut Vec::new(), false).expect("child speaks"),
        1,
        "child failed"
    );
    let mut out = Vec::new();
    let scanned = Pagemap::of(child.pid).and_then(|p| p.scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut out));
    socket::send(ours.as_fd(), &[1], &[]).expect("let the child go");
    let end = pidfd::wait(pidfd.as_fd(), false).expect("wait").expect("ended");
    assert_eq!(end.exit_status(), Some(0));
    assert_eq!(scanned.expect("scan"), 1);
    assert_eq!(out, [(m.addr() + page, m.addr() + 2 * page)]);
}
