//! The kernel half: loading it, attaching probes, reading what they counted.
//!
//! Owns: which slots are taken. Promises: a slot is given out anew only once its last probe is gone.

use crate::code::{Place, Shape};
use crate::table::{Hits, Key, Record, SLOTS};
use crate::{Costs, Error, cost};
use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use aya::{Ebpf, EbpfLoader};
use orbit_linux::procfs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/uprobe.bpf.o")));

/// The program that carries out the return it is at.
const RETURNED: &str = "returned";
const LOADING: &str = "loading the kernel half of sections by name";

/// Attaches probes.
pub(crate) struct Prober {
    ebpf: Ebpf,
    reader: Arc<Reader>,
    slots: Vec<Arc<AtomicBool>>,
    /// A probe may carry out a return.
    returns: bool,
}

/// Reads what probes counted; may be shared.
pub(crate) struct Reader {
    records: Mutex<HashMap<MapData, Key, Record>>,
    hits: Mutex<PerCpuArray<MapData, Hits>>,
    slots: Vec<Arc<AtomicBool>>,
}

/// The probes of one function in one process; they go when it is dropped, which blocks for some tens of milliseconds: the
/// kernel waits until nobody is in them.
pub(crate) struct Probes {
    pub(crate) slot: u32,
    links: Vec<UProbeLink>,
    taken: Arc<AtomicBool>,
}

impl Probes {
    /// Takes them away in a thread of its own; in this one, which waits then, if there can be no more.
    pub(crate) fn away(self) {
        // Where there is none, what it was to drop is dropped here.
        let _ = std::thread::Builder::new().name("unprobe".into()).spawn(move || drop(self));
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.links.clear();
        self.taken.store(false, Ordering::Release);
    }
}

impl Prober {
    pub(crate) fn load() -> Result<(Prober, Costs), Error> {
        if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
            return Err(Error::Unsupported("there are no uprobes".into()));
        }
        let (dev, ino) = namespace();
        let mut ebpf = EbpfLoader::new()
            .override_global("ns_dev", &dev, true)
            .override_global("ns_ino", &ino, true)
            .load(&OBJECT.0)
            .map_err(|e| Error::of(LOADING, &e))?;
        for name in ["entered", "left"] {
            program(&mut ebpf, name)?.load().map_err(|e| Error::of(LOADING, &e))?;
        }
        let returns = program(&mut ebpf, RETURNED)?.load().is_ok();
        let mut map = |name: &str| {
            ebpf.take_map(name).ok_or_else(|| Error::Failed(format!("the kernel half lacks map \"{name}\"")))
        };
        let records = HashMap::try_from(map("records")?).map_err(|e| Error::of(LOADING, &e))?;
        let hits = PerCpuArray::try_from(map("hits")?).map_err(|e| Error::of(LOADING, &e))?;
        let slots: Vec<Arc<AtomicBool>> = (0..SLOTS).map(|_| Arc::default()).collect();
        let reader = Arc::new(Reader { records: Mutex::new(records), hits: Mutex::new(hits), slots: slots.clone() });
        let mut prober = Prober { ebpf, reader, slots, returns };
        let costs = cost::measure(&mut prober)?;
        Ok((prober, costs))
    }

    pub(crate) fn reader(&self) -> Arc<Reader> {
        self.reader.clone()
    }

    /// Probes a function of a process: `start` is its offset in the file, in bytes. Counts and records begin anew.
    pub(crate) fn attach(&mut self, pid: i32, file: &Path, start: u64, shape: &Shape) -> Result<Probes, Error> {
        let free = self.slots.iter().position(|s| !s.load(Ordering::Acquire)).ok_or(Error::Full)?;
        let process = u32::try_from(pid).ok().and_then(NonZeroU32::new);
        let process = process.ok_or_else(|| Error::Failed(format!("there is no process {pid}")))?;
        let slot = free as u32;
        self.reader.clear(slot)?;
        self.slots[free].store(true, Ordering::Release);
        let mut probes = Probes { slot, links: Vec::new(), taken: self.slots[free].clone() };
        // Ends first: an entry that is seen must not miss its exit.
        let end = |e: &Place| if self.returns && e.returns { RETURNED } else { "left" };
        let ends = shape.ends.iter().map(|e| (end(e), e));
        for (name, place) in ends.chain([("entered", &shape.entry)]) {
            let more = match name {
                RETURNED => shape.address.wrapping_add(place.offset) << 24,
                "entered" => cookie(place) | u64::from(shape.loops && shape.whole) << 63 | u64::from(!shape.whole) << 62,
                _ => cookie(place),
            };
            let point = UProbeAttachPoint {
                location: UProbeAttachLocation::AbsoluteOffset(start + place.offset),
                cookie: Some(u64::from(slot) | u64::from(place.exit.unwrap_or(0)) << 16 | more),
            };
            let program = program(&mut self.ebpf, name)?;
            let link = program
                .attach(point, file, UProbeScope::OneProcess(process))
                .and_then(|id| program.take_link(id))
                .map_err(|e: ProgramError| match Error::of(&format!("probing {}", file.display()), &e) {
                    // Its files may have gone first.
                    Error::Failed(_) if !Path::new(&format!("/proc/{pid}/root")).exists() => Error::Ended,
                    e => e,
                })?;
            probes.links.push(link);
        }
        Ok(probes)
    }
}

