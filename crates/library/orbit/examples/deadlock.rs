//! The running example of the orbit paper (figures 2, 4 and 7): transactions that lock records, and
//! a deadlock detector in an orbit.
//!
//! ```text
//! cargo run --release -p orbit-tasks --example deadlock
//! cargo run --release -p orbit-tasks --example deadlock -- --fault push:panic --every 1
//! ```
//!
//! A transaction that has to wait calls the detector, which follows pointers through a snapshot of
//! the lock table to find a ring, picks a victim and pushes its rollback: the version it saw, the
//! modification of one field, and an operation that wakes the victim. Main checks whether the
//! victim is still that transaction, and applies it. When the detector fails, main learns how,
//! calls it again, and after a few failures falls back to a timeout. Exit status 0: all
//! transactions finished.

use std::collections::BTreeMap;
use std::ffi::{c_long, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use orbit::{Area, CallOptions, Kind, Limits, Orbit, Outcome, Restart, Update};

const LOCKS_PER_TRX: usize = 3;
const MAX_RING: u32 = 64;

/// A record's lock. It and the next lie in the area, and so are seen by the detector. Their fields
/// are atomics since updates of an orbit write there.
struct Lock {
    owner: AtomicPtr<Trx>,
}

struct Trx {
    /// Changes with every transaction that uses this slot, and every retry.
    version: AtomicI64,
    /// What it waits for.
    wait_lock: AtomicPtr<Lock>,
    /// Locks it holds: the victim is the one with the fewest.
    held: AtomicU32,
    /// Set by the detector: roll back.
    cancel: AtomicU32,
    id: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    trx: *const Trx,
    call: u64,
}
// SAFETY: two words, no padding.
unsafe impl orbit::Plain for Args {}

/// What the detector reports about a victim.
#[derive(Clone, Copy)]
#[repr(C)]
struct TrxVersion {
    version: i64,
    id: u32,
    ring: u32,
}
// SAFETY: no padding: 8 + 4 + 4.
unsafe impl orbit::Plain for TrxVersion {}

/// What the command line says; set before the orbit exists, so that it has it too.
#[derive(Clone, Debug)]
struct Wanted {
    threads: u32,
    transactions: u32,
    locks: usize,
    seed: u64,
    fault: Option<(String, String)>,
    every: u64,
    /// Of a call of the detector.
    deadline: Duration,
    verbose: bool,
}

static WANTED: OnceLock<Wanted> = OnceLock::new();

const STEPS: [&str; 6] = ["start", "search", "victim", "update", "push", "return"];
const KINDS: [&str; 6] = ["segv", "panic", "exit", "kill", "hang", "leak"];

fn maybe_fail(step: &str, call: u64) {
    let Some(Wanted { fault: Some((at, kind)), every, .. }) = WANTED.get() else { return };
    if at != step || !call.is_multiple_of(*every) {
        return;
    }
    match kind.as_str() {
        // SAFETY: none: this is the fault.
        "segv" => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        "panic" => panic!("the detector was asked to panic at {step}"),
        "exit" => std::process::exit(3),
        // SAFETY: ends this process, the orbit.
        "kill" => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => loop {
            std::mem::forget(std::hint::black_box(vec![1u8; 1 << 20]));
        },
    }
}

// ---- the detector: runs in the orbit ----

unsafe extern "C" fn check_and_resolve(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes `Args`; its pointers and those in the lock table lead to objects of the
    // area.
    unsafe {
        let Args { trx: first, call } = args.cast::<Args>().read();
        maybe_fail("start", call);
        let (mut at, mut victim, mut ring) = (&*first, &*first, 0);
        loop {
            maybe_fail("search", call);
            let Some(lock) = at.wait_lock.load(Relaxed).as_ref() else { return 0 };
            let Some(owner) = lock.owner.load(Relaxed).as_ref() else { return 0 };
            ring += 1;
            if at.cancel.load(Relaxed) != 0 || ring > MAX_RING {
                return 0;
            }
            if owner.held.load(Relaxed) < victim.held.load(Relaxed) {
                victim = owner;
            }
            if std::ptr::eq(owner, first) {
                break;
            }
            at = owner;
        }
        maybe_fail("victim", call);
        roll_back(victim, ring, call);
        maybe_fail("return", call);
        c_long::from(ring)
    }
}

fn roll_back(victim: &Trx, ring: u32, call: u64) {
    let mut scratch = Update::new();
    let seen = TrxVersion { version: victim.version.load(Relaxed), id: victim.id, ring };
    // SAFETY: `TrxVersion` is plain.
    scratch.data(unsafe { std::slice::from_raw_parts((&raw const seen).cast(), size_of::<TrxVersion>()) });
    maybe_fail("update", call);
    scratch.modify_value_if(victim.cancel.as_ptr(), 0u32, 1u32);
    scratch.operation(wake, &victim.id.to_ne_bytes());
    maybe_fail("push", call);
    if let Err(error) = orbit::push(&scratch) {
        panic!("{error}");
    }
}

// ---- main ----

/// Guards all that is in the area.
static TABLE: Mutex<()> = Mutex::new(());
static WOKEN: OnceLock<Vec<Condvar>> = OnceLock::new();

/// The operation: the detector chose the bytes, so they are checked.
unsafe extern "C" fn wake(args: *mut c_void, len: usize) -> c_long {
    if len != 4 {
        return -1;
    }
    // SAFETY: main's copy of `len` bytes.
    let id = unsafe { args.cast::<u32>().read_unaligned() };
    let Some(condition) = WOKEN.get().and_then(|all| all.get(id as usize)) else { return -1 };
    condition.notify_all();
    0
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    finished: AtomicU64,
    by_detector: AtomicU64,
    by_timeout: AtomicU64,
    stale: AtomicU64,
    refused: AtomicU64,
    ends: Mutex<BTreeMap<&'static str, u64>>,
}

struct Bank {
    wanted: Wanted,
    area: Area,
    detector: Orbit,
    locks: Vec<&'static Lock>,
    trxs: Vec<&'static Trx>,
    counts: Counts,
}

type Guard = MutexGuard<'static, ()>;

fn lock_table() -> Guard {
    TABLE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Puts an object into the area for good.
fn place<T>(area: &Area, value: T) -> orbit::Result<&'static T> {
    let object: NonNull<T> = area.place(value)?;
    // SAFETY: just made, never freed, and of atomics and constants only.
    Ok(unsafe { object.as_ref() })
}

impl Bank {
    fn open(wanted: Wanted) -> orbit::Result<Bank> {
        let area = Area::builder("lock table").build()?;
        // SAFETY: `wake` checks every byte before use.
        unsafe { orbit::register_operation(wake) };
        let detector = Orbit::builder("dl_checker")
            .entry(check_and_resolve)
            // Little, so that a leak ends soon; the detector takes next to nothing.
            .limits(Limits::new().memory(8 << 20))
            .restart(Restart::Always)
            .build()?;
        let new_trx = |id| Trx {
            version: AtomicI64::new(0),
            wait_lock: AtomicPtr::default(),
            held: AtomicU32::new(0),
            cancel: AtomicU32::new(0),
            id,
        };
        let trxs = (0..wanted.threads).map(|id| place(&area, new_trx(id))).collect::<orbit::Result<_>>()?;
        let locks = (0..wanted.locks)
            .map(|_| place(&area, Lock { owner: AtomicPtr::default() }))
            .collect::<orbit::Result<_>>()?;
        Ok(Bank { wanted, area, detector, locks, trxs, counts: Counts::default() })
    }

    /// Applies what an update says, if the victim is still the transaction that the detector saw.
    /// Under the lock.
    fn handle(&self, update: &Update, _: &Guard) {
        let version = update.first_data().filter(|bytes| bytes.len() == size_of::<TrxVersion>());
        // SAFETY: as many bytes as a `TrxVersion` has, which takes any.
        let seen = version.map(|bytes| unsafe { bytes.as_ptr().cast::<TrxVersion>().read_unaligned() });
        let Some((seen, trx)) = seen.and_then(|seen| Some((seen, self.trxs.get(seen.id as usize)?))) else {
            self.counts.refused.fetch_add(1, Relaxed);
            return;
        };
        if trx.version.load(Relaxed) != seen.version || trx.wait_lock.load(Relaxed).is_null() {
            self.counts.stale.fetch_add(1, Relaxed);
            return;
        }
        match self.detector.apply(update) {
            Ok(()) if self.wanted.verbose => {
                println!("deadlock of {} transactions: victim {}, version {}", seen.ring, seen.id, seen.version);
            }
            Ok(()) => {}
            Err(error) => {
                if self.wanted.verbose {
                    println!("refused: {error}");
                }
                self.counts.refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// Calls the detector for a transaction that waits. True: it ran to its end.
    fn detect(&self, trx: &Trx, table: Guard) -> (bool, Guard) {
        let args = Args { trx, call: self.counts.calls.fetch_add(1, Relaxed) };
        let options = CallOptions::new().deadline(self.wanted.deadline);
        // SAFETY: `Args` is plain. The snapshot is taken here, inside the lock that guards the
        // objects.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of::<Args>()) };
        let future = self.detector.call_async_with(&[&self.area], bytes, &options);
        drop(table);
        let end = future.and_then(|future| {
            while let Some(update) = future.pull()? {
                self.handle(&update, &lock_table());
            }
            future.wait()
        });
        let ended_as = match &end {
            Ok(Outcome::Returned(_)) => "returned",
            Ok(Outcome::Crashed(_)) => "crashed",
            Ok(Outcome::Exited(_)) => "exited",
            Ok(Outcome::Killed(_)) => "killed",
            Ok(Outcome::OutOfMemory) => "out of memory",
            Ok(Outcome::TimedOut(_)) => "timed out",
            Ok(_) => "cancelled",
            Err(error) => {
                if error.kind() == Kind::Down {
                    std::thread::sleep(Duration::from_millis(1));
                }
                "not made"
            }
        };
        if self.wanted.verbose && ended_as != "returned" {
            let text = end.as_ref().map_or_else(|e| e.to_string(), |o| o.to_string());
            println!("the detector failed: {}", text.lines().next().unwrap_or_default());
        }
        *self.counts.ends.lock().unwrap_or_else(|e| e.into_inner()).entry(ended_as).or_default() += 1;
        (ended_as == "returned", lock_table())
    }

    /// Takes a lock, or answers that the transaction is to be rolled back.
    fn acquire(&self, trx: &'static Trx, lock: &'static Lock) -> bool {
        let mut table = lock_table();
        let (mut checked, mut failures) = (false, 0);
        while !lock.owner.load(Relaxed).is_null() {
            trx.wait_lock.store(std::ptr::from_ref(lock).cast_mut(), Relaxed);
            if checked {
                let Some(woken) = WOKEN.get().and_then(|all| all.get(trx.id as usize)) else { return false };
                let waited = woken.wait_timeout(table, Duration::from_millis(100));
                let (guard, timeout) = waited.unwrap_or_else(|e| e.into_inner());
                table = guard;
                checked = !timeout.timed_out();
            } else {
                (checked, table) = self.detect(trx, table);
                failures += u32::from(!checked);
            }
            if trx.cancel.load(Relaxed) != 0 {
                self.counts.by_detector.fetch_add(1, Relaxed);
                return false;
            }
            if failures >= 3 && !lock.owner.load(Relaxed).is_null() {
                self.counts.by_timeout.fetch_add(1, Relaxed);
                return false;
            }
        }
        trx.wait_lock.store(std::ptr::null_mut(), Relaxed);
        lock.owner.store(std::ptr::from_ref(trx).cast_mut(), Relaxed);
        trx.held.fetch_add(1, Relaxed);
        true
    }

    fn release(&self, trx: &Trx, mine: &[&'static Lock]) {
        let _table = lock_table();
        for lock in mine {
            lock.owner.store(std::ptr::null_mut(), Relaxed);
            for waiting in self.trxs.iter().filter(|t| std::ptr::eq(t.wait_lock.load(Relaxed), *lock)) {
                if let Some(woken) = WOKEN.get().and_then(|all| all.get(waiting.id as usize)) {
                    woken.notify_all();
                }
            }
        }
        trx.wait_lock.store(std::ptr::null_mut(), Relaxed);
        trx.held.store(0, Relaxed);
        trx.cancel.store(0, Relaxed);
        trx.version.fetch_add(1, Relaxed);
    }

    fn client(&self, trx: &'static Trx) {
        let mut random = self.wanted.seed.wrapping_mul(7919).wrapping_add(u64::from(trx.id) + 1);
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        for _ in 0..self.wanted.transactions {
            let mut wanted: Vec<&'static Lock> = Vec::new();
            while wanted.len() < LOCKS_PER_TRX {
                let lock = self.locks[draw(self.locks.len())];
                if !wanted.iter().any(|other| std::ptr::eq(*other, lock)) {
                    wanted.push(lock);
                }
            }
            loop {
                let got = wanted.iter().take_while(|lock| {
                    let locked = self.acquire(trx, lock);
                    std::thread::sleep(Duration::from_micros(20)); // the work of the transaction
                    locked
                });
                let got = got.count();
                self.release(trx, &wanted[..got]);
                if got == LOCKS_PER_TRX {
                    break;
                }
                std::thread::sleep(Duration::from_micros(draw(500) as u64));
            }
            self.counts.finished.fetch_add(1, Relaxed);
        }
    }
}

const USAGE: &str =
    "usage: deadlock [--threads N] [--transactions N] [--locks N] [--seed N] [--fault STEP:KIND] [--every N]
                [--deadline MS] [-v]
Transactions lock records in random order; a deadlock detector in an orbit finds rings and has a victim rolled
back. Whatever happens to the detector, all transactions finish.
  --threads N        clients, 2 to 64 (8)
  --transactions N   of each client (100)
  --locks N          records, at least 3 (6): fewer are fought for more
  --seed N           of the random order (1)
  --fault STEP:KIND  the detector fails at this step in this way
      steps: start   as a call begins              update  while the update is made
             search  while it follows pointers     push    before the update is handed over
             victim  when a ring was found         return  afterwards
      kinds: segv panic exit kill; hang, which the deadline ends; leak, which the memory limit ends
  --every N          in every Nth call (2)
  --deadline MS      of a call of the detector (100)
  -v, --verbose      report every deadlock and every failure
Exit status: 0 if all transactions finished.";

fn parse() -> Option<Wanted> {
    let mut wanted = Wanted {
        threads: 8,
        transactions: 100,
        locks: 6,
        seed: 1,
        fault: None,
        every: 2,
        deadline: Duration::from_millis(100),
        verbose: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--threads" => wanted.threads = words.next()?.parse().ok()?,
            "--transactions" => wanted.transactions = words.next()?.parse().ok()?,
            "--locks" => wanted.locks = words.next()?.parse().ok()?,
            "--seed" => wanted.seed = words.next()?.parse().ok()?,
            "--every" => wanted.every = words.next()?.parse().ok()?,
            "--fault" => {
                let fault = words.next()?;
                let (step, kind) = fault.split_once(':')?;
                if !STEPS.contains(&step) || !KINDS.contains(&kind) {
                    return None;
                }
                wanted.fault = Some((step.to_owned(), kind.to_owned()));
            }
            "--deadline" => wanted.deadline = Duration::from_millis(words.next()?.parse().ok()?),
            "-v" | "--verbose" => wanted.verbose = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return None,
        }
    }
    let sound = (2..=64).contains(&wanted.threads) && wanted.locks >= LOCKS_PER_TRX && wanted.every > 0;
    sound.then_some(wanted)
}

fn main() -> std::process::ExitCode {
    let Some(wanted) = parse() else {
        eprintln!("{USAGE}");
        return 2.into();
    };
    let _ = WANTED.set(wanted.clone());
    let _ = WOKEN.set((0..wanted.threads).map(|_| Condvar::new()).collect());
    let bank = match Bank::open(wanted) {
        Ok(bank) => bank,
        Err(error) => {
            eprintln!("deadlock: {error}");
            return 1.into();
        }
    };
    std::thread::scope(|scope| {
        for trx in &bank.trxs {
            scope.spawn(|| bank.client(trx));
        }
    });
    let counts = &bank.counts;
    let wanted = u64::from(bank.wanted.threads) * u64::from(bank.wanted.transactions);
    let finished = counts.finished.load(Relaxed);
    println!("transactions finished: {finished} of {wanted}");
    let ends = counts.ends.lock().unwrap_or_else(|e| e.into_inner());
    let ends: Vec<String> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
    println!(
        "detector: {} calls: {}; {} restarts",
        counts.calls.load(Relaxed),
        ends.join(", "),
        bank.detector.stats().restarts
    );
    println!(
        "rolled back: {} by the detector, {} by timeout; updates: {} too late, {} refused",
        counts.by_detector.load(Relaxed),
        counts.by_timeout.load(Relaxed),
        counts.stale.load(Relaxed),
        counts.refused.load(Relaxed)
    );
    u8::from(finished != wanted).into()
}
