//! Updates: what an orbit hands back to main (section 4.5 of the paper), as bytes on the way and as
//! changes at the end.
//!
//! An update is a list of items: *data* for main to read, *modifications* of memory in areas, and
//! *operations*, calls of functions that main registered. The orbit builds it and pushes it; main
//! pulls it, checks it, and applies it.
//!
//! Promises: [`Update::decode`] takes any bytes whatever and answers with an update or an error,
//! without reading past them and with memory in proportion to them. Applying checks every item
//! before it changes anything, so an update is applied whole or not at all. One form only: what
//! decodes encodes to the same bytes again.
//!
//! Refuses: modifications outside the areas the orbit may alter, operations nobody registered, and
//! conditions that another modification of the same update would change.
//!
//! Not promised: that other threads of main see the modifications together. Hold the lock that
//! guards the objects while applying, as at the call itself. And an area that an orbit may alter
//! must hold objects that tolerate any bytes (integers, not references or enums): the orbit chooses
//! them.

use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::error::{Error, Kind, Result};
use crate::template;

/// Items that one update may hold.
pub const MAX_ITEMS: usize = 65_536;
/// Bytes that one update may take, encoded: 64 MiB.
pub const MAX_BYTES: usize = 64 << 20;

/// "orbitup1" as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"orbitup1");
/// Encoded: magic (8), all bytes (8), items (4), zero (4).
const HEADER: usize = 24;
/// Encoded, before the bytes of each item: kind (4), length (4), address (8).
const ITEM_HEADER: usize = 16;
/// The bytes of an item are filled up with zeros to a multiple of this.
const ALIGN: usize = 8;

const DATA: u32 = 1;
const MODIFY: u32 = 2;
/// A modification with a condition: the new bytes, then as many old ones.
const MODIFY_IF: u32 = 3;
const OPERATION: u32 = 4;

/// A function of main that an orbit may ask for. It gets a copy of the bytes that came with the
/// request, aligned to 16. What it returns is ignored, as with `pthread_cond_signal` in the
/// paper: by then the update has been applied. It may not panic or `longjmp`.
pub type Operation = unsafe extern "C" fn(args: *mut c_void, len: usize) -> c_long;

/// Types whose bytes may travel in an update: no padding, so that every byte has a value.
///
/// # Safety
/// The type has no padding bytes, owns nothing and has no interior mutability.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty)*) => { $(
        // SAFETY: a primitive type: all of its bytes are value.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char);
// SAFETY: elements of an array lie side by side, without padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: a thin pointer is one word. It means the same in main and in the orbit when it points
// into an area.
unsafe impl<T> Plain for *const T {}
// SAFETY: as above.
unsafe impl<T> Plain for *mut T {}

/// One item of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes for main to read.
    Data(Vec<u8>),
    /// Bytes to write at an address in an area.
    Modify {
        /// Where to.
        address: usize,
        /// What to write; at least one byte.
        new: Vec<u8>,
        /// What must stand there before, as many bytes as `new`; `None`: no matter what.
        old: Option<Vec<u8>>,
    },
    /// A function of main to call.
    Operation {
        /// Its address; main calls it only if it is registered.
        function: usize,
        /// What it gets.
        args: Vec<u8>,
    },
}

/// What main lets one orbit do; asked before anything of an update is applied.
pub(crate) trait Gate {
    /// While it lives, the memory that it was given for stays mapped and writable; its end says
    /// that it was written to.
    type Hold;
    /// Whether these bytes lie inside one area that this orbit may alter. The error names the
    /// limits.
    fn may_modify(&self, address: usize, len: usize) -> Result<Self::Hold>;
    /// Whether this orbit may ask for operations.
    fn may_operate(&self) -> Result<()>;
}

/// The operations of an update that are left to run, each with its arguments: all else has been
/// done.
#[doc(hidden)]
pub struct Operations<'a>(Vec<(Operation, &'a [u8])>);

