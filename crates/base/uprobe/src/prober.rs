//! The kernel half: loading it, attaching probes, reading what they counted.
//!
//! Owns: which slots are taken. Promises: a slot is given out anew only once its last probe is gone
//! and nobody reads it any more ([`Slot`]).

use crate::callers::InFile;
use crate::code::Place;
use crate::keeper::{Keeper, Link, Links, Token};
use crate::programs::{LOADING, Program, Programs};
use crate::table::{Caller, Hits, Key, Record, SLOTS};
use crate::{CodeFile, Costs, Error, Target, cost};
use aya::maps::{HashMap, MapData, PerCpuArray};
use orbit_linux::procfs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes below the stack pointer that nobody but the function itself writes to.
const RED_ZONE: i32 = 128;

/// Attaches probes.
pub(crate) struct Prober {
    programs: Programs,
    reader: Arc<Reader>,
    slots: Vec<Arc<Slot>>,
    /// Let go of last: it takes away what is left.
    keeper: Keeper,
}

/// Reads what probes counted; may be shared.
pub(crate) struct Reader {
    records: Mutex<HashMap<MapData, Key, Record>>,
    hits: Mutex<PerCpuArray<MapData, Hits>>,
    callers: Mutex<HashMap<MapData, Caller, u32>>,
    links: Arc<Links>,
}

/// Where the probes of one function in one process count; what they counted stays until all
/// holders let go.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    links: Arc<Links>,
    /// Of its last probes, which may be there yet.
    last: Mutex<Vec<Token>>,
}

impl Slot {
    /// Whether what it counts may change yet.
    pub(crate) fn probed(&self) -> bool {
        self.last().iter().any(|token| self.links.there(*token))
    }

    fn last(&self) -> MutexGuard<'_, Vec<Token>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The probes of one function in one process. When it is dropped they are out of the program at
/// once, and gone some tenths of a second later: the kernel waits until nobody is in them.
pub(crate) struct Probes {
    pub(crate) slot: Arc<Slot>,
    links: Vec<Link>,
    /// What is probed: files and offsets in them.
    places: Vec<(Arc<CodeFile>, Vec<u64>)>,
}

impl Prober {
    pub(crate) fn load() -> Result<(Prober, Costs), Error> {
        if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
            return Err(Error::Unsupported("there are no uprobes".into()));
        }
        // First, while this process is small.
        let keeper = Keeper::begin().map_err(|e| Error::of("making a process that sets probes", &e))?;
        let (dev, ino) = procfs::nested_pid_namespace();
        let mut programs = Programs::load(&[("ns_dev", dev), ("ns_ino", ino)])?;
        let records = HashMap::try_from(programs.map("records")?).map_err(|e| Error::of(LOADING, &e))?;
        let hits = PerCpuArray::try_from(programs.map("hits")?).map_err(|e| Error::of(LOADING, &e))?;
        let callers = HashMap::try_from(programs.map("callers")?).map_err(|e| Error::of(LOADING, &e))?;
        let links = keeper.links();
        let slot = |number| Slot { number, links: links.clone(), last: Mutex::default() };
        let slots = (0..SLOTS as u32).map(|number| Arc::new(slot(number))).collect();
        let reader = Arc::new(Reader {
            records: Mutex::new(records),
            hits: Mutex::new(hits),
            callers: Mutex::new(callers),
            links,
        });
        let mut prober = Prober { programs, reader, slots, keeper };
        let costs = cost::measure(&mut prober)?;
        Ok((prober, costs))
    }

    pub(crate) fn reader(&self) -> Arc<Reader> {
        self.reader.clone()
    }

    /// A slot that is nobody's.
    pub(crate) fn slot(&mut self) -> Result<Arc<Slot>, Error> {
        let free = |s: &&Arc<Slot>| Arc::strong_count(s) == 1 && !s.probed();
        let slot = self.slots.iter().find(free).ok_or(Error::Full)?.clone();
        self.reader.forget_callers(slot.number);
        Ok(slot)
    }

    /// Probes a function of a process. Counts and records of the slot, which has no probes, begin
    /// anew. Callers' places are probed too, by the file; where `step` says so, or one of these
    /// cannot be (its file may have gone), also those that the kernel steps: whether they are is
    /// answered.
    pub(crate) fn attach(
        &mut self,
        slot: Arc<Slot>,
        target: &Target,
        callers: &[InFile<'_>],
        mut step: bool,
    ) -> Result<(Probes, bool), Error> {
        self.reader.clear(slot.number)?;
        slot.last().clear();
        let mut probes = Probes { slot, links: Vec::new(), places: Vec::new() };
        // Ends first: an entry that is seen must not miss its exit.
        self.attach_ends(&mut probes, target, |end| step || end.emulated)?;
        let behind = |(file, places): &InFile<'_>| self.attach_behind(&mut probes, target, file, places);
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
        file: &Arc<CodeFile>,
        places: &[Place],
    ) -> Result<(), Error> {
        // Where signals, or what the caller has put there since, spare it.
        let kept = |p: &Place| u64::from((-RED_ZONE..0).contains(&p.above.bytes)) << 60;
        let places: Vec<(u64, u64)> = places.iter().map(|p| at(probes, 0, p, cookie(p) | kept(p))).collect();
        self.link(probes, target, Program::Left, file, &places)
    }

    fn link(
        &mut self,
        probes: &mut Probes,
        target: &Target,
        program: Program,
        file: &Arc<CodeFile>,
        places: &[(u64, u64)],
    ) -> Result<(), Error> {
        if places.is_empty() {
            return Ok(());
        }
        let pid = target.pid;
        if pid <= 0 {
            return Err(Error::Failed(format!("there is no process {pid}")));
        }
        let note = |token| probes.slot.last().push(token);
        let links = self.programs.attach(&mut self.keeper, program, pid, file, places, &note)?;
        probes.links.extend(links);
        let offsets = places.iter().map(|p| p.0);
        match probes.places.iter_mut().find(|(known, _)| known.identity() == file.identity()) {
            Some((_, all)) => all.extend(offsets),
            None => probes.places.push((file.clone(), offsets.collect())),
        }
        Ok(())
    }

    /// Frees copies of the process, which were made since these probes are there, of their
    /// breakpoints.
    pub(crate) fn free_copies(&mut self, probes: &Probes, pid: i32) {
        for (file, offsets) in &probes.places {
            // What fails now is done when the probes go.
            let _ = self.programs.free_copies(&mut self.keeper, pid, file, offsets);
        }
    }
}

impl Reader {
    /// Whether a probe is there, or not quite gone.
    pub(crate) fn probed(&self) -> bool {
        self.links.any()
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

    /// Where outermost activations of a slot's function were to return to, as far as that was
    /// noted.
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
