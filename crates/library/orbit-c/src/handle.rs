//! Handles: what C holds in place of the library's objects.
//!
//! A handle has the form of a pointer and is none: it is never followed. Its bits, from the top: 16
//! that no address of user space has and that name the kind, 28 of generation, 20 of place in the
//! kind's table. So any value whatever may be passed as a handle: it is an object's, or the error
//! says what it is instead (null, foreign, of another kind, ended). A place is used again only
//! after 2^28 generations under the same value.
//!
//! A process forked from the one that made a handle does not know it: tables belong to a generation
//! of process ([`orbit::area::generation`]), and a fork, an orbit too, begins with empty ones. So
//! no lock of a parent is ever waited for in a child.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::failure::{Answer, Failure};

const PLACE_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
/// Top bits of the first kind; not canonical, so no address.
const FIRST_TAG: usize = 0x0b10;
const KINDS: usize = 4;
/// What the kinds are called, and what makes them, in the order of their tags.
const NAMES: [(&str, &str, &str); KINDS] = [
    ("orbit", "an orbit", "orbit_create"),
    ("area", "an area", "orbit_area_create"),
    ("future", "a future", "orbit_call_async"),
    ("update", "an update", "orbit_update_create, pull_orbit or orbit_pull"),
];

/// An object that C may hold a handle of. Cloning gives another reference to the same.
pub(crate) trait Object: Clone + Send + Sync + 'static {
    /// The opaque type in C.
    type Opaque;
    /// Which of the four kinds it is.
    const KIND: usize;
    /// Its table.
    fn table(all: &Tables) -> &RwLock<Table<Self>>;
}

/// The objects of one kind.
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    /// Free places, the longest free first.
    free: VecDeque<u32>,
}

struct Place<T> {
    generation: u32,
    object: Option<T>,
}

/// All tables of one process.
pub(crate) struct Tables {
    process: u64,
    /// Whether an ancestor of this process had tables too.
    forked: bool,
    pub orbits: RwLock<Table<crate::orbits::Object>>,
    pub areas: RwLock<Table<orbit::Area>>,
    pub futures: RwLock<Table<crate::future::Object>>,
    pub updates: RwLock<Table<crate::update::Object>>,
}

/// The tables of the process that last asked for them. Never freed: a thread may be reading them.
static TABLES: AtomicPtr<Tables> = AtomicPtr::new(std::ptr::null_mut());

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { places: Vec::new(), free: VecDeque::new() }
    }
}

/// The tables, if this process has them already.
#[inline(always)]
pub(crate) fn known() -> Option<&'static Tables> {
    // SAFETY: what the pointer was ever set to is a leaked box.
    unsafe { TABLES.load(Ordering::Acquire).as_ref() }.filter(|tables| tables.process == orbit::area::generation())
}