impl Operations<'_> {
    /// Runs them in order. What one written in C++ throws passes through, and those behind it do
    /// not run.
    pub fn run(self) {
        for (function, args) in self.0 {
            let mut copy = vec![0_u128; args.len().div_ceil(size_of::<u128>())];
            // SAFETY: the copy has room for all of the arguments; bytes may be written into
            // integers.
            unsafe { std::ptr::copy_nonoverlapping(args.as_ptr(), copy.as_mut_ptr().cast::<u8>(), args.len()) };
            // SAFETY: the same call, but that an exception may pass through it.
            let function = unsafe { std::mem::transmute::<Operation, MayThrow>(function) };
            // SAFETY: whoever registered the function vouched that it takes any bytes of any
            // length.
            unsafe { function(copy.as_mut_ptr().cast(), args.len()) };
        }
    }
}

/// [`Operation`], as it is called.
type MayThrow = unsafe extern "C-unwind" fn(args: *mut c_void, len: usize) -> c_long;

/// What an orbit hands back: data, modifications, operations, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    items: Vec<Item>,
}

impl Update {
    /// An update without items.
    pub fn new() -> Update {
        Update::default()
    }

    /// Adds bytes for main to read.
    pub fn data(&mut self, bytes: &[u8]) -> &mut Update {
        self.items.push(Item::Data(bytes.to_vec()));
        self
    }

    /// Adds a modification: these bytes at this address. Later modifications of the same bytes win.
    pub fn modify(&mut self, address: usize, new: &[u8]) -> &mut Update {
        self.items.push(Item::Modify { address, new: new.to_vec(), old: None });
        self
    }

    /// Adds a modification with a condition: if these old bytes do not stand there when the update
    /// is applied, nothing of the update is. `old` and `new` must be equally long, and no other
    /// modification of the update may touch these bytes.
    pub fn modify_if(&mut self, address: usize, old: &[u8], new: &[u8]) -> &mut Update {
        self.items.push(Item::Modify { address, new: new.to_vec(), old: Some(old.to_vec()) });
        self
    }

    /// Adds a modification of one field. A reference to it serves as `place`; it is not read.
    pub fn modify_value<T: Plain>(&mut self, place: *const T, value: T) -> &mut Update {
        self.modify(place as usize, bytes_of(&value))
    }

    /// Adds a modification of one field that must still hold `old`, compared byte by byte.
    pub fn modify_value_if<T: Plain>(&mut self, place: *const T, old: T, new: T) -> &mut Update {
        self.modify_if(place as usize, bytes_of(&old), bytes_of(&new))
    }

    /// Adds a call of a function that main has registered ([`register_operation`]).
    pub fn operation(&mut self, function: Operation, args: &[u8]) -> &mut Update {
        self.items.push(Item::Operation { function: function as usize, args: args.to_vec() });
        self
    }

