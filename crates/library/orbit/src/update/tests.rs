//! An update is applied whole or not at all, and no bytes whatever upset its reader.

use std::cell::RefCell;

use orbit_testing::Random;

use super::*;

/// Lets modifications into one buffer, and operations if so made.
struct Buffer {
    words: Vec<u64>,
    operations: bool,
    asked: RefCell<Vec<(usize, usize)>>,
}

impl Buffer {
    fn new(words: usize) -> Buffer {
        Buffer { words: vec![0; words], operations: true, asked: RefCell::default() }
    }

    fn at(&self, offset: usize) -> usize {
        self.words.as_ptr() as usize + offset
    }

    fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

impl Gate for Buffer {
    type Hold = ();

    fn may_modify(&self, address: usize, len: usize) -> Result<()> {
        self.asked.borrow_mut().push((address, len));
        let end = self.at(self.words.len() * 8);
        if address >= self.at(0) && address.checked_add(len).is_some_and(|behind| behind <= end) {
            return Ok(());
        }
        Err(Error::new(Kind::Foreign, format!("the buffer is {:#x} to {end:#x}", self.at(0))))
    }

    fn may_operate(&self) -> Result<()> {
        if self.operations { Ok(()) } else { Err(Error::new(Kind::Denied, "data only")) }
    }
}

fn encoded(update: &Update) -> Vec<u8> {
    let mut bytes = Vec::new();
    update.encode(&mut bytes).expect("well-formed");
    bytes
}

fn random_update(random: &mut Random) -> Update {
    let mut update = Update::new();
    for _ in 0..random.index(6) {
        let (address, len) = (random.index(1 << 30), 1 + random.index(40));
        let (new, old) = (random.bytes(len), random.bytes(len));
        match random.index(4) {
            0 => update.data(&new[1..]),
            1 => update.modify(address, &new),
            2 => update.modify_if(address, &old, &new),
            _ => update.operation(store_sum, &new),
        };
    }
    update
}

#[test]
fn what_is_encoded_is_read_back() {
    let mut random = Random::from_environment();
    for _ in 0..500 {
        let update = random_update(&mut random);
        let bytes = encoded(&update);
        assert_eq!(Update::decode(&bytes).as_ref(), Ok(&update));
        assert_eq!(bytes.len() % ALIGN, 0);
    }
}

#[test]
fn every_cut_and_every_extension_is_refused() {
    let mut update = Update::new();
    update.data(b"abc").modify(64, &[1; 9]).modify_if(128, &[0; 3], &[1; 3]).operation(store_sum, b"arguments");
    let bytes = encoded(&update);
    for len in 0..bytes.len() {
        assert!(Update::decode(&bytes[..len]).is_err(), "cut to {len}");
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(&[0; 8]);
    assert!(Update::decode(&longer).is_err());
}

#[test]
fn changed_and_random_bytes_are_refused_or_mean_something() {
    let mut random = Random::from_environment();
    for _ in 0..3000 {
        let mut bytes = encoded(&random_update(&mut random));
        for _ in 0..1 + random.index(3) {
            let at = random.index(bytes.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.index(256) as u8][random.index(6)];
        }
        // Panics if the reader misbehaves.
        fuzzing::update_reader(&bytes);
        let len = random.index(200);
        fuzzing::update_reader(&random.bytes(len));
    }
}

#[test]
fn sizes_that_lie_cost_nothing() {
    // A header that claims the most items, and an item that claims the most bytes.
    for (count, len) in [(u32::MAX, 0), (MAX_ITEMS as u32, 0), (1, u32::MAX), (1, u32::MAX / 2 + 1), (0, 0)] {
        for kind in [DATA, MODIFY, MODIFY_IF, OPERATION, 0, 5] {
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&MAGIC.to_ne_bytes());
            bytes.extend_from_slice(&64_u64.to_ne_bytes());
            bytes.extend_from_slice(&count.to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&len.to_ne_bytes());
            bytes.resize(64, 0);
            let error = Update::decode(&bytes).expect_err("a lie");
            assert!(error.to_string().starts_with("update"), "{error}");
        }
    }
}

#[test]
fn limits_are_named() {
    let mut many = Update::new();
    for _ in 0..=MAX_ITEMS {
        many.data(b"");
    }
    let large = {
        let mut update = Update::new();
        update.data(&vec![0; MAX_BYTES]);
        update
    };
    for update in [many, large] {
        let mut out = vec![7];
        let error = update.encode(&mut out).expect_err("too much");
        assert_eq!((error.kind(), out.as_slice()), (Kind::TooLarge, [7].as_slice()));
        assert!(error.to_string().contains("the limit is"), "{error}");
    }
}

#[test]
fn modifications_are_made_in_order_at_any_alignment() {
    let mut random = Random::from_environment();
    for _ in 0..200 {
        let gate = Buffer::new(16);
        let mut model = gate.bytes();
        let mut update = Update::new();
        for _ in 0..8 {
            let at = random.index(100);
            let len = 1 + random.index(28);
            let new = random.bytes(len);
            update.modify(gate.at(at), &new);
            model[at..at + len].copy_from_slice(&new);
        }
        update.apply(&gate).expect("inside");
        assert_eq!(gate.bytes(), model);
    }
}

#[test]
fn one_bad_item_and_nothing_is_changed() {
    let gate = Buffer::new(16);
    let inside = || {
        let mut update = Update::new();
        update.modify(gate.at(0), &[1; 8]);
        update
    };
    let mut outside = inside();
    outside.modify(gate.at(125), &[1; 4]);
    let error = outside.apply(&gate).expect_err("outside");
    assert_eq!(error.kind(), Kind::Foreign);
    let place = format!("item 1: modification of 4 bytes at {:#x}", gate.at(125));
    assert!(error.to_string().contains(&place) && error.to_string().contains("the buffer is"), "{error}");

    let mut wrapping = inside();
    wrapping.modify(usize::MAX - 1, &[1; 4]);
    assert_eq!(wrapping.apply(&gate).map_err(|error| error.kind()), Err(Kind::Invalid));

    let mut empty = inside();
    empty.modify(gate.at(8), &[]);
    assert_eq!(empty.apply(&gate).map_err(|error| error.kind()), Err(Kind::Invalid));

    let mut stale = inside();
    stale.modify_if(gate.at(8), &[9; 4], &[1; 4]);
    let error = stale.apply(&gate).expect_err("stale");
    assert_eq!((error.kind(), error.errno()), (Kind::System(libc::ESTALE), libc::ESTALE));

    let mut uneven = inside();
    uneven.modify_if(gate.at(8), &[0; 3], &[1; 4]);
    assert_eq!(uneven.apply(&gate).map_err(|error| error.kind()), Err(Kind::Invalid));

    let mut operation = inside();
    operation.operation(never_registered, &[]);
    let error = operation.apply(&gate).expect_err("not registered");
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("(the program+0x"), "its place is named: {error}");

