//! Records of the rings, checked and put in the order of their times.
//!
//! Whatever a guest writes into its ring, the reader neither panics nor reads beyond it: a ring
//! with a record that makes no sense is emptied, and counted in `Reader::damaged`.

use crate::calls;
use crate::shared::{Memory, RING_BYTES, SLOT_DONE, SLOT_FREE, SLOT_USED, Slot, split_state};
use orbit_linux::futex;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const HEADER: usize = 16;
const MAX_RECORD: usize = 4096;
/// How often processes are checked for being alive.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Bytes that a call's argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Index of the argument.
    pub argument: u16,
    /// There was more.
    pub is_cut: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Number of the call.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Address of the syscall instruction.
    pub site: u64,
    /// Captured at its entry and its exit.
    pub blobs: Vec<Blob>,
    /// Its result; `None`: it never returned.
    pub result: Option<i64>,
    /// When it returned, as time stamp.
    pub end: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call returned, or its thread ended in it.
    Call(Traced),
    /// A signal was delivered: number, code, sender.
    Signal(u64, i64, u64),
    /// The thread began: its process, the thread that made it, 0 thread, 1 process, 2 exec.
    Start(u64, u64, u64),
    /// A rule acted: its index, its action.
    Note(u64, u64),
    /// The thread has ended.
    Gone,
}

/// An event of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The thread.
    pub tid: u32,
    /// Time stamp of its beginning.
    pub time: u64,
    /// What it was.
    pub what: What,
}

/// Reads the rings of a session.
pub(crate) struct Reader {
    open: HashMap<usize, Open>,
    checked: Instant,
    /// Rings that held nonsense.
    pub damaged: u64,
    /// Records that did not fit.
    pub lost: u64,
}

/// A thread's call that has not returned.
#[derive(Default)]
struct Open {
    call: Option<(u64, Traced)>,
    lost: u64,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { open: HashMap::new(), checked: Instant::now(), damaged: 0, lost: 0 }
    }

    /// Takes what is there; returns the events in the order of their times, and whether threads of
    /// guests are alive.
    pub fn poll(&mut self, memory: &Memory) -> (Vec<Event>, bool) {
        let check = self.checked.elapsed() >= CHECK_EVERY;
        if check {
            self.checked = Instant::now();
        }
        let mut events = Vec::new();
        let mut is_used = false;
        for index in 0..memory.slot_limit() {
            let slot = memory.slot(index);
            let (state, process) = split_state(slot.state.load(Ordering::Acquire));
            if state == SLOT_FREE {
                continue;
            }
            is_used = true;
            // Ended before what it wrote is taken: so nothing comes later.
            let has_ended = state == SLOT_DONE || check && state == SLOT_USED && !memory.is_alive(process);
            self.drain(memory, index, slot, &mut events);
            if has_ended {
                self.close(index, slot, &mut events);
            }
        }
        events.sort_by_key(|event| event.time);
        (events, is_used)
    }

    fn drain(&mut self, memory: &Memory, index: usize, slot: &Slot, events: &mut Vec<Event>) {
        let head = slot.head.load(Ordering::Acquire);
        let mut tail = slot.tail.load(Ordering::Relaxed);
        let lost = slot.lost.load(Ordering::Relaxed);
        let open = self.open.entry(index).or_default();
        if lost > open.lost {
            self.lost += lost - open.lost;
            open.lost = lost;
        }
        if head == tail {
            return;
        }
        let was_full = head.wrapping_sub(tail) > (RING_BYTES / 2) as u64;
        if head.wrapping_sub(tail) > RING_BYTES as u64 {
            self.damaged += 1;
            tail = head;
        }
        let mut bytes = vec![0; (head - tail) as usize];
        memory.copy_ring(index, tail, &mut bytes);
        slot.tail.store(head, Ordering::Release);
        if was_full {
            futex::wake(slot.tail_word(), i32::MAX);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Some((record, after)) = split_record(rest) else {
                self.damaged += 1;
                break;
            };
            rest = after;
            if !take(open, record, events) {
                self.damaged += 1;
            }
        }
    }

    /// The thread has ended: its open call too, and its slot is free for another.
    fn close(&mut self, index: usize, slot: &Slot, events: &mut Vec<Event>) {
        let tid = slot.tid.load(Ordering::Relaxed);
        let mut time = events.last().map_or(0, |event: &Event| event.time);
        if let Some((began, call)) = self.open.remove(&index).and_then(|open| open.call) {
            time = time.max(began);
            events.push(Event { tid, time: began, what: What::Call(call) });
        }
        events.push(Event { tid, time, what: What::Gone });
        slot.tid.store(0, Ordering::Relaxed);
        slot.lost.store(0, Ordering::Relaxed);
        slot.tail.store(slot.head.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.state.store(SLOT_FREE, Ordering::Release);
    }
}

fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let is_sound = (HEADER..=MAX_RECORD).contains(&size) && size.is_multiple_of(8);
    is_sound.then(|| bytes.split_at_checked(size)).flatten()
}

