//! What a module asks for, its replies and its reports take a bounded part of the core's memory.

mod common;
use common::{LIMIT, event, take_all, until};
use orbit_rmk::{Command, Context, Core, Event, Filter, Installed, Kind, Module, ModuleOptions, Reply, Report};
use std::time::{Duration, Instant};

/// Commands with a reply that no call takes, and commands with one that a call does.
const LONG: u64 = 20;
const SHORT: u64 = 200;

/// Reads its own memory in its start, and reports what became of that.
struct Greedy {
    memory: Vec<u8>,
    /// Replies: read, longer than a call, rejected because too many wait.
    came: [u64; 3],
}

impl Module for Greedy {
    const NAME: &'static str = "greedy";
    const PINS: &'static [&'static str] = &["P_MEM"];

    fn create(_settings: &[u8]) -> Greedy {
        Greedy { memory: vec![7; 32 << 20], came: [0; 3] }
    }
    fn start(&mut self, context: &mut Context) {
        let (pid, address) = (std::process::id(), self.memory.as_ptr() as u64);
        for n in 0..LONG + SHORT {
            let length = if n < LONG { 32 << 20 } else { 32 << 10 };
            context.issue_cmd("P_MEM", Command::MemoryRead { pid, address, length });
        }
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {}
    fn reply(&mut self, context: &mut Context, _ticket: u64, reply: &Result<Reply, String>) {
        let which = match reply {
            Ok(_) => 0,
            Err(why) if why.contains("a module takes") => 1,
            Err(why) if why.contains("wait for it already") => 2,
            Err(why) => panic!("{why}"),
        };
        self.came[which] += 1;
        if self.came.iter().sum::<u64>() == LONG + SHORT {
            let [read, long, waiting] = self.came;
            context.report(format!("{read} {long} {waiting}"));
        }
    }
}

/// Each period reports so many times so many bytes, as its settings say.
struct Talks {
    times: u64,
    bytes: usize,
    made: u64,
}

impl Module for Talks {
    const NAME: &'static str = "talks";
    const PINS: &'static [&'static str] = &[];
    const PERIOD: Option<Duration> = Some(Duration::from_millis(5));

    fn create(settings: &[u8]) -> Talks {
        let text = String::from_utf8_lossy(settings);
        let (times, bytes) = text.split_once(' ').expect("two words");
        Talks { times: times.parse().expect("a number"), bytes: bytes.parse().expect("a number"), made: 0 }
    }
    fn start(&mut self, _context: &mut Context) {}
    fn event(&mut self, _context: &mut Context, _event: &Event) {}
    fn tick(&mut self, context: &mut Context) {
        for _ in 0..self.times {
            context.report(format!("{} {}", self.made, "x".repeat(self.bytes)));
            self.made += 1;
        }
    }
}

/// Issues so many commands in its start and so many in each reply, as its settings say, and reports
/// its ticks.
struct Asks {
    first: u32,
    each: u32,
}

impl Module for Asks {
    const NAME: &'static str = "asks";
    const PINS: &'static [&'static str] = &["P_PERI"];
    const PERIOD: Option<Duration> = Some(Duration::from_millis(5));

    fn create(settings: &[u8]) -> Asks {
        let text = String::from_utf8_lossy(settings);
        let (first, each) = text.split_once(' ').expect("two words");
        Asks { first: first.parse().expect("a number"), each: each.parse().expect("a number") }
    }
    fn start(&mut self, context: &mut Context) {
        for _ in 0..self.first {
            context.issue_cmd("P_PERI", Command::HeartbeatStop);
        }
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {}
    fn reply(&mut self, context: &mut Context, _ticket: u64, _reply: &Result<Reply, String>) {
        for _ in 0..self.each {
            context.issue_cmd("P_PERI", Command::HeartbeatStop);
        }
    }
    fn tick(&mut self, context: &mut Context) {
        context.report("tick");
    }
}

/// The most memory that this process had, in MiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") >> 10
}

fn first_report(module: &Installed, wanted: impl Fn(&Report) -> bool) -> Report {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < 4 * LIMIT, "{:?}", module.status());
        if let Some(report) = module.report(Duration::from_millis(100)).filter(&wanted) {
            return report;
        }
    }
}

fn replies_beyond_the_bound_are_errors(core: &Core) {
    let options = ModuleOptions { memory: 256 << 20, deadline: LIMIT, ..ModuleOptions::default() };
    let greedy = core.install::<Greedy>(options).expect("greedy");
    let Report::Said(text) = first_report(&greedy, |_| true) else { panic!("{:?}", greedy.status()) };
    let came: Vec<u64> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
    assert_eq!(came[1], LONG, "{text}");
    assert!(came[0] > 0 && came[2] > 0 && came[0] + came[2] == SHORT, "some are read, the rest refused: {text}");
}

