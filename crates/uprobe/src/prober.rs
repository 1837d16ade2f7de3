//! The kernel half: loading it, attaching probes, reading what they counted.
//!
//! Owns: which slots are taken. Promises: a slot is given out anew only once its last probe is gone and nobody reads it any more ([`Slot`]).

use crate::code::Place;
use crate::programs::{LOADING, Link, Program, Programs};
use crate::table::{Caller, Hits, Key, Record, SLOTS};
use crate::{Costs, Error, Target, cost};
use aya::maps::{HashMap, MapData, PerCpuArray};
use orbit_linux::procfs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Attaches probes.
pub(crate) struct Prober {
    programs: Programs,
    reader: Arc<Reader>,
    /// Which are taken.
    slots: Vec<Arc<AtomicBool>>,
}

/// Reads what probes counted; may be shared.
pub(crate) struct Reader {
    records: Mutex<HashMap<MapData, Key, Record>>,
    hits: Mutex<PerCpuArray<MapData, Hits>>,
    callers: Mutex<HashMap<MapData, Caller, u32>>,
    /// How many [`Probes`] there are.
    probed: Arc<AtomicUsize>,
}

/// Where the probes of one function in one process count; what they counted stays until all who hold it let go.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    taken: Arc<AtomicBool>,
    /// There are probes yet.
    probed: AtomicBool,
}

impl Slot {
    /// Whether what it counts may change yet.
    pub(crate) fn probed(&self) -> bool {
        self.probed.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The probes of one function in one process. Dropping it takes them out of the program at once, and blocks for some tenths of a second: the
/// kernel waits until nobody is in them.
pub(crate) struct Probes {
    pub(crate) slot: Arc<Slot>,
    links: Vec<Link>,
    probed: Arc<AtomicUsize>,
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
        // Each waits after it is out of the program: one after the other, the last would be in it for that much longer.
        std::thread::scope(|scope| {
            for link in self.links.drain(1.min(self.links.len())..) {
                let _ = std::thread::Builder::new().name("unprobe".into()).spawn_scoped(scope, move || drop(link));
            }
            self.links.clear();
        });
        self.slot.probed.store(false, Ordering::Release);
        self.probed.fetch_sub(1, Ordering::Release);
    }
}

impl Prober {
    pub(crate) fn load() -> Result<(Prober, Costs), Error> {
        if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
            return Err(Error::Unsupported("there are no uprobes".into()));
        }
        let (dev, ino) = namespace();
        let mut programs = Programs::load(&[("ns_dev", dev), ("ns_ino", ino)])?;
        let records = HashMap::try_from(programs.map("records")?).map_err(|e| Error::of(LOADING, &e))?;
        let hits = PerCpuArray::try_from(programs.map("hits")?).map_err(|e| Error::of(LOADING, &e))?;
        let callers = HashMap::try_from(programs.map("callers")?).map_err(|e| Error::of(LOADING, &e))?;
        let slots: Vec<Arc<AtomicBool>> = (0..SLOTS).map(|_| Arc::default()).collect();
        let reader = Arc::new(Reader {
            records: Mutex::new(records),
            hits: Mutex::new(hits),
            callers: Mutex::new(callers),
            probed: Arc::default(),
        });
        let mut prober = Prober { programs, reader, slots };
        let costs = cost::measure(&mut prober)?;
        Ok((prober, costs))
    }

    pub(crate) fn reader(&self) -> Arc<Reader> {
        self.reader.clone()
    }

    /// A slot that is nobody's.
    pub(crate) fn slot(&mut self) -> Result<Arc<Slot>, Error> {
        let free = self.slots.iter().position(|s| !s.load(Ordering::Acquire)).ok_or(Error::Full)?;
        self.slots[free].store(true, Ordering::Release);
        let taken = self.slots[free].clone();
        self.reader.forget_callers(free as u32);
        Ok(Arc::new(Slot { number: free as u32, taken, probed: AtomicBool::new(false) }))
    }

