//! Reading another process' memory.
//!
//! Owns: `process_vm_readv`. Promises: reads only; never more than the caller's buffer; an address
//! that is not mapped is an answer (`None`, or fewer bytes), not a failure. The other process is
//! not stopped, so what is read may be torn.

const PAGE: u64 = 4096;
/// Parts handed to one system call; the kernel takes up to 1024.
const PARTS: usize = 512;

/// The memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: i32,
}

impl Memory {
    /// The memory of the process with this id; nothing is opened, so nothing can fail.
    pub fn of(pid: i32) -> Memory {
        Memory { pid }
    }

    /// The process' id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Fills `buf` from `addr` on as far as memory is mapped; the number of bytes read.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> usize {
        let mut done = 0usize;
        while done < buf.len() {
            let Some(from) = addr.checked_add(done as u64) else {
                break;
            };
            // One part a page: the kernel then stops exactly at the first page that is missing.
            let mut parts: Vec<libc::iovec> = Vec::new();
            let mut at = from;
            let mut left = buf.len() - done;
            while left > 0 && parts.len() < PARTS {
                let n = left.min((PAGE - at % PAGE) as usize);
                parts.push(libc::iovec { iov_base: at as *mut libc::c_void, iov_len: n });
                left -= n;
                match at.checked_add(n as u64) {
                    Some(next) => at = next,
                    None => break,
                }
            }
            let want: usize = parts.iter().map(|p| p.iov_len).sum();
            let got = read_parts(self.pid, &mut buf[done..done + want], &parts);
            done += got;
            if got < want {
                break;
            }
        }
        done
    }

    /// `N` bytes at `addr`, or nothing if one of them is not mapped.
    pub fn bytes<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let mut b = [0u8; N];
        (self.read(addr, &mut b) == N).then_some(b)
    }

    /// A 32-bit word.
    pub fn u32(&self, addr: u64) -> Option<u32> {
        self.bytes(addr).map(u32::from_le_bytes)
    }

    /// A 64-bit word.
    pub fn u64(&self, addr: u64) -> Option<u64> {
        self.bytes(addr).map(u64::from_le_bytes)
    }

    /// Up to `len` bytes at `addr`: what is mapped of them.
    pub fn vec(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut v = vec![0u8; len];
        let got = self.read(addr, &mut v);
        v.truncate(got);
        v
    }

    /// Reads `N` bytes at each of many addresses with few system calls; `None` where not all `N`
    /// are mapped.
    pub fn many<const N: usize>(&self, addrs: &[u64]) -> Vec<Option<[u8; N]>> {
        let mut out = vec![None; addrs.len()];
        let mut next = 0;
        while next < addrs.len() {
            let batch = &addrs[next..(next + PARTS).min(addrs.len())];
            let parts: Vec<libc::iovec> =
                batch.iter().map(|&a| libc::iovec { iov_base: a as *mut libc::c_void, iov_len: N }).collect();
            let mut buf = vec![0u8; N * batch.len()];
            let got = read_parts(self.pid, &mut buf, &parts) / N;
            for (i, b) in buf.chunks_exact(N).take(got).enumerate() {
                out[next + i] = b.try_into().ok();
            }
            // The part after the last whole one is the one that failed: leave it out and continue
            // behind it.
            next += if got < batch.len() { got + 1 } else { got };
        }
        out
    }
}

/// Bytes read from the parts, in order, into `buf`.
fn read_parts(pid: i32, buf: &mut [u8], parts: &[libc::iovec]) -> usize {
    match try_parts(pid, buf, parts) {
        Err(libc::ESRCH) => match crate::procfs::living(pid) {
            tid if tid != pid => try_parts(tid, buf, parts).unwrap_or(0),
            _ => 0,
        },
        read => read.unwrap_or(0),
    }
}

/// The same by the id of one thread; the kernel's error number if it read nothing.
fn try_parts(tid: i32, buf: &mut [u8], parts: &[libc::iovec]) -> Result<usize, i32> {
    orbit_linux::remote::gather(tid, parts, buf).map_err(|e| e.raw_os_error().unwrap_or(0))
}
