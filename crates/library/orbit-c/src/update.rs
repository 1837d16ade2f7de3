//! Updates (`orbit_update_*`, `orbit_push`, `orbit_apply`, `orbit_register_operation`).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use orbit::{Item, Operation, Orbit, Update};

use crate::failure::{Answer, Failure, code, pointer};
use crate::given;
use crate::handle::{self, Table, Tables};

/// `struct orbit_update`.
#[repr(C)]
pub struct COrbitUpdate {
    _opaque: [u8; 0],
}

/// `struct orbit_item`.
#[repr(C)]
pub struct CItem {
    kind: c_int,
    reserved: c_int,
    size: usize,
    data: *const c_void,
    address: *mut c_void,
    old_data: *const c_void,
    operation: Option<Operation>,
}

/// The kinds of items, as the header numbers them.
const DATA: c_int = 1;
const MODIFY: c_int = 2;
const MODIFY_IF: c_int = 3;
const OPERATION: c_int = 4;

/// Bytes that one update may take: what is sure to be rejected later is rejected before it is
/// copied.
const MAX_BYTES: usize = 64 << 20;

/// What stands behind an update's handle.
#[derive(Clone)]
pub(crate) struct Object(Arc<Mutex<Body>>);

struct Body {
    update: Arc<Update>,
    /// The orbit that pushed it; `None` for one made here.
    from: Option<Orbit>,
    /// The items as C walks them, made when first asked for, dropped when one is added.
    items: Option<Items>,
}

/// Items for C. They point into the update beside them, which stays unchanged as long as they are
/// there.
struct Items(Box<[CItem]>);

// SAFETY: the pointers are to heap memory that the same `Body` owns, and go where it goes.
unsafe impl Send for Items {}

impl handle::Object for Object {
    type Opaque = COrbitUpdate;
    const KIND: usize = 3;
    fn table(all: &Tables) -> &RwLock<Table<Object>> {
        &all.updates
    }
}

impl Object {
    fn empty() -> Object {
        Object::with(Update::new(), None)
    }

    /// One that came from an orbit.
    pub fn pulled(update: Update, from: Orbit) -> Object {
        Object::with(update, Some(from))
    }