impl Reader {
    /// Whether a probe is there, or not quite gone.
    pub(crate) fn probed(&self) -> bool {
        self.slots.iter().any(|taken| taken.load(Ordering::Acquire))
    }

    /// Hits of a slot so far, of all threads.
    pub(crate) fn hits(&self, slot: u32) -> Hits {
        let mut sum = Hits::default();
        if let Ok(each) = self.hits.lock().unwrap_or_else(PoisonError::into_inner).get(&slot, 0) {
            for h in each.iter() {
                sum = sum.and(*h);
            }
        }
        sum
    }

    /// What a thread did; nothing if it has not entered.
    pub(crate) fn record(&self, slot: u32, tid: i32) -> Option<Record> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.get(&Key { tid: tid as u32, slot }, 0).ok()
    }

    /// Forgets the threads of a slot for which `keep` is false.
    pub(crate) fn retain(&self, slot: u32, keep: impl Fn(i32) -> bool) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<Key> = records.keys().filter_map(Result::ok).filter(|k| k.slot == slot).collect();
        for key in keys.into_iter().filter(|k| !keep(k.tid as i32)) {
            // It is gone if a probe's slot was cleared meanwhile.
            let _ = records.remove(&key);
        }
    }

    fn clear(&self, slot: u32) -> Result<(), Error> {
        let clearing = "clearing the counts of sections by name";
        self.retain(slot, |_| false);
        let cpus = aya::util::nr_cpus().map_err(|(_, e)| Error::of(clearing, &e))?;
        let none = vec![Hits::default(); cpus].try_into().map_err(|e: std::io::Error| Error::of(clearing, &e))?;
        let mut hits = self.hits.lock().unwrap_or_else(PoisonError::into_inner);
        hits.set(slot, none, 0).map_err(|e| Error::of(clearing, &e))
    }
}

/// What the kernel half has to know of a place, beside slot and exit.
fn cookie(place: &Place) -> u64 {
    let flags = u64::from(place.above.frame) << 19
        | u64::from(place.only_if.is_some()) << 20
        | u64::from(place.exit.is_some()) << 21
        | u64::from(!place.emulated) << 22;
    flags | u64::from(place.above.bytes as u32) << 24 | u64::from(place.only_if.unwrap_or(0)) << 56
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, Error> {
    let program =
        ebpf.program_mut(name).ok_or_else(|| Error::Failed(format!("the kernel half lacks program \"{name}\"")))?;
    program.try_into().map_err(|_| Error::Failed(format!("program \"{name}\" of the kernel half is of another kind")))
}

/// This process' pid namespace as the kernel half wants it; zeros for the first one.
fn namespace() -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    if procfs::in_first_pid_namespace() {
        return (0, 0);
    }
    procfs::own("ns/pid", |path| std::fs::metadata(path)).map_or((0, 0), |m| (m.dev(), m.ino()))
}
