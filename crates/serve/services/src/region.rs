//! The sandbox region, from the host's side: three memory files, and the host's own mappings of
//! them at addresses of its own. What members may do with each file is fixed here: the public one
//! is sealed, so that nobody but the host writes it.

use crate::elf::{self, Image};
use crate::error::{Error, Kind, Result};
use crate::objects;
use orbit_linux::map::Mapping;
use orbit_linux::maps::Entry;
use orbit_linux::memfd;
use orbit_linux::stat::Stat;
use orbit_sandbox_lib::abi::{self, Control, Directory, Library, PUBLIC, Service};
use orbit_sandbox_lib::sys;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Release, SeqCst};

/// The region of one host.
#[derive(Debug)]
pub struct Region {
    files: [OwnedFd; 3],
    public: Mapping,
    protected: Mapping,
    control: Mapping,
    library: HashMap<String, u64>,
}

impl Region {
    /// Makes a region with the library in it and no services. `grace_ns`: see
    /// [`Directory::grace_ns`].
    ///
    /// # Errors
    /// `System` when memory files or mappings cannot be made.
    pub fn new(upcall_signal: i32, budget_signal: i32, grace_ns: u64) -> Result<Region> {
        let make = |name: &str, length: usize| {
            let file = memfd::create(name, length, true)?;
            let mapping = Mapping::shared(file.as_fd(), length, true, true)?;
            Ok((file, mapping))
        };
        let failed = |error: std::io::Error| Error::system("making the sandbox region", &error);
        let (public_file, public) = make("orbit-sandbox-public", abi::PUBLIC_LEN).map_err(failed)?;
        let (protected_file, protected) = make("orbit-sandbox-protected", abi::PROTECTED_LEN).map_err(failed)?;
        let (control_file, control) = make("orbit-sandbox-control", abi::CONTROL_LEN).map_err(failed)?;
        memfd::seal_future_write(public_file.as_fd()).map_err(failed)?;
        for file in [&protected_file, &control_file] {
            memfd::seal_size(file.as_fd()).map_err(failed)?;
        }
        let image = elf::load("library", objects::LIBRARY, abi::LIBRARY, &HashMap::new())?;
        let export = |name: &str| {
            let missing = || Error::new(Kind::BadObject, format!("the library lacks {name}"));
            image.exports.get(name).copied().ok_or_else(missing)
        };
        let entries = Library {
            upcall: export("orbit_upcall")?,
            over_budget: export("orbit_over_budget")?,
            fault: export("orbit_fault")?,
            restorer: export("orbit_restorer")?,
            agent: export("orbit_agent")?,
            call: export("orbit_call")?,
        };
        let mut region = Region {
            files: [public_file, protected_file, control_file],
            public,
            protected,
            control,
            library: HashMap::new(),
        };
        region.place(abi::LIBRARY, &image);
        let directory = region.directory_pointer();
        // SAFETY: the host's own mapping of the first slot, large enough for a directory; no member
        // has it yet.
        unsafe {
            (*directory).library = entries;
            (*directory).upcall_signal = upcall_signal;
            (*directory).budget_signal = budget_signal;
            (*directory).grace_ns = grace_ns;
            (*directory).tick_ns = tick_ns();
            ((*directory).host, (*directory).host_began) =
                (std::process::id() as i32, began(std::process::id() as i32));
            (*directory).magic = abi::MAGIC;
        }
        region.library = image.exports;
        Ok(region)
    }

    /// Descriptors of the public, the protected and the control file, in this order.
    pub fn descriptors(&self) -> [RawFd; 3] {
        [self.files[0].as_raw_fd(), self.files[1].as_raw_fd(), self.files[2].as_raw_fd()]
    }

