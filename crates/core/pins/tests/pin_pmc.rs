//! P_PMC counts for one thread, tells the unit, starts, stops, is written, and raises an event at
//! its mark; one module's counter is out of another's reach.

mod common;
use common::{Forked, event, until};
use orbit_rmk::{Client, Command, Filter, Kind, Measure, Reply, Target, Unit};

fn busy() -> Forked {
    Forked::new(|| {
        let mut x = 0u64;
        loop {
            x = std::hint::black_box(x.wrapping_add(1));
        }
    })
}

fn counter(module: &Client, command: &Command) -> (u64, u64, Unit) {
    match module.issue_cmd("P_PMC", command) {
        Ok(Reply::Counter { id, value, unit }) => (id, value, unit),
        other => panic!("{other:?}"),
    }
}

fn perf_or_skip(module: &Client) -> bool {
    match module.use_pin("P_PMC") {
        Ok(()) => true,
        Err(error) => {
            println!("SKIP: needs perf events ({error})");
            false
        }
    }
}

#[test]
fn a_thread_is_counted_between_start_and_stop() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("counts");
    if !perf_or_skip(&module) {
        return;
    }
    let guest = busy();
    let target = Target::Thread { tid: guest.pid() };
    let (id, _, unit) = counter(&module, &Command::CounterOpen { target, measure: Measure::Instructions, reach: 0 });
    println!("instructions are counted as {unit:?}");
    let read = || counter(&module, &Command::CounterRead { id }).1;
    assert_eq!(read(), 0, "opened stopped");
    module.issue_cmd("P_PMC", &Command::CounterStart { id }).expect("start");
    until("a million counted", || read() > 1_000_000);
    module.issue_cmd("P_PMC", &Command::CounterStop { id }).expect("stop");
    let stopped = read();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(read(), stopped, "stopped");
    module.issue_cmd("P_PMC", &Command::CounterWrite { id, value: 42 }).expect("write");
    assert_eq!(read(), 42);
    let stranger = core.client("stranger");
    stranger.use_pin("P_PMC").expect("P_PMC");
    let error = stranger.issue_cmd("P_PMC", &Command::CounterRead { id }).expect_err("not its own").to_string();
    assert!(error.contains("stranger") && error.contains("P_PMC"), "{error}");
    module.issue_cmd("P_PMC", &Command::CounterClose { id }).expect("close");
    assert!(module.issue_cmd("P_PMC", &Command::CounterRead { id }).is_err(), "closed");
}

#[test]
fn a_counter_that_reaches_its_mark_raises_an_event() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("mark");
    if !perf_or_skip(&module) {
        return;
    }
    module.subscr_event("P_PMC", Kind::CounterReached, Filter::everyone()).expect("a subscription");
    let guest = busy();
    let target = Target::Thread { tid: guest.pid() };
    let (id, ..) = counter(&module, &Command::CounterOpen { target, measure: Measure::CpuTime, reach: 5_000_000 });
    module.issue_cmd("P_PMC", &Command::CounterStart { id }).expect("start");
    for times in 1..=3 {
        let seen = event(&module, "the mark", |event| event.values[0] == id && event.values[1] >= times * 5_000_000);
        assert_eq!((seen.kind(), seen.tid), (Some(Kind::CounterReached), guest.pid()));
    }
}

#[test]
fn one_module_has_so_many_counters_and_no_more() {
    let core = orbit_pins::core().expect("a core");
    let (module, other) = (core.client("many"), core.client("other"));
    if !perf_or_skip(&module) || !perf_or_skip(&other) {
        return;
    }
    let target = Target::Thread { tid: std::process::id() };
    let open = Command::CounterOpen { target, measure: Measure::CpuTime, reach: 0 };
    let ids: Vec<u64> = (0..256).map(|_| counter(&module, &open).0).collect();
    let refused = module.issue_cmd("P_PMC", &open).expect_err("too many").to_string();
    assert!(refused.contains("P_PMC") && refused.contains("256"), "{refused}");
    counter(&other, &open);
    module.issue_cmd("P_PMC", &Command::CounterClose { id: ids[0] }).expect("close");
    counter(&module, &open);
}

#[test]
fn faults_and_switches_are_always_there() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("software");
    if !perf_or_skip(&module) {
        return;
    }
    // SAFETY: the child sleeps over and over.
    let guest = Forked::new(|| unsafe {
        loop {
            libc::usleep(1000);
        }
    });
    let target = Target::Thread { tid: guest.pid() };
    let (id, ..) = counter(&module, &Command::CounterOpen { target, measure: Measure::Switches, reach: 0 });
    module.issue_cmd("P_PMC", &Command::CounterStart { id }).expect("start");
    // An ordinary user sees nothing that the kernel does, switches included.
    if orbit_testing::is_root() {
        until("ten switches", || counter(&module, &Command::CounterRead { id }).1 >= 10);
    }
}