/// Reads 8 bytes at `at`, if they are there.
fn word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

fn blobs(mut bytes: &[u8]) -> Option<Vec<Blob>> {
    let mut blobs = Vec::new();
    while !bytes.is_empty() {
        let argument = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let length = usize::from(u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?));
        let flags = u32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?);
        let content = bytes.get(8..8 + length)?.to_vec();
        blobs.push(Blob { argument, is_cut: flags & 1 != 0, bytes: content });
        bytes = bytes.get(8 + length.next_multiple_of(8)..)?;
    }
    Some(blobs)
}

/// What a record says that is an event of its own.
fn simple(record: &[u8]) -> Option<What> {
    let at = |nth: usize| word(record, HEADER + 8 * nth);
    match record[2] {
        4 => Some(What::Signal(at(0)?, at(1)? as i64, at(2)?)),
        5 => Some(What::Start(at(0)?, at(1)?, at(2)?)),
        6 => Some(What::Note(at(0)?, at(1)?)),
        _ => None,
    }
}

/// Handles one record; false: it makes no sense.
fn take(open: &mut Open, record: &[u8], events: &mut Vec<Event>) -> bool {
    let tid = u32::from_ne_bytes([record[4], record[5], record[6], record[7]]);
    let time = word(record, 8).unwrap_or(0);
    let at = |nth: usize| word(record, HEADER + 8 * nth);
    let mut push = |time, what| events.push(Event { tid, time, what });
    let done = match record[2] {
        1 => (|| {
            let mut arguments = [0; 6];
            for (nth, argument) in arguments.iter_mut().enumerate() {
                *argument = at(1 + nth)?;
            }
            let blobs = blobs(record.get(HEADER + 64..)?)?;
            let call = Traced { number: at(0)?, arguments, site: at(7)?, blobs, result: None, end: time };
            // A call that left no exit record: exec of a thread, or a ring that had no room.
            if let Some((began, old)) = open.call.replace((time, call)) {
                push(began, What::Call(old));
            }
            Some(())
        })(),
        2 => (|| {
            let (result, more) = (at(0)? as i64, blobs(record.get(HEADER + 8..)?)?);
            if let Some((began, mut call)) = open.call.take() {
                call.result = Some(result);
                call.end = time;
                call.blobs.extend(more);
                push(began, What::Call(call));
            }
            Some(())
        })(),
        3 => {
            open.call = None;
            Some(())
        }
        _ => simple(record).map(|what| events.push(Event { tid, time, what })),
    };
    done.is_some()
}

/// Whether a call of this number never returns when it succeeds.
pub(crate) fn never_returns(number: u64) -> bool {
    calls::by_number(number).is_some_and(|call| matches!(call.name, "exit" | "exit_group" | "rt_sigreturn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, words: &[u64], tail: &[u8]) -> Vec<u8> {
        let size = (HEADER + words.len() * 8 + tail.len()) as u16;
        let mut bytes = size.to_ne_bytes().to_vec();
        bytes.extend([kind, 0]);
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(100u64.to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(tail);
        bytes
    }

    #[test]
    fn an_entry_and_an_exit_are_one_call() {
        let (mut open, mut events) = (Open::default(), Vec::new());
        let blob = [&0u16.to_ne_bytes()[..], &3u16.to_ne_bytes(), &1u32.to_ne_bytes(), b"abc\0\0\0\0\0"].concat();
        assert!(take(&mut open, &record(1, &[1, 5, 6, 7, 0, 0, 0, 0xfeed], &blob), &mut events));
        assert!(events.is_empty());
        assert!(take(&mut open, &record(2, &[3], &[]), &mut events));
        let What::Call(call) = &events[0].what else { panic!("a call") };
        assert_eq!((call.number, call.result, call.site), (1, Some(3), 0xfeed));
        assert_eq!(call.blobs, [Blob { argument: 0, is_cut: true, bytes: b"abc".to_vec() }]);
    }

    #[test]
    fn nonsense_is_refused_and_nothing_is_read_beyond_it() {
        let (mut open, mut events) = (Open::default(), Vec::new());
        // Too short for its type, a blob longer than the record, an unknown type.
        assert!(!take(&mut open, &record(1, &[1, 2], &[]), &mut events));
        let long = [&0u16.to_ne_bytes()[..], &999u16.to_ne_bytes(), &0u32.to_ne_bytes()].concat();
        assert!(!take(&mut open, &record(1, &[0; 8], &long), &mut events));
        assert!(!take(&mut open, &record(77, &[], &[]), &mut events));
        for size in [0u16, 8, 15, 17, 4104, u16::MAX] {
            let mut bytes = record(3, &[], &[]);
            bytes[..2].copy_from_slice(&size.to_ne_bytes());
            assert!(split_record(&bytes).is_none(), "size {size}");
        }
        assert!(events.is_empty());
    }
}