    /// The items, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The bytes of the first item of data, if there is one.
    pub fn first_data(&self) -> Option<&[u8]> {
        self.items.iter().find_map(|item| match item {
            Item::Data(bytes) => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// The bytes of its encoded form; 0 for what cannot be encoded.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.check_form().unwrap_or(0)
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Appends the update's bytes to `out`. Fails, with `out` as it was, if the update is malformed
    /// or larger than [`MAX_ITEMS`] or [`MAX_BYTES`] allow.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        let total = self.check_form()?;
        out.reserve(total);
        out.extend_from_slice(&MAGIC.to_ne_bytes());
        out.extend_from_slice(&(total as u64).to_ne_bytes());
        out.extend_from_slice(&(self.items.len() as u32).to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        for item in &self.items {
            let (kind, address, first, second) = match item {
                Item::Data(bytes) => (DATA, 0, bytes, None),
                Item::Modify { address, new, old: None } => (MODIFY, *address, new, None),
                Item::Modify { address, new, old: Some(old) } => (MODIFY_IF, *address, new, Some(old)),
                Item::Operation { function, args } => (OPERATION, *function, args, None),
            };
            out.extend_from_slice(&kind.to_ne_bytes());
            out.extend_from_slice(&(first.len() as u32).to_ne_bytes());
            out.extend_from_slice(&(address as u64).to_ne_bytes());
            out.extend_from_slice(first);
            let mut len = first.len();
            if let Some(second) = second {
                out.extend_from_slice(second);
                len += second.len();
            }
            out.extend_from_slice(&[0; ALIGN][..len.next_multiple_of(ALIGN) - len]);
        }
        Ok(())
    }

    /// Reads an update from bytes that an orbit wrote. They must be main's own by now: a copy that
    /// nothing else can change. Every size is checked; any bytes are safe to pass.
    pub fn decode(bytes: &[u8]) -> Result<Update> {
        let malformed = |what: String| Error::new(Kind::Invalid, format!("update of {} bytes: {what}", bytes.len()));
        if bytes.len() > MAX_BYTES {
            return Err(too_large(bytes.len()));
        }
        let mut rest = bytes;
        let header = (take_u64(&mut rest), take_u64(&mut rest), take_u32(&mut rest), take_u32(&mut rest));
        let (Some(magic), Some(total), Some(count), Some(zero)) = header else {
            return Err(malformed(format!("shorter than its header of {HEADER}")));
        };
        if magic != MAGIC || zero != 0 {
            return Err(malformed("does not begin as an update does".into()));
        }
        if total != bytes.len() as u64 {
            return Err(malformed(format!("says that it has {total}")));
        }
        let count = count as usize;
        if count > MAX_ITEMS {
            return Err(too_many(count));
        }
        if count > rest.len() / ITEM_HEADER {
            return Err(malformed(format!("says that it has {count} items; they do not fit")));
        }
        let mut items = Vec::with_capacity(count);
        for number in 0..count {
            let header = (take_u32(&mut rest), take_u32(&mut rest), take_u64(&mut rest));
            let (Some(kind), Some(len), Some(address)) = header else {
                return Err(malformed(format!("item {number} is cut off")));
            };
            let len = len as usize;
            let all = if kind == MODIFY_IF { len.checked_mul(2) } else { Some(len) };
            let padded = all.and_then(|all| all.checked_next_multiple_of(ALIGN)).filter(|&padded| padded <= rest.len());
            let (Some(all), Some(padded)) = (all, padded) else {
                return Err(malformed(format!("item {number} says {len} bytes; {} are left", rest.len())));
            };
            let (own, behind) = rest.split_at(padded);
            rest = behind;
            if own[all..].iter().any(|&byte| byte != 0) {
                return Err(malformed(format!("item {number} is not filled up with zeros")));
            }
            let Ok(address) = usize::try_from(address) else {
                return Err(malformed(format!("item {number} has the address {address:#x}")));
            };
            let first = own[..len].to_vec();
            items.push(match kind {
                DATA if address == 0 => Item::Data(first),
                MODIFY => Item::Modify { address, new: first, old: None },
                MODIFY_IF => Item::Modify { address, new: first, old: Some(own[len..all].to_vec()) },
                OPERATION => Item::Operation { function: address, args: first },
                _ => return Err(malformed(format!("item {number} has the unknown kind {kind}"))),
            });
        }
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes are left behind the last item", rest.len())));
        }
        let update = Update { items };
        update.check_form()?;
        Ok(update)
    }

    /// Checks every item, then makes the modifications in order, then runs the operations in order.
    /// If any check fails nothing is changed and nothing is run. Blocks only as long as the
    /// operations do.
    ///
    /// Aligned fields of 1, 2, 4 and 8 bytes are written in one piece. A condition that no longer
    /// holds gives `ESTALE`; the other errors name the item, its address and the limits.
    pub(crate) fn apply<G: Gate>(&self, gate: &G) -> Result<()> {
        self.change(gate)?.run();
        Ok(())
    }

    /// All of [`Update::apply`] but the operations, which are left to be run.
    pub(crate) fn change<G: Gate>(&self, gate: &G) -> Result<Operations<'_>> {
        self.check_form()?;
        // The holds go before the operations are run, which may destroy areas.
        let (operations, _holds) = self.check_items(gate)?;
        // SAFETY: the gate agreed to every modification, and the holds live on.
        unsafe { self.check_conditions()? };
        for item in &self.items {
            if let Item::Modify { address, new, .. } = item {
                // SAFETY: the gate agreed to this address and length: memory of an area, mapped and
                // writable as long as the holds live.
                unsafe { store(*address, new) };
            }
        }
        Ok(operations)
    }

    /// Lengths and counts; returns the length of the encoded form.
    fn check_form(&self) -> Result<usize> {
        if self.items.len() > MAX_ITEMS {
            return Err(too_many(self.items.len()));
        }
        let mut total = HEADER;
        for (number, item) in self.items.iter().enumerate() {
            let len = match item {
                Item::Data(bytes) => bytes.len(),
                Item::Operation { args, .. } => args.len(),
                Item::Modify { address, new, old } => {
                    let old_len = old.as_ref().map_or(0, Vec::len);
                    if new.is_empty() || address.checked_add(new.len()).is_none() {
                        return Err(item_error(Kind::Invalid, number, *address, new.len(), "no such range of bytes"));
                    }
                    if old.is_some() && old_len != new.len() {
                        let what = format!("its condition has {old_len} bytes; give as many old bytes as new ones");
                        return Err(item_error(Kind::Invalid, number, *address, new.len(), &what));
                    }
                    new.len().saturating_add(old_len)
                }
            };
            // Both are far from overflowing: `len` is the length of vectors in memory, `total` at
            // most MAX_BYTES.
            total += ITEM_HEADER + len.next_multiple_of(ALIGN);
            if total > MAX_BYTES {
                return Err(too_large(total));
            }
        }
        Ok(total)
    }

    /// Asks the gate and the registry about every item; returns the operations to run, and what
    /// keeps the memory of the modifications.
    fn check_items<G: Gate>(&self, gate: &G) -> Result<(Operations<'_>, Vec<G::Hold>)> {
        let mut operations = Vec::new();
        let mut holds = Vec::new();
        for (number, item) in self.items.iter().enumerate() {
            match item {
                Item::Data(_) => {}
                Item::Modify { address, new, .. } => holds.push(
                    gate.may_modify(*address, new.len())
                        .map_err(|error| item_error(error.kind(), number, *address, new.len(), &error.to_string()))?,
                ),
                Item::Operation { function, args } => {
                    gate.may_operate()
                        .map_err(|error| Error::new(error.kind(), format!("update item {number}: {error}")))?;
                    operations.push((registered(*function, number)?, args.as_slice()));
                }
            }
        }
        Ok((Operations(operations), holds))
    }

    /// The old bytes stand where they should, and no other modification touches them.
    ///
    /// # Safety
    /// The memory of all modifications is mapped and readable.
    unsafe fn check_conditions(&self) -> Result<()> {
        let mut ranges = Vec::new();
        let mut conditions = false;
        for (number, item) in self.items.iter().enumerate() {
            let Item::Modify { address, new, old } = item else { continue };
            ranges.push((*address, address + new.len(), old.is_some(), number));
            let Some(old) = old else { continue };
            conditions = true;
            // SAFETY: the caller vouches for this address and length.
            if !unsafe { matches(*address, old) } {
                let what = "the old bytes no longer stand there; call the orbit again for a fresh update";
                return Err(item_error(Kind::System(libc::ESTALE), number, *address, old.len(), what));
            }
        }
        if !conditions {
            return Ok(());
        }
        // In order of address, a range meets an earlier one exactly if it begins before the
        // furthest end so far.
        ranges.sort_unstable();
        let (mut any_end, mut condition_end) = (0, 0);
        for (start, end, condition, number) in ranges {
            if start < condition_end || (condition && start < any_end) {
                let what = "another modification of this update touches the same bytes, and one has a condition";
                return Err(item_error(Kind::Invalid, number, start, end - start, what));
            }
            any_end = any_end.max(end);
            if condition {
                condition_end = condition_end.max(end);
            }
        }
        Ok(())
    }
}

/// The functions that orbits may ask main to call: a list of places, newest first, never freed but
/// taken again. Without a lock, so that a forked child has all of it, whatever other threads of its
/// parent were doing.
static OPERATIONS: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());