fn tables() -> &'static Tables {
    let process = orbit::area::generation();
    loop {
        let seen = TABLES.load(Ordering::Acquire);
        // SAFETY: what the pointer was ever set to is a leaked box.
        if let Some(tables) = unsafe { seen.as_ref() }
            && tables.process == process
        {
            return tables;
        }
        let fresh = Box::into_raw(Box::new(Tables {
            process,
            forked: !seen.is_null(),
            orbits: RwLock::default(),
            areas: RwLock::default(),
            futures: RwLock::default(),
            updates: RwLock::default(),
        }));
        if TABLES.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread of this process was first.
            // SAFETY: made just above and given to nobody.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

impl<T: Object> Table<T> {
    #[inline(always)]
    pub fn object(&self, handle: usize) -> Option<&T> {
        if handle >> (PLACE_BITS + GENERATION_BITS) != FIRST_TAG + T::KIND {
            return None;
        }
        let place = self.places.get(handle & ((1 << PLACE_BITS) - 1))?;
        if place.generation == generation_of(handle) { place.object.as_ref() } else { None }
    }
}

fn generation_of(handle: usize) -> u32 {
    (handle >> PLACE_BITS) as u32 & ((1 << GENERATION_BITS) - 1)
}

/// Gives an object a handle.
pub(crate) fn add<T: Object>(object: T) -> Answer<*mut T::Opaque> {
    put(tables(), object)
}

/// Gives an object a handle, in these tables.
#[inline(always)]
pub(crate) fn put<T: Object>(tables: &Tables, object: T) -> Answer<*mut T::Opaque> {
    let mut table = T::table(tables).write().unwrap_or_else(PoisonError::into_inner);
    let place = match table.free.pop_front() {
        Some(place) => place as usize,
        None if table.places.len() < 1 << PLACE_BITS => {
            table.places.push(Place { generation: 0, object: None });
            table.places.len() - 1
        }
        None => {
            let name = NAMES[T::KIND].0;
            return Err(Failure::new(
                libc::EAGAIN,
                format!("there are {} living {name}s, the most there can be; free some", 1 << PLACE_BITS),
            ));
        }
    };
    let slot = &mut table.places[place];
    slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
    slot.object = Some(object);
    let handle =
        (FIRST_TAG + T::KIND) << (PLACE_BITS + GENERATION_BITS) | (slot.generation as usize) << PLACE_BITS | place;
    Ok(std::ptr::without_provenance_mut(handle))
}

/// Runs `body` with the object of a handle. The table stays locked meanwhile: for what is quick and
/// calls nobody back.
pub(crate) fn with<T: Object, R>(handle: *const T::Opaque, body: impl FnOnce(&T) -> R) -> Answer<R> {
    let tables = tables();
    let table = T::table(tables).read().unwrap_or_else(PoisonError::into_inner);
    match table.object(handle.addr()) {
        Some(object) => Ok(body(object)),
        None => {
            drop(table);
            Err(unknown::<T>(tables, handle.addr()))
        }
    }
}

/// Changes the object of a handle, where it lies.
pub(crate) fn change<T: Object, R>(handle: *const T::Opaque, body: impl FnOnce(&mut T) -> R) -> Answer<R> {
    let tables = tables();
    let mut table = T::table(tables).write().unwrap_or_else(PoisonError::into_inner);
    if table.object(handle.addr()).is_some() {
        let place = handle.addr() & ((1 << PLACE_BITS) - 1);
        if let Some(object) = &mut table.places[place].object {
            return Ok(body(object));
        }
    }
    drop(table);
    Err(unknown::<T>(tables, handle.addr()))
}

/// A reference to the object of a handle.
pub(crate) fn get<T: Object>(handle: *const T::Opaque) -> Answer<T> {
    with(handle, T::clone)
}

/// Takes the object of a handle away; the handle is void from here on.
pub(crate) fn remove<T: Object>(handle: *const T::Opaque) -> Answer<T> {
    let tables = tables();
    let mut table = T::table(tables).write().unwrap_or_else(PoisonError::into_inner);
    if table.object(handle.addr()).is_some() {
        let place = handle.addr() & ((1 << PLACE_BITS) - 1);
        table.free.push_back(place as u32);
        if let Some(object) = table.places[place].object.take() {
            return Ok(object);
        }
    }
    drop(table);
    Err(unknown::<T>(tables, handle.addr()))
}

/// Why this is no handle of an object of this kind.
fn unknown<T: Object>(tables: &Tables, handle: usize) -> Failure {
    let (name, _, maker) = NAMES[T::KIND];
    if handle == 0 {
        return Failure::invalid(format!(
            "the {name} is NULL; pass what {maker} returned, after checking whether it failed"
        ));
    }
    let kind = (handle >> (PLACE_BITS + GENERATION_BITS)).wrapping_sub(FIRST_TAG);
    if kind >= KINDS {
        return Failure::new(libc::EBADF, format!("{handle:#x} is no {name}; pass what {maker} returned"));
    }
    if kind != T::KIND {
        let other = NAMES[kind].1;
        return Failure::new(libc::EBADF, format!("{handle:#x} is no {name} but the handle of {other}"));
    }
    if orbit::is_orbit() && T::KIND != crate::update::Object::KIND {
        return Failure::new(libc::EPERM, format!("an orbit cannot use {name}s of main: only main may do this"));
    }
    if tables.forked {
        return Failure::new(
            libc::ECHILD,
            format!("the {name} was made by the process that this one was forked from; make one of its own here"),
        );
    }
    Failure::new(libc::EBADF, format!("the {name} of the handle {handle:#x} was freed or destroyed before"))
}