fn reports_that_nobody_reads_have_bounded_bytes(core: &Core) {
    let options = ModuleOptions { settings: b"20 100000".to_vec(), deadline: LIMIT, ..ModuleOptions::default() };
    let talks = core.install::<Talks>(options).expect("talks");
    until("most reports are dropped", || talks.status().unread > 100);
    // It continues meanwhile, and what is dropped between two scans has a report of its own.
    let mut dropped = 0;
    let text = loop {
        match talks.report(Duration::ZERO) {
            Some(Report::Dropped(more)) => dropped += more,
            Some(Report::Said(text)) => break text,
            other => panic!("{other:?}, {:?}", talks.status()),
        }
    };
    assert!(dropped > 100, "they are reported first: {dropped}");
    let number: u64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(number >= dropped, "older ones went first: {number}, {dropped}");
}

fn a_module_that_requests_too_much_in_a_call_has_failed(core: &Core) {
    let settings = b"20000 1".to_vec();
    let options = ModuleOptions { settings, give_up: 1, deadline: LIMIT, ..ModuleOptions::default() };
    let talks = core.install::<Talks>(options).expect("talks");
    match first_report(&talks, |_| true) {
        Report::Failed(how) => assert!(how.contains("16384 things"), "{how}"),
        other => panic!("{other:?}"),
    }
}

fn a_module_that_requests_more_than_it_takes_has_failed_and_others_continue(core: &Core) {
    let other = core.client("other");
    other.use_pin("P_PERI").expect("P_PERI");
    let period = Filter::everyone().interval(Duration::from_millis(5));
    other.subscr_event("P_PERI", Kind::Period, period).expect("a subscription");
    let install = |settings: &[u8]| {
        let settings = settings.to_vec();
        let options = ModuleOptions { settings, give_up: 1, deadline: LIMIT, ..ModuleOptions::default() };
        core.install::<Asks>(options).expect("asks")
    };
    let greedy = install(b"1 500");
    let failed = first_report(&greedy, |report| matches!(report, Report::Failed(_)));
    assert!(format!("{failed:?}").contains("16384 wait"), "{failed:?}");
    // One command for each reply is no more than it takes, and its ticks come all the same.
    let steady = install(b"16000 1");
    first_report(&steady, |report| *report == Report::Said("tick".into()));
    take_all(&other);
    event(&other, "a period beside them", |_| true);
    assert_eq!(steady.status().failures, 0);
}

fn subscriptions_beyond_the_limit_are_refused(core: &Core) {
    let module = core.client("subscriber");
    module.use_pin("P_MEM").expect("P_MEM");
    let subscribe = |filter: Filter| module.subscr_event("P_MEM", Kind::PagesWritten, filter);
    let few = || Filter::everyone().queue(1);
    for (filter, why) in [
        (few().keys(&vec![1; 513]), "513 keys, 512 at most"),
        (few().cpus(&vec![0; 257]), "257 CPUs, 256 at most"),
        (Filter::pids(&vec![1; 16_385]).queue(1), "16385 processes, 16384 at most"),
        (few().queue(u32::MAX), "lower Filter::queue"),
    ] {
        let error = subscribe(filter).expect_err("too long").to_string();
        assert!(error.contains(why) && error.contains("subscriber") && error.contains("P_MEM"), "{error}");
    }
    let ids: Vec<u64> = (0..256).map(|_| subscribe(few()).expect("a subscription")).collect();
    let error = subscribe(few()).expect_err("one too many").to_string();
    assert!(error.contains("256 at most: unsubscribe one"), "{error}");
    module.unsubscr_event(ids[0]).expect("ended");
    subscribe(few()).expect("there is room again");
    let other = core.client("other");
    other.use_pin("P_MEM").expect("P_MEM");
    other.subscr_event("P_MEM", Kind::PagesWritten, few()).expect("another's limit is its own");
}

/// One after the other: the memory is that of the whole process.
#[test]
fn a_module_does_not_use_up_the_core_s_memory() {
    let core = orbit_pins::core().expect("a core");
    for part in [
        replies_beyond_the_bound_are_errors,
        reports_that_nobody_reads_have_bounded_bytes,
        a_module_that_requests_too_much_in_a_call_has_failed,
        a_module_that_requests_more_than_it_takes_has_failed_and_others_continue,
        subscriptions_beyond_the_limit_are_refused,
    ] {
        part(&core);
        let most = most_memory();
        assert!(most < 150, "{most} MiB");
    }
}