    fn with(update: Update, from: Option<Orbit>) -> Object {
        Object(Arc::new(Mutex::new(Body { update: Arc::new(update), from, items: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn item(item: &Item) -> CItem {
    let blank = CItem {
        kind: DATA,
        reserved: 0,
        size: 0,
        data: std::ptr::null(),
        address: std::ptr::null_mut(),
        old_data: std::ptr::null(),
        operation: None,
    };
    match item {
        Item::Data(bytes) => CItem { size: bytes.len(), data: bytes.as_ptr().cast(), ..blank },
        Item::Modify { address, new, old } => CItem {
            kind: if old.is_some() { MODIFY_IF } else { MODIFY },
            size: new.len(),
            data: new.as_ptr().cast(),
            address: *address as *mut c_void,
            old_data: old.as_ref().map_or(std::ptr::null(), |old| old.as_ptr().cast()),
            ..blank
        },
        Item::Operation { function, args } => CItem {
            kind: OPERATION,
            size: args.len(),
            data: args.as_ptr().cast(),
            // SAFETY: an address and an optional function pointer are one word each, and any word
            // but 0 is a function pointer; C may compare it, and whether it may be called only the
            // registry says.
            operation: unsafe { std::mem::transmute::<usize, Option<Operation>>(*function) },
            ..blank
        },
    }
}

/// Adds something to an update.
fn change(update: *mut COrbitUpdate, change: impl FnOnce(&mut Update)) -> Answer<c_int> {
    let object: Object = handle::get(update)?;
    let mut body = object.lock();
    body.items = None;
    change(Arc::make_mut(&mut body.update));
    Ok(0)
}

/// The bytes of a new item.
///
/// # Safety
/// As [`given::bytes`].
unsafe fn contents<'a>(at: *const c_void, size: usize, what: &str) -> Answer<&'a [u8]> {
    if size > MAX_BYTES && size <= isize::MAX as usize {
        let text = format!("{what} of {size} bytes: an update takes up to {MAX_BYTES}; push several");
        return Err(Failure::new(libc::E2BIG, text));
    }
    // SAFETY: the caller's contract.
    unsafe { given::bytes(at, size, what) }
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_update_create() -> *mut COrbitUpdate {
    pointer(|| handle::add(Object::empty()))
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_free(update: *mut COrbitUpdate) -> c_int {
    code(|| {
        if !update.is_null() {
            handle::remove::<Object>(update)?;
        }
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_add_data(update: *mut COrbitUpdate, data: *const c_void, size: usize) -> c_int {
    code(|| {
        // SAFETY: the header's contract.
        let data = unsafe { contents(data, size, "the data")? };
        change(update, |update| {
            update.data(data);
        })
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_add_modify(
    update: *mut COrbitUpdate,
    place: *const c_void,
    new: *const c_void,
    size: usize,
) -> c_int {
    code(|| {
        given::range(place, size, "the place to modify")?;
        // SAFETY: the header's contract.
        let new = unsafe { contents(new, size, "the new bytes")? };
        change(update, |update| {
            update.modify(place.addr(), new);
        })
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_add_modify_if(
    update: *mut COrbitUpdate,
    place: *const c_void,
    old: *const c_void,
    new: *const c_void,
    size: usize,
) -> c_int {
    code(|| {
        given::range(place, size, "the place to modify")?;
        // SAFETY: the header's contract.
        let (old, new) = unsafe { (contents(old, size, "the old bytes")?, contents(new, size, "the new bytes")?) };
        change(update, |update| {
            update.modify_if(place.addr(), old, new);
        })
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_add_operation(
    update: *mut COrbitUpdate,
    operation: Option<Operation>,
    args: *const c_void,
    size: usize,
) -> c_int {
    code(|| {
        let operation = operation.ok_or_else(|| Failure::invalid("the operation is NULL"))?;
        // SAFETY: the header's contract.
        let args = unsafe { contents(args, size, "the operation's arguments")? };
        change(update, |update| {
            update.operation(operation, args);
        })
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_push(update: *mut COrbitUpdate) -> c_int {
    code(|| {
        let object: Object = handle::get(update)?;
        let update = object.lock().update.clone();
        orbit::push(&update)?;
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_first(update: *mut COrbitUpdate) -> *const CItem {
    pointer(|| {
        let object: Object = handle::get(update)?;
        let mut body = object.lock();
        let update = body.update.clone();
        let items = body.items.get_or_insert_with(|| Items(update.items().iter().map(item).collect()));
        Ok(items.0.first().map_or(std::ptr::null(), std::ptr::from_ref).cast_mut())
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_update_next(update: *mut COrbitUpdate, current: *const CItem) -> *const CItem {
    pointer(|| {
        let object: Object = handle::get(update)?;
        let body = object.lock();
        let items: &[CItem] = body.items.as_ref().map_or(&[], |items| &items.0);
        let offset = current.addr().wrapping_sub(items.as_ptr().addr());
        let at = offset / size_of::<CItem>();
        if !offset.is_multiple_of(size_of::<CItem>()) || at >= items.len() {
            return Err(Failure::invalid(format!(
                "{current:p} is no item of this update; begin with orbit_update_first"
            )));
        }
        Ok(items.get(at + 1).map_or(std::ptr::null(), std::ptr::from_ref).cast_mut())
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn orbit_apply(update: *mut COrbitUpdate) -> c_int {
    let mut taken = None;
    let code_of_taking = code(|| {
        let object: Object = handle::get(update)?;
        let body = object.lock();
        let from = body.from.clone().ok_or_else(|| {
            Failure::invalid("only an update that was pulled (pull_orbit, orbit_pull) can be applied")
        })?;
        taken = Some((body.update.clone(), from));
        Ok(0)
    });
    let Some((update, from)) = taken else { return code_of_taking };
    let mut operations = None;
    let answer = code(|| {
        operations = Some(from.change(&update)?);
        Ok(0)
    });
    // Unlocked: an operation may use the library. And outside of `code`: what one throws is for the
    // caller to catch.
    if let Some(operations) = operations {
        operations.run();
    }
    answer
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orbit_register_operation(operation: Option<Operation>) -> c_int {
    code(|| {
        let operation = operation.ok_or_else(|| Failure::invalid("the operation is NULL"))?;
        given::range(operation as *const c_void, 1, "the operation")?;
        // SAFETY: the header's contract is that of `register_operation`.
        unsafe { orbit::register_operation(operation) };
        Ok(0)
    })
}

/// See `include/orbit.h`.
#[unsafe(no_mangle)]
pub extern "C" fn orbit_unregister_operation(operation: Option<Operation>) -> c_int {
    code(|| {
        let operation = operation.ok_or_else(|| Failure::invalid("the operation is NULL"))?;
        if orbit::unregister_operation(operation) {
            return Ok(0);
        }
        Err(Failure::new(libc::ENOENT, format!("{operation:p} is not registered as an operation")))
    })
}
