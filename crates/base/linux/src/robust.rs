//! A word of shared memory by which other processes know that a thread lives.
//!
//! The kernel marks the word the moment the thread ends, however it ends (`kill -9` too): no
//! polling, no number that another process may have been given since. Needs nothing of the
//! readers of the word.

use crate::{Support, check};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bit of the word that the kernel sets when its thread has ended.
pub const OWNER_DIED: u32 = 0x4000_0000;

#[repr(C)]
struct Node {
    next: *mut Node,
}

#[repr(C)]
struct Head {
    list: Node,
    futex_offset: libc::c_long,
    pending: *mut Node,
}

/// What the kernel reads at the thread's end.
struct List {
    head: Head,
    node: Node,
}

/// The mark of the thread that made it. Dropping it sets the word to 0.
///
/// Replaces the thread's list of robust mutexes: such a thread must use none.
pub struct LifeMark<'a> {
    word: &'a AtomicU32,
    list: *mut List,
}

impl<'a> LifeMark<'a> {
    /// Puts the calling thread's id into `word` and has the kernel mark it when the thread ends.
    /// Must be dropped by the same thread, which the type ensures.
    ///
    /// # Errors
    /// `ENOSYS` where the kernel has no robust futexes.
    pub fn new(word: &'a AtomicU32) -> io::Result<LifeMark<'a>> {
        let list = Box::into_raw(Box::new(List {
            head: Head { list: Node { next: ptr::null_mut() }, futex_offset: 0, pending: ptr::null_mut() },
            node: Node { next: ptr::null_mut() },
        }));
        // SAFETY: a live allocation of this type, which nothing else refers to yet.
        unsafe {
            let node = &raw mut (*list).node;
            (*list).node.next = (&raw mut (*list).head).cast();
            (*list).head.list.next = node;
            (*list).head.futex_offset = (word.as_ptr() as libc::c_long).wrapping_sub(node as libc::c_long);
        }
        // SAFETY: no arguments; the id of the calling thread.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        word.store(tid, Ordering::SeqCst);
        // SAFETY: the kernel keeps the address; the list stays allocated until another one is set,
        // in `drop`, or for ever.
        let set = check(unsafe { libc::syscall(libc::SYS_set_robust_list, list, size_of::<Head>()) });
        let mark = LifeMark { word, list };
        set.map(|_| mark)
    }
}

impl Drop for LifeMark<'_> {
    fn drop(&mut self) {
        self.word.store(0, Ordering::SeqCst);
        // SAFETY: as in `new`. An empty list points to itself: from here on the kernel finds
        // nothing of ours, and it is not freed, since the thread keeps it as its list.
        unsafe { (*self.list).head.list.next = (&raw mut (*self.list).head).cast() };
    }
}

/// Marks a word in a thread that ends, and reads it.
pub fn probe() -> Support {
    let word = AtomicU32::new(0);
    let tried = std::thread::scope(|scope| {
        let made = scope.spawn(|| LifeMark::new(&word).map(std::mem::forget));
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it has panicked")))
    });
    let tried = tried.and_then(|()| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
        while word.load(Ordering::SeqCst) & OWNER_DIED == 0 {
            if std::time::Instant::now() > end {
                return Err(io::Error::from_raw_os_error(libc::ENOSYS));
            }
            std::thread::yield_now();
        }
        Ok(())
    });
    Support::from_result("robust futex", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_marks_the_word_of_a_thread_that_ended() {
        assert_eq!(probe(), Support::Yes);
    }

    #[test]
    fn a_dropped_mark_is_zero() {
        let word = AtomicU32::new(7);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(LifeMark::new(&word).expect("robust futexes")));
        });
        assert_eq!(word.load(Ordering::SeqCst), 0);
    }
}