struct Place {
    /// Address of the function, 0 for none.
    function: AtomicUsize,
    /// Set before the place is in the list.
    next: AtomicPtr<Place>,
}

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: null, or a place that was leaked when it came to the list.
    let at = |place: &AtomicPtr<Place>| unsafe { place.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&OPERATIONS), move |place| at(&place.next))
}

fn is_registered(address: usize) -> bool {
    address != 0 && places().any(|place| place.function.load(Ordering::Acquire) == address)
}

/// Lets orbits ask for this function, in any update applied from now on. Registering it twice is
/// the same as once. It is for main; the registry is a list of the process, safe to use from any
/// thread.
///
/// # Safety
/// The function takes any bytes of any length without harm, for the orbit chooses them; and it
/// stays loaded until it is taken back with [`unregister_operation`].
pub unsafe fn register_operation(function: Operation) {
    let address = function as usize;
    let take = |place: &Place| place.function.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if is_registered(address) || places().any(take) {
        return;
    }
    let place: &'static mut Place =
        Box::leak(Box::new(Place { function: AtomicUsize::new(address), next: AtomicPtr::new(std::ptr::null_mut()) }));
    let _ = OPERATIONS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |first| {
        place.next.store(first, Ordering::Relaxed);
        Some(&raw mut *place)
    });
}