    assert!(gate.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn conditions_hold_for_the_whole_update() {
    let gate = Buffer::new(4);
    let mut update = Update::new();
    update.modify_if(gate.at(0), &[0; 4], &[5; 4]).modify(gate.at(4), &[6; 4]);
    update.apply(&gate).expect("the condition holds");
    assert_eq!(gate.bytes()[..8], [5, 5, 5, 5, 6, 6, 6, 6]);
    assert!(update.apply(&gate).is_err(), "not again");

    // Another modification of bytes that a condition is about, before or behind, longer or shorter.
    for (at, len, first) in [(2, 4, true), (2, 4, false), (0, 32, true), (5, 1, false), (7, 9, true)] {
        let gate = Buffer::new(4);
        let mut update = Update::new();
        if first {
            update.modify(gate.at(at), &vec![1; len]);
        }
        update.modify_if(gate.at(4), &[0; 4], &[2; 4]);
        if !first {
            update.modify(gate.at(at), &vec![1; len]);
        }
        let error = update.apply(&gate).expect_err("meets a condition");
        assert!(error.to_string().contains("touches the same bytes"), "{error}");
        assert!(gate.bytes().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn fields_keep_their_types() {
    let gate = Buffer::new(4);
    let field = gate.at(8) as *const f64;
    let flag = gate.at(16) as *const bool;
    let mut update = Update::new();
    update.modify_value(field, 2.5).modify_value_if(flag, false, true);
    Update::decode(&encoded(&update)).expect("read back").apply(&gate).expect("inside");
    assert_eq!((gate.words[1], gate.words[2]), (2.5_f64.to_bits(), 1));
    assert_eq!(gate.asked.borrow().as_slice(), [(gate.at(8), 8), (gate.at(16), 1)]);
}

/// An operation: stores the sum of its arguments behind the address they begin with.
unsafe extern "C" fn store_sum(args: *mut c_void, len: usize) -> c_long {
    assert_eq!(args as usize % 16, 0, "aligned for any type");
    // SAFETY: an operation gets `len` bytes of its own.
    let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), len) };
    let Some((place, rest)) = bytes.split_first_chunk() else { return -1 };
    let sum = rest.iter().map(|&byte| u64::from(byte)).sum();
    // SAFETY: the tests that register this pass the address of a word that lives meanwhile.
    unsafe { (usize::from_ne_bytes(*place) as *mut u64).write(sum) };
    0
}

unsafe extern "C" fn never_registered(_: *mut c_void, _: usize) -> c_long {
    std::hint::black_box(1)
}

#[test]
fn operations_run_after_the_modifications_and_only_if_all_is_well() {
    // SAFETY: this test alone asks for the operation, with fit arguments.
    unsafe { register_operation(store_sum) };
    let mut gate = Buffer::new(4);
    let mut args = gate.at(0).to_ne_bytes().to_vec();
    args.extend_from_slice(&[1, 2, 3]);
    let mut update = Update::new();
    update.operation(store_sum, &args).modify(gate.at(0), &[0xff; 16]).data(b"seen");
    assert_eq!(update.first_data(), Some(b"seen".as_slice()));
    update.apply(&gate).expect("all is well");
    assert_eq!((gate.words[0], gate.words[1]), (6, u64::MAX), "the operation came last");

    gate.words.fill(0);
    gate.operations = false;
    assert_eq!(update.apply(&gate).map_err(|error| error.kind()), Err(Kind::Denied));
    gate.operations = true;
    update.modify(4, &[1]);
    assert!(update.apply(&gate).is_err());
    assert_eq!(gate.words, [0; 4]);

    assert!(unregister_operation(store_sum) && !unregister_operation(store_sum));
    assert!(update.apply(&gate).is_err());
}
