//! Areas and their objects (`orbit_area_*`, `orbit_alloc` and its family).

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::RwLock;

use orbit::{Area, Engine};

use crate::failure::{Answer, Failure, code, pointer};
use crate::given::{self, Sized0};
use crate::handle::{self, Object, Table, Tables};

/// `struct orbit_area`.
#[repr(C)]
pub struct COrbitArea {
    _opaque: [u8; 0],
}

impl Object for Area {
    type Opaque = COrbitArea;
    const KIND: usize = 1;
    fn table(all: &Tables) -> &RwLock<Table<Area>> {
        &all.areas
    }
}

/// `struct orbit_area_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CAreaOptions {
    size: usize,
    name: *const c_char,
    init_size: usize,
    limit: usize,
    engine: c_int,
    reserved: c_int,
    adopt: *mut c_void,
}

// SAFETY: integers and pointers, the size first.
unsafe impl Sized0 for CAreaOptions {
    const NAME: &str = "orbit_area_options";
    const MAKER: &str = "ORBIT_AREA_OPTIONS_INIT";
}

/// `struct orbit_area_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CAreaInfo {
    base: *mut c_void,
    limit: usize,
    used: usize,
    objects: usize,
    high_water: usize,
    engine: c_int,
    reserved: c_int,
}

/// The engines by the numbers that the header gives them.
const ENGINES: [(c_int, Engine); 6] = [
    (0, Engine::Auto),
    (1, Engine::Track),
    (2, Engine::Compare),
    (3, Engine::Copy),
    (4, Engine::Fork),
    (6, Engine::Share),
];

/// Objects of C have at least this alignment.
const ALIGN: usize = 16;

/// Areas are main's: an orbit has pictures of them.
fn main_only() -> Answer<()> {
    if orbit::is_orbit() {
        return Err(Failure::new(
            libc::EPERM,
            "an orbit cannot make, fill or free areas: only main may; push an update",
        ));
    }
    Ok(())
}

fn engine(number: c_int) -> Answer<Engine> {
    let known = ENGINES.into_iter().find(|(known, _)| *known == number);
    known
        .map(|(_, engine)| engine)
        .ok_or_else(|| Failure::invalid(format!("there is no engine number {number}; see enum orbit_engine")))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_create(init_size: usize, orbit: *mut crate::orbits::COrbit) -> *mut COrbitArea {
    pointer(|| {
        main_only()?;
        if !orbit.is_null() {
            handle::with::<crate::orbits::Object, ()>(orbit, |_| ())?;
        }
        handle::add(Area::new(init_size)?)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_create_with(options: *const CAreaOptions) -> *mut COrbitArea {
    pointer(|| {
        main_only()?;
        // SAFETY: the header's contract.
        let (given, name) = unsafe {
            let given = given::structure(options)?;
            (given, given::text(given.name, "the area's name")?)
        };
        let builder = Area::builder(name.unwrap_or("area".into())).engine(engine(given.engine)?);
        if !given.adopt.is_null() {
            given::range(given.adopt, given.init_size, "the memory to adopt")?;
            // SAFETY: the header's contract is that of `adopt`.
            return handle::add(unsafe { builder.adopt(given.adopt.cast(), given.init_size)? });
        }
        let mut builder = builder.size(given.init_size);
        if given.limit != 0 {
            builder = builder.limit(given.limit);
        }
        handle::add(builder.build()?)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_adopt(start: *mut c_void, len: usize) -> *mut COrbitArea {
    pointer(|| {
        main_only()?;
        given::range(start, len, "the memory to adopt")?;
        // SAFETY: the header's contract is that of `adopt`.
        handle::add(unsafe { Area::adopt(start.cast(), len)? })
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_merge(area: *mut COrbitArea) -> c_int {
    code(|| {
        let area = handle::get::<Area>(area)?;
        // SAFETY: the header's contract.
        match unsafe { area.merge() }? {
            true => Ok(0),
            false => Err(Failure::new(
                libc::EBUSY,
                "a call that names the area is in flight, and reads its memory; merge when it has ended",
            )),
        }
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_destroy(area: *mut COrbitArea) -> c_int {
    code(|| {
        handle::with(area, Area::destroy)??;
        handle::remove::<Area>(area)?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_release(area: *mut COrbitArea) -> c_int {
    code(|| {
        // Its references keep it: those of orbits that use it.
        handle::remove::<Area>(area)?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_is_from_area(address: *const c_void) -> c_int {
    c_int::from(orbit::area::is_carved(address.addr()))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_area_get_info(area: *mut COrbitArea, info: *mut CAreaInfo) -> c_int {
    code(|| {
        given::place(info, "the area's info")?;
        let area: Area = handle::get(area)?;
        let engine = area.engine();
        let number = ENGINES.iter().find(|(_, known)| *known == engine).map_or(0, |(number, _)| *number);
        let value = CAreaInfo {
            base: area.base() as *mut c_void,
            limit: area.limit(),
            used: area.used(),
            objects: area.objects(),
            high_water: area.high_water(),
            engine: number,
            reserved: 0,
        };
        // SAFETY: the header's contract.
        unsafe { given::give(info, value) };
        Ok(0)
    })
}

/// An object from the area of a handle.
fn allocate(area: *mut COrbitArea, size: usize, align: usize, zeroed: bool) -> *mut c_void {
    pointer(|| {
        main_only()?;
        let object =
            handle::with(
                area,
                |area: &Area| {
                    if zeroed { area.alloc_zeroed(size, align) } else { area.alloc(size, align) }
                },
            )??;
        Ok(object.as_ptr().cast())
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_alloc(area: *mut COrbitArea, size: usize) -> *mut c_void {
    allocate(area, size, ALIGN, false)
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_calloc(area: *mut COrbitArea, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => allocate(area, bytes, ALIGN, true),
        None => pointer(|| {
            Err(Failure::new(libc::E2BIG, format!("{count} objects of {size} bytes are more than memory can have")))
        }),
    }
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_aligned_alloc(area: *mut COrbitArea, align: usize, size: usize) -> *mut c_void {
    allocate(area, size, align, false)
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_realloc(area: *mut COrbitArea, object: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(object.cast::<u8>()) else {
        return allocate(area, size, ALIGN, false);
    };
    pointer(|| {
        main_only()?;
        // SAFETY: the header's contract is that of `realloc`.
        let object = handle::with(area, |area: &Area| unsafe { area.realloc(old, size, ALIGN) })??;
        Ok(object.as_ptr().cast())
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_free(object: *mut c_void) -> c_int {
    code(|| {
        main_only()?;
        // SAFETY: the header's contract is that of `free`.
        unsafe { orbit::area::free(object.cast())? };
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_will_write(start: *const c_void, len: usize) -> c_int {
    code(|| {
        main_only()?;
        orbit::area::will_write(start.cast(), len)?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_usable_size(object: *const c_void) -> usize {
    let mut size = 0;
    code(|| {
        main_only()?;
        if !object.is_null() {
            size = orbit::area::usable_size(object.cast())?;
        }
        Ok(0)
    });
    size
}