    /// The file of the control words.
    pub(crate) fn control_file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.files[2].as_fd()
    }

    /// The host's mappings: address and length. A forked agent drops them.
    pub(crate) fn own_mappings(&self) -> [(usize, usize); 3] {
        [&self.public, &self.protected, &self.control].map(|mapping| (mapping.addr(), mapping.len()))
    }

    /// What services may import.
    pub(crate) fn library(&self) -> &HashMap<String, u64> {
        &self.library
    }

    /// The directory, as the host wrote it.
    pub fn directory(&self) -> &Directory {
        // SAFETY: the first slot of the host's own mapping; members cannot write it, and the host
        // does so through `&mut`.
        unsafe { &*self.directory_pointer() }
    }

    fn directory_pointer(&self) -> *mut Directory {
        self.public.as_ptr().cast()
    }

    /// The control words of a slot. Any member may write them at any time.
    pub fn control(&self, slot: usize) -> &Control {
        let at = slot % abi::SLOTS * abi::CONTROL_SLOT;
        // SAFETY: inside the host's mapping; the structure is all atomics.
        unsafe { &*self.control.as_ptr().add(at).cast::<Control>() }
    }

    /// Copies an image to its slot.
    fn place(&mut self, slot: usize, image: &Image) {
        let at = slot % abi::SLOTS * abi::SLOT;
        for (mapping, bytes) in [(&self.public, &image.code), (&self.protected, &image.data)] {
            let length = bytes.len().min(abi::SLOT);
            // SAFETY: the slot lies in the host's mapping and has SLOT bytes; both were mapped for
            // writing.
            unsafe {
                let slot = mapping.as_ptr().add(at);
                slot.write_bytes(0, abi::SLOT);
                slot.copy_from_nonoverlapping(bytes.as_ptr(), length);
            }
        }
    }

    /// Puts a service into an empty slot and lets its events start it. `fill` sets what the service
    /// may do.
    pub(crate) fn install(&mut self, slot: usize, image: &Image, arguments: &[u8], fill: impl FnOnce(&mut Service)) {
        self.place(slot, image);
        let heap = (abi::PROTECTED + slot * abi::SLOT + image.data.len()).next_multiple_of(16) as u64;
        // SAFETY: `&mut self` is the only writer of the directory; the slot is EMPTY, so members do
        // not read its fields.
        let service = unsafe { &mut (*self.directory_pointer()).services[slot] };
        fill(service);
        (service.heap, service.heap_end) = (heap, (abi::PROTECTED + slot * abi::SLOT + abi::STACK_AT) as u64);
        let record = slot * abi::SLOT + abi::RECORD_AT;
        let length = arguments.len().min(abi::ARGUMENTS);
        // SAFETY: the record of the slot, in the host's mapping, zeroed by `place`; nobody runs the
        // slot while it is EMPTY.
        unsafe {
            let record = &mut *self.protected.as_ptr().add(record).cast::<abi::Record>();
            record.arguments[..length].copy_from_slice(&arguments[..length]);
            let at = abi::record(slot) as u64 + std::mem::offset_of!(abi::Record, arguments) as u64;
            record.context.arguments = at;
            record.context.length = length as u32;
            record.context.handles = service.grants;
            for (to, grant) in record.context.handle.iter_mut().zip(&service.grant) {
                *to = grant.handle;
            }
        }
        service.state.store(abi::LIVE, Release);
    }

    /// What an attribute was before services could set it, if one can.
    pub(crate) fn noted(&self, class: u32, target: i32, began: u64) -> Option<i64> {
        let mut ledger = self.directory().ledger.iter();
        let is_it = |entry: &&abi::Entry| {
            entry.class.load(SeqCst) == class
                && entry.target.load(SeqCst) == target
                && entry.began.load(SeqCst) == began
        };
        ledger.find(is_it).map(|entry| entry.original.load(SeqCst))
    }

    /// Notes what an attribute is, to be put back when the host is gone. `None` when the ledger is
    /// full.
    pub(crate) fn note(&self, class: u32, target: i32, began: u64, original: i64) -> Option<usize> {
        let ledger = &self.directory().ledger;
        let at = ledger.iter().position(|entry| entry.class.load(SeqCst) == 0)?;
        ledger[at].target.store(target, SeqCst);
        ledger[at].original.store(original, SeqCst);
        ledger[at].began.store(began, SeqCst);
        ledger[at].class.store(class, SeqCst);
        Some(at)
    }

    /// Strikes an entry off the ledger.
    pub(crate) fn strike(&self, entry: usize) {
        if let Some(entry) = self.directory().ledger.get(entry) {
            entry.class.store(0, SeqCst);
        }
    }

    /// Sets a slot's state: events start nothing in a slot that is not [`abi::LIVE`].
    pub(crate) fn set_state(&self, slot: usize, state: u32) {
        self.directory().services[slot % abi::SLOTS].state.store(state, SeqCst);
    }

    /// Sets a slot's control words to zero. Only while it is empty.
    pub(crate) fn clear_control(&self, slot: usize) {
        let at = slot % abi::SLOTS * abi::CONTROL_SLOT;
        // SAFETY: inside the host's mapping of the control part.
        unsafe { self.control.as_ptr().add(at).write_bytes(0, size_of::<Control>()) };
    }
}

/// Nanoseconds of a tick of the CPU's counter, in 65,536ths, measured for a millisecond; 0 where
/// the counter is not of one speed, or there is none.
fn tick_ns() -> u64 {
    const ADVANCED: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    use std::arch::x86_64::__cpuid;
    if __cpuid(0x8000_0000).eax < ADVANCED || __cpuid(ADVANCED).edx & INVARIANT == 0 {
        return 0;
    }
    let (began, ticks) = (std::time::Instant::now(), sys::ticks());
    while began.elapsed() < std::time::Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    let passed = sys::ticks().wrapping_sub(ticks).max(1);
    (began.elapsed().as_nanos() as u64).saturating_mul(65_536) / passed
}

/// When a process began, in ticks since the machine did: with its number it names the process for
/// good. 0 when it is gone.
pub(crate) fn began(process: i32) -> u64 {
    Stat::of(process).map_or(0, |stat| stat.started_ticks)
}

/// Whether a process with these mappings is a member, of whichever host.
pub(crate) fn is_in(mappings: &[Entry]) -> bool {
    let is_region = |mapping: &Entry| mapping.start == PUBLIC as u64 && mapping.name.contains("orbit-sandbox-public");
    mappings.iter().any(is_region)
}

/// Whether the host that wrote a directory is there.
pub(crate) fn has_host(directory: &Directory) -> bool {
    let is_that = |stat: Stat| stat.state != 'Z' && stat.started_ticks == directory.host_began;
    directory.host_began != 0 && Stat::of(directory.host).is_ok_and(is_that)
}