/// Takes a function back, before its library is unloaded, say. Returns whether it was registered.
pub fn unregister_operation(function: Operation) -> bool {
    let address = function as usize;
    // Two threads that registered it at once may have taken a place each.
    let strike =
        |place: &Place| place.function.compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    places().filter(|place| strike(place)).count() > 0
}

fn registered(address: usize, number: usize) -> Result<Operation> {
    if is_registered(address) {
        // SAFETY: only addresses of functions of this type come to the list.
        return Ok(unsafe { std::mem::transmute::<usize, Operation>(address) });
    }
    let name = template::place_of(address).unwrap_or_else(|| "no code".into());
    let what = format!("update item {number}: operation {address:#x} ({name}) is not registered");
    Err(Error::new(Kind::Denied, format!("{what}; main must register it before updates that ask for it are applied")))
}

fn item_error(kind: Kind, number: usize, address: usize, len: usize, what: &str) -> Error {
    Error::new(kind, format!("update item {number}: modification of {len} bytes at {address:#x}: {what}"))
}

fn too_many(count: usize) -> Error {
    Error::new(Kind::TooLarge, format!("update has {count} items; the limit is {MAX_ITEMS}; push several updates"))
}

fn too_large(bytes: usize) -> Error {
    Error::new(Kind::TooLarge, format!("update takes {bytes} bytes; the limit is {MAX_BYTES}; push several updates"))
}

pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` promises that there is no padding, so every byte of the value is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (word, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u32::from_ne_bytes(*word))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (word, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u64::from_ne_bytes(*word))
}

/// Calls `word` for each piece of a range: as large as length and alignment allow, at most 8 bytes,
/// so that an aligned field of 1, 2, 4 or 8 bytes is one piece. Stops when `word` answers false,
/// and answers that.
fn pieces(address: usize, len: usize, mut word: impl FnMut(usize, usize, usize) -> bool) -> bool {
    let mut done = 0;
    while done < len {
        let at = address + done;
        let mut size = 8;
        while size > len - done || !at.is_multiple_of(size) {
            size /= 2;
        }
        if !word(at, done, size) {
            return false;
        }
        done += size;
    }
    true
}

/// Writes bytes to memory that other threads may be reading.
///
/// # Safety
/// The range is mapped and writable, and nobody holds a Rust reference to it but to atomics.
unsafe fn store(address: usize, bytes: &[u8]) {
    pieces(address, bytes.len(), |at, from, size| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(&bytes[from..from + size]);
        let [a, b, c, d, ..] = word;
        // SAFETY: `at` is aligned to `size` and the piece lies in the range, which the caller
        // vouches for.
        unsafe {
            match size {
                1 => AtomicU8::from_ptr(at as *mut u8).store(a, Ordering::Relaxed),
                2 => AtomicU16::from_ptr(at as *mut u16).store(u16::from_ne_bytes([a, b]), Ordering::Relaxed),
                4 => AtomicU32::from_ptr(at as *mut u32).store(u32::from_ne_bytes([a, b, c, d]), Ordering::Relaxed),
                _ => AtomicU64::from_ptr(at as *mut u64).store(u64::from_ne_bytes(word), Ordering::Relaxed),
            }
        }
        true
    });
}

/// Whether these bytes stand in memory that other threads may be writing.
///
/// # Safety
/// The range is mapped and readable.
unsafe fn matches(address: usize, bytes: &[u8]) -> bool {
    pieces(address, bytes.len(), |at, from, size| {
        let mut word = [0; 8];
        // SAFETY: `at` is aligned to `size` and the piece lies in the range, which the caller
        // vouches for.
        unsafe {
            match size {
                1 => word[0] = AtomicU8::from_ptr(at as *mut u8).load(Ordering::Relaxed),
                2 => word[..2]
                    .copy_from_slice(&AtomicU16::from_ptr(at as *mut u16).load(Ordering::Relaxed).to_ne_bytes()),
                4 => word[..4]
                    .copy_from_slice(&AtomicU32::from_ptr(at as *mut u32).load(Ordering::Relaxed).to_ne_bytes()),
                _ => word = AtomicU64::from_ptr(at as *mut u64).load(Ordering::Relaxed).to_ne_bytes(),
            }
        }
        word[..size] == bytes[from..from + size]
    })
}

/// Bodies of fuzz targets; not part of the interface.
#[doc(hidden)]
pub mod fuzzing {
    use std::ffi::{c_long, c_void};

    use super::{Gate, HEADER, Item, MAGIC, Update, register_operation};
    use crate::error::{Error, Kind, Result};

    struct OneBuffer(usize, usize);

    impl Gate for OneBuffer {
        type Hold = ();

        fn may_modify(&self, address: usize, len: usize) -> Result<()> {
            let inside = address >= self.0 && len <= self.1 && address - self.0 <= self.1 - len;
            if inside { Ok(()) } else { Err(Error::new(Kind::Foreign, "outside")) }
        }
        fn may_operate(&self) -> Result<()> {
            Ok(())
        }
    }

    unsafe extern "C" fn sums(args: *mut c_void, len: usize) -> c_long {
        // SAFETY: an operation is given a copy of this many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), len) };
        bytes.iter().map(|&byte| c_long::from(byte)).sum()
    }

    /// Any bytes, as they are; then as items behind a header that is right, else few would get
    /// beyond it. The first byte says how many items.
    pub fn update_reader(data: &[u8]) {
        read_and_apply(data);
        let Some((&count, items)) = data.split_first() else { return };
        let mut whole = MAGIC.to_le_bytes().to_vec();
        whole.extend_from_slice(&((HEADER + items.len()) as u64).to_le_bytes());
        whole.extend_from_slice(&u32::from(count).to_le_bytes());
        whole.extend_from_slice(&[0; 4]);
        whole.extend_from_slice(items);
        read_and_apply(&whole);
    }

    /// Either the bytes are rejected, or they are exactly what the update encodes to. Then the
    /// update is applied to a buffer, with its addresses brought near the buffer; what is rejected
    /// must have changed nothing.
    fn read_and_apply(data: &[u8]) {
        let Ok(mut update) = Update::decode(data) else { return };
        let mut again = Vec::new();
        assert!(update.encode(&mut again).is_ok(), "an update that was read can be written");
        assert_eq!(again, data, "there is one form only");
        // SAFETY: it reads the bytes that it is given.
        unsafe { register_operation(sums) };
        let mut buffer = vec![0_u64; 64];
        let (start, len) = (buffer.as_mut_ptr() as usize, buffer.len() * 8);
        for item in &mut update.items {
            match item {
                Item::Data(_) => {}
                Item::Modify { address, .. } => *address = start + *address % (len * 5 / 4),
                Item::Operation { function, .. } => {
                    *function = if *function % 4 == 0 { 0 } else { sums as *const () as usize }
                }
            }
        }
        let applied = update.apply(&OneBuffer(start, len));
        assert!(applied.is_ok() || buffer.iter().all(|&word| word == 0), "refused, yet applied in part");
    }
}

#[cfg(test)]
mod tests;