    /// Probes a function of a process. Counts and records of the slot, which has no probes, begin anew. Callers' places are probed too, by the file; where
    /// `step` says so, or one of these cannot be (its file may have gone), also those that the kernel steps: whether they are is answered.
    pub(crate) fn attach(
        &mut self,
        slot: Arc<Slot>,
        target: &Target,
        callers: &[(&Path, Vec<Place>)],
        mut step: bool,
    ) -> Result<(Probes, bool), Error> {
        self.reader.clear(slot.number)?;
        slot.probed.store(true, Ordering::Relaxed);
        let probed = self.reader.probed.clone();
        probed.fetch_add(1, Ordering::Relaxed);
        let mut probes = Probes { slot, links: Vec::new(), probed };
        // Ends first: an entry that is seen must not miss its exit.
        self.attach_ends(&mut probes, target, |end| step || end.emulated)?;
        let behind = |(file, places): &(&Path, Vec<Place>)| self.attach_behind(&mut probes, target, file, places);
        if !callers.iter().map(behind).all(|done| done.is_ok()) {
            step = true;
            self.attach_ends(&mut probes, target, |end| !end.emulated)?;
        }
        let shape = &target.shape;
        let kind = u64::from(shape.loops && shape.whole) << 63
            | u64::from(!shape.whole) << 62
            | u64::from(target.callers && !step && shape.stepped()) << 23;
        let entry = [at(&probes, target.start, &shape.entry, cookie(&shape.entry) | kind)];
        self.link(&mut probes, target, Program::Entered, &target.file, &entry)?;
        Ok((probes, step))
    }

    /// Probes more ends of a function.
    pub(crate) fn attach_ends(
        &mut self,
        probes: &mut Probes,
        target: &Target,
        which: impl Fn(&Place) -> bool,
    ) -> Result<(), Error> {
        let (mut left, mut returned) = (Vec::new(), Vec::new());
        for end in target.shape.ends.iter().filter(|e| which(e)) {
            if end.returns && self.programs.returns {
                let address = target.shape.address.wrapping_add(end.offset);
                returned.push(at(probes, target.start, end, address << 24));
            } else {
                left.push(at(probes, target.start, end, cookie(end)));
            }
        }
        self.link(probes, target, Program::Left, &target.file, &left)?;
        self.link(probes, target, Program::Returned, &target.file, &returned)
    }

    /// Probes places behind calls of a function, by their offset in a file.
    pub(crate) fn attach_behind(
        &mut self,
        probes: &mut Probes,
        target: &Target,
        file: &Path,
        places: &[Place],
    ) -> Result<(), Error> {
        let places: Vec<(u64, u64)> = places.iter().map(|p| at(probes, 0, p, cookie(p))).collect();
        self.link(probes, target, Program::Left, file, &places)
    }

    fn link(
        &mut self,
        probes: &mut Probes,
        target: &Target,
        program: Program,
        file: &Path,
        places: &[(u64, u64)],
    ) -> Result<(), Error> {
        if places.is_empty() {
            return Ok(());
        }
        let pid = target.pid;
        let process = u32::try_from(pid).ok().and_then(NonZeroU32::new);
        let process = process.ok_or_else(|| Error::Failed(format!("there is no process {pid}")))?;
        let links = self.programs.attach(program, process, file, places).map_err(|e| match e {
            // Its files may have gone first.
            Error::Failed(_) if !Path::new(&format!("/proc/{pid}/root")).exists() => Error::Ended,
            e => e,
        })?;
        probes.links.extend(links);
        Ok(())
    }
}

impl Reader {
    /// Whether a probe is there, or not quite gone.
    pub(crate) fn probed(&self) -> bool {
        self.probed.load(Ordering::Acquire) > 0
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

    /// Where outermost activations of a slot's function were to return to, as far as that was noted.
    pub(crate) fn callers(&self, slot: u32) -> Vec<u64> {
        let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.keys().filter_map(Result::ok).filter(|c| c.slot == u64::from(slot)).map(|c| c.back).collect()
    }

    fn forget_callers(&self, slot: u32) {
        let gone = self.callers(slot);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        for back in gone {
            // As above.
            let _ = callers.remove(&Caller { back, slot: slot.into() });
        }
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

/// A place's offset in its file, and its cookie, of which `more` is known.
fn at(probes: &Probes, start: u64, place: &Place, more: u64) -> (u64, u64) {
    (start + place.offset, u64::from(probes.slot.number) | u64::from(place.exit.unwrap_or(0)) << 16 | more)
}

/// What the kernel half has to know of a place, beside slot and exit.
fn cookie(place: &Place) -> u64 {
    let flags = u64::from(place.above.frame) << 19
        | u64::from(place.only_if.is_some()) << 20
        | u64::from(place.exit.is_some()) << 21
        | u64::from(!place.emulated) << 22;
    flags | u64::from(place.above.bytes as u32) << 24 | u64::from(place.only_if.unwrap_or(0)) << 56
}

/// This process' pid namespace as the kernel half wants it; zeros for the first one.
fn namespace() -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    if procfs::in_first_pid_namespace() {
        return (0, 0);
    }
    procfs::own("ns/pid", |path| std::fs::metadata(path)).map_or((0, 0), |m| (m.dev(), m.ino()))
}
