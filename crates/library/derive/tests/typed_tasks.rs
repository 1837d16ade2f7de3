//! Tasks as Rust functions: values in and out, a store, what a call that does not return gives, and
//! collections in areas.

use std::hash::RandomState;
use std::time::Duration;

use hashbrown::HashMap;
use orbit::area::AreaAllocator;
use orbit::{Area, Kind, Orbit, Shown, Task, Update};
use orbit_derive::{Answer, Value};

orbit::init_before_main!();

#[derive(Clone, Debug, PartialEq, Value, Answer)]
struct Order {
    text: String,
    lines: Vec<(u32, f64)>,
    urgent: Option<bool>,
}

#[derive(Value, Answer, Debug, PartialEq)]
struct Nothing;

#[derive(Value)]
struct Query {
    table: Shown<Table>,
    key: u64,
}

type Table = HashMap<u64, u64, RandomState, AreaAllocator>;

#[test]
fn the_library_was_set_up_before_main() {
    // The harness has threads by now; a process made before it had them comes before them in the
    // numbers of processes.
    let first_thread = std::process::id();
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let numbers = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let next_thread = numbers.filter(|number| *number != first_thread).min();
    let task = Task::new("early", |_: &mut (), (): &()| {
        // SAFETY: asks for a number.
        unsafe { libc::getppid() as u32 }
    });
    let template = task.expect("task").call(&[], &()).expect("call");
    // Numbers begin anew only after millions.
    assert!(next_thread.is_none_or(|next| template < next), "{template} is younger than a thread: {next_thread:?}");
}

#[test]
fn values_of_any_shape_come_and_go() {
    let task = Task::new("echo", |calls: &mut u64, order: &Order| {
        *calls += 1;
        Order { text: format!("{} {calls}", order.text), ..order.clone() }
    });
    let task = task.expect("task");
    for nth in 1..=3u64 {
        let order = Order { text: "x".repeat(5000), lines: vec![(1, 2.5); nth as usize], urgent: Some(false) };
        let back = task.call(&[], &order).expect("call");
        assert_eq!(back, Order { text: format!("{} {nth}", order.text), ..order });
    }
    let word = Task::new("word", |_: &mut (), (a, b): &(u32, u32)| u64::from(*a) << 32 | u64::from(*b)).expect("task");
    assert_eq!(word.call(&[], &(u32::MAX, 7)).expect("call"), u64::MAX << 32 | 7);
    let sizeless = Task::new("sizeless", |_: &mut (), units: &Vec<()>| units.clone()).expect("task");
    assert_eq!(sizeless.call(&[], &vec![(); 1000]).expect("call").len(), 1000);
    let unit = Task::new("unit", |_: &mut (), Nothing: &Nothing| Nothing).expect("task");
    assert_eq!(unit.call(&[], &Nothing).expect("call"), Nothing);
}

#[test]
fn a_large_value_and_the_tasks_own_updates_do_not_mix() {
    let task = Task::new("large", |_: &mut (), len: &usize| {
        orbit::push(Update::new().data(b"of the task's own")).expect("push");
        vec![7u8; *len]
    });
    let task = task.expect("task");
    for len in [0, 1, 100_000, 600_000] {
        assert_eq!(task.call(&[], &len).expect("call"), vec![7; len]);
    }
}

#[test]
fn the_store_is_made_anew_after_a_crash_and_the_error_says_where() {
    let builder = Orbit::builder("fragile").deadline(Duration::from_secs(60));
    let task = builder.task_with(
        || vec![40u32],
        |store: &mut Vec<u32>, crash: &bool| {
            store.push(1);
            assert!(!crash, "as requested");
            store.iter().sum::<u32>()
        },
    );
    let task = task.expect("task");
    assert_eq!(task.call(&[], &false).expect("call"), 41);
    assert_eq!(task.call(&[], &false).expect("call"), 42);
    let e = task.call(&[], &true).expect_err("a panic");
    assert!(e.kind() == Kind::Failed && e.to_string().contains("fragile") && e.to_string().contains("SIGABRT"), "{e}");
    assert_eq!(task.call(&[], &false).expect("call"), 41);
}

#[test]
fn a_call_can_be_awaited() {
    use std::task::{Context, Poll, Wake};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let task = Task::new("awaited", |_: &mut (), text: &String| text.chars().rev().collect::<String>()).expect("task");
    let mut call = Box::pin(task.call_async(&[], &"abc".repeat(1000)).expect("call"));
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let value = loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(value) => break value,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
        }
    };
    assert_eq!(value.expect("value"), "cba".repeat(1000));
}

#[test]
fn a_hash_map_lives_in_an_area_and_a_task_reads_copies_and_changes_it() {
    let task = Task::new("reader", |_: &mut (), query: &Query| {
        let table = query.table.get();
        // A copy, from the orbit's own heap, as is what it grows to.
        let mut mine = table.clone();
        mine.extend((0..10_000).map(|n| (1_000_000 + n, n)));
        (table.get(&query.key).copied(), table.len(), mine.len())
    });
    let task = task.expect("task");
    let area = Area::builder("table").limit(64 << 20).build().expect("area");
    let mut table = Table::with_hasher_in(RandomState::new(), area.allocator());
    table.extend((0..1000).map(|n| (n, n * n)));
    let table = area.place(table).expect("place");
    for nth in 0..5 {
        // SAFETY: this test alone uses it, and no call runs on it now: calls read their snapshots.
        unsafe { (*table.as_ptr()).insert(1000 + nth, nth) };
        // SAFETY: it lives in the area that the call names.
        let query = Query { table: unsafe { Shown::new(table) }, key: 30 };
        let expected = (Some(900), 1001 + nth as usize, 11_001 + nth as usize);
        assert_eq!(task.call(&[&area], &query).expect("call"), expected);
    }
    task.orbit().detach(&area);
    let e = area.destroy().expect_err("a collection lives in it");
    assert!(e.to_string().contains("collection"), "{e}");
    let used = area.used();
    // SAFETY: nobody uses it from here on.
    unsafe {
        std::ptr::drop_in_place(table.as_ptr());
        area.free(table.cast()).expect("free");
    }
    assert!(area.used() == 0 && used > 0, "{} of {used} bytes left", area.used());
    area.destroy().expect("destroy");
}

#[test]
fn a_collection_outlives_the_areas_handle() {
    let area = Area::new(1 << 20).expect("area");
    let mut table = Table::with_hasher_in(RandomState::new(), area.allocator());
    table.insert(1, 2);
    drop(area);
    table.extend((0..100).map(|n| (n, n)));
    assert_eq!((table.len(), table[&50]), (100, 50));
}
