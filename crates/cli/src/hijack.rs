//! `orbit hijack`: runs a program under the executive.

use orbit_console::out::{self, Failure};
use orbit_hijack::campaign::{Campaign, Trial, Verdict, junit};
use orbit_hijack::reader::Event;
use orbit_hijack::rules::{self, Rules};
use orbit_hijack::show::{self, Clock};
use orbit_hijack::{Decider, Jump, Object, OnFailure, Options, Outcome, Session, Speed, calls, inputs};
use orbit_linux::pidfd;
use orbit_linux::signals::{self, Action, Set};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The words of a rule.
macro_rules! words {
    () => {
        "\
A rule: calls (a|b, open*), conditions in parentheses, at site N, -> action, when.
  conditions  path path2 fd address port size flags signal pid arg0..arg5
              with = != < <= > >= & (bits), ranges 1..9, \"patterns*\", fd=path(\"/var/*\")
  actions     ENOSPC, a result (0), \"another path\", size=1, delay 200ms, kill [SIGTERM], pass, count,
              ask [NAME]: the decider answers a line of JSON by `pass`, a number or an error,
              ask service NAME: a service of `orbit service` answers (orbit_question in orbit_service.h),
              virtual x100, virtual frozen, virtual -30s after 10s: of clocks (clock_*), and all waits with them
  when        after 10, once, times 3, every 5, p=0.1"
    };
}

const EXAMPLES: &str = concat!(
    "\
Examples:
  orbit hijack --trace -- ls /tmp               each call, as strace -f shows it
  orbit hijack -c -- redis-server               how often each call was made
  orbit hijack --inject 'write(fd=1) -> ENOSPC after 10' -- ./my-program
  orbit hijack --inject 'connect(port=443) -> delay 200ms p=0.1' -- curl https://example.org
  orbit hijack --inject 'openat(path=\"/etc/hosts\") -> \"/run/fake\"' -- ./my-program
  orbit hijack --policy rules.toml -- ./my-program
  orbit hijack --policy-object policy.so -- ./my-program   code in each process decides: include/orbit_hijack.h
  orbit hijack --inject 'unlink* -> ask' --decider ./decide -- ./my-program
  orbit hijack --inject 'connect(port=443) -> ask service firewall' --unanswered kill -- ./my-program
  orbit hijack --speed 3600 -- sleep 1h         an hour in a second
  orbit hijack --jump '-1h after 10s' -- ./my-server       its clock is set back while it runs
  orbit hijack --campaign eintr,enomem,short-read -- ./my-test
  orbit hijack --campaign enospc --prepare 'rm -rf db' --check './verify db' -- ./my-import db

",
    words!(),
    "

The program cannot be kept from writing into the executive by its own stores: rules
contain faults, they do not hold an attacker. A setuid program gets no rights."
);

/// Runs a program with an executive in it that sees and controls all its system calls.
///
/// The program and all it starts run unmodified: static or dynamic, threads, signals, exec. The
/// exit status is the program's, or 128 and the signal that killed it; 1 if it could not be
/// started.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Shows each call as `strace -f` does.
    #[arg(long)]
    trace: bool,
    /// Counts calls, and shows a table at the end.
    #[arg(short, long)]
    count: bool,
    /// Writes one JSON object a line, and at the end one with the counters.
    #[arg(long)]
    json: bool,
    /// Writes to this file, in place of stderr.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Shows when each call began and how long it took.
    #[arg(long)]
    times: bool,
    /// Drops records, and counts them, where the reader is too slow; else the program waits.
    #[arg(long)]
    lossy: bool,
    /// Leaves the program's code as it is: each call costs a signal.
    #[arg(long)]
    no_rewrite: bool,
    /// Runs a program whose rules cannot be attached (the session's descriptors were taken away).
    /// Else such a program does not run (status 120).
    #[arg(long)]
    fail_open: bool,
    /// Lets io_uring pass, whose operations are not seen.
    #[arg(long)]
    allow_io_uring: bool,
    /// Runs the program's clocks, sleeps and time-outs so many times faster (or slower, below 1).
    /// 0: the clocks stand still.
    #[arg(long, value_name = "TIMES")]
    speed: Option<f64>,
    /// Sets the program's real-time clock, at its start or later: +1h, '-30s after 10s'. The
    /// monotonic clock stays.
    #[arg(long, value_name = "JUMP", allow_hyphen_values = true)]
    jump: Option<String>,
    /// A rule for calls; later rules are asked after earlier ones.
    #[arg(long, value_name = "RULE")]
    inject: Vec<String>,
    /// Repeats what rules with p= drew in a session: its number is shown at the end of each.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// A file of rules: `.toml` with [[rule]] tables, otherwise a rule a line.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A shared object that decides about calls inside each process.
    #[arg(long, value_name = "FILE")]
    policy_object: Option<PathBuf>,
    /// Records what the program reads from pipes, sockets and terminals, and its random numbers, in
    /// this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["policy_object", "replay_inputs"])]
    record_inputs: Option<PathBuf>,
    /// Has the program read what was recorded in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "policy_object")]
    replay_inputs: Option<PathBuf>,
    /// What becomes of a process whose policy object faults or loops: calls pass, or the process is
    /// killed.
    #[arg(long, value_name = "WHAT", default_value = "pass", value_parser = ["pass", "kill"])]
    policy_failure: String,
    /// A program that answers the questions of `ask` rules and of the policy object; run by the
    /// shell.
    #[arg(long, value_name = "COMMAND")]
    decider: Option<String>,
    /// The socket of the host of services that `ask service` rules mean [default: that of
    /// `orbit service`].
    #[arg(long, value_name = "PATH")]
    services: Option<PathBuf>,
    /// How long a call waits for the answer to its question: 1s, 20ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    answer_within: Duration,
    /// What becomes of a process whose question has no answer by then: its call passes, or it is
    /// killed.
    #[arg(long, value_name = "WHAT", default_value = "pass", value_parser = ["pass", "kill"])]
    unanswered: String,
    /// Runs the program once for each fault of each call site, and compares: eintr, enomem,
    /// short-read, short-write, enospc, emfile, separated by commas. Exit status 1 if a run
    /// crashed, hung, lost data or leaked.
    #[arg(long, value_name = "FAULTS", conflicts_with_all = ["trace", "count", "inject", "policy"])]
    campaign: Option<String>,
    /// Runs this command before each run of a campaign, so that each begins with the same files.
    #[arg(long, value_name = "COMMAND", requires = "campaign")]
    prepare: Option<String>,
    /// Runs this command after each run of a campaign. Data is lost where it fails, and where the
    /// program reports success and the command writes other text than after the run without a
    /// fault.
    #[arg(long, value_name = "COMMAND", requires = "campaign")]
    check: Option<String>,
    /// Writes the trials of a campaign to this file, as JUnit's XML: a test case each, which fails
    /// where the run crashed, hung, lost data or leaked.
    #[arg(long, value_name = "FILE", requires = "campaign")]
    junit: Option<PathBuf>,
    /// Lists the calls and the arguments that rules can name, and the words of rules; so does
    /// `orbit hijack policies`.
    #[arg(long)]
    policies: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required_unless_present = "policies", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(args: &Args) -> out::Done {
    if args.policies || args.program == ["policies"] {
        return policies();
    }
    if let Some(faults) = &args.campaign {
        return campaign(args, faults);
    }
    let mut options = Options {
        trace: args.trace || args.json && !args.count,
        lossy: args.lossy,
        no_rewrite: args.no_rewrite,
        io_uring: args.allow_io_uring,
        fail_open: args.fail_open,
        speed: speed(args)?,
        jump: jump(args)?,
        rules: rules(args)?,
        seed: args.seed,
        object: object(args)?,
        on_object_failure: on_failure(&args.policy_failure),
        decider: decider(args)?,
        ask_limit: Some(args.answer_within),
        on_no_answer: on_failure(&args.unanswered),
        ..Options::default()
    };
    if options.rules.asking(true).is_some() {
        options.services = Some(services(args)?);
    }
    let named = |path: &PathBuf| {
        let path = path.display().to_string();
        move |error: io::Error| Failure::text(format!("{path}: {error}"))
    };
    if let Some(path) = &args.record_inputs {
        inputs::record(&mut options, path).map_err(named(path))?;
    }
    if let Some(path) = &args.replay_inputs {
        inputs::replay(&mut options, path).map_err(named(path))?;
    }
    let mut to = output(args)?;
    // It takes a while.
    let clock = (options.trace && (args.times || args.json)).then(Clock::measure);
    catch_signals()?;
    let mut session = Session::start(&options, &args.program).map_err(|error| Failure::text(error.to_string()))?;
    pass_on(session.pid())?;
    let mut threads = HashSet::new();
    let mut show_event = |event: &Event| {
        if let (true, Some(clock)) = (args.json, &clock) {
            serde_json::to_writer(&mut to, &show::as_json(event, clock))?;
            writeln!(to)?;
        } else if let Some(line) = show::line(event) {
            threads.insert(event.tid);
            if threads.len() > 1 || args.output.is_some() {
                write!(to, "[pid {:>6}] ", event.tid)?;
            }
            if let Some(clock) = &clock {
                write!(to, "{:.6} ", clock.seconds(event.time))?;
            }
            match clock.as_ref().and_then(|clock| show::duration(event, clock)) {
                Some(seconds) => writeln!(to, "{line} <{seconds:.6}>")?,
                None => writeln!(to, "{line}")?,
            }
        }
        // What is shown on a terminal is shown at once.
        if args.output.is_none() { to.flush() } else { Ok(()) }
    };
    // Where a trace cannot be written the program runs on, to its own end.
    let mut shown = Ok(());
    session.follow(|event| {
        if options.trace && shown.is_ok() {
            shown = show_event(event);
        }
        Ok(())
    })?;
    let outcome = session.outcome();
    match (shown.and_then(|()| summary(args, &mut to, &outcome)), &args.output) {
        (Ok(()), _) => {}
        // Nobody reads any more.
        (Err(error), None) if error.kind() == io::ErrorKind::BrokenPipe => {}
        (Err(error), path) => {
            let path = path.as_ref().map_or("stderr".into(), |path| path.display().to_string());
            let status = outcome.status;
            return Err(Failure::text(format!("cannot write {path}: {error}; the program ended with status {status}")));
        }
    }
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(1)))
}

/// What is written at the end: counters, what rules did, what went wrong.
fn summary(args: &Args, to: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    if args.json {
        serde_json::to_writer(&mut *to, outcome)?;
        writeln!(to)?;
    } else if args.count {
        table(to, outcome)?;
    }
    if !args.json {
        for (text, matched, applied) in &outcome.rules {
            writeln!(to, "orbit: rule `{text}`: matched {matched} times, acted {applied} times")?;
        }
    }
    if let (Some(seed), false) = (outcome.seed, args.json) {
        writeln!(to, "orbit: rules drew with --seed {seed}")?;
    }
    let failures = outcome.object_faults + outcome.object_loops;
    if failures > 0 && !args.json {
        let (faults, loops) = (outcome.object_faults, outcome.object_loops);
        writeln!(to, "orbit: the policy object faulted {faults} times and exceeded its CPU time {loops} times")?;
    }
    let by_fault = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL].iter().any(|signal| outcome.status == 128 + signal);
    if by_fault && outcome.rewritten > 0 && !args.json {
        let (sites, signal) = (outcome.rewritten, outcome.status - 128);
        writeln!(to, "orbit: the program died of signal {signal}, and {sites} of its call sites were rewritten.")?;
        writeln!(to, "orbit: does it read its own code as data? --no-rewrite leaves the code as it is (slower)")?;
    }
    if outcome.crowded > 0 && !args.json {
        writeln!(to, "orbit: {} calls came from more than 8192 sites, and cost a signal each", outcome.crowded)?;
    }
    for (why, count) in outcome.filters_refused.iter().filter(|_| !args.json) {
        writeln!(to, "orbit: {count} seccomp filters of the program were refused (EINVAL): {why}")?;
    }
    if outcome.setuid > 0 && !args.json {
        let count = outcome.setuid;
        writeln!(to, "orbit: {count} setuid or setgid programs ran without the rights of their files")?;
    }
    if outcome.asked > 0 && !args.json {
        writeln!(to, "orbit: {} questions, {} without an answer", outcome.asked, outcome.unanswered)?;
    }
    if outcome.lost + outcome.damaged > 0 && !args.json {
        writeln!(to, "orbit: {} records lost, {} rings damaged", outcome.lost, outcome.damaged)?;
    }
    to.flush()
}

fn output(args: &Args) -> Result<Box<dyn Write>, Failure> {
    Ok(match &args.output {
        Some(path) => {
            // For its owner alone: a trace has what the program reads and writes.
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            let failed = |error| Failure::text(format!("cannot write {}: {error}", path.display()));
            Box::new(BufWriter::new(file.map_err(failed)?))
        }
        None => Box::new(BufWriter::new(io::stderr())),
    })
}

fn campaign(args: &Args, faults: &str) -> out::Done {
    let mut to = output(args)?;
    let campaign = Campaign::new(faults, args.program.clone()).map_err(Failure::text)?;
    let campaign = campaign.prepare(args.prepare.clone()).check(args.check.clone());
    let trials = campaign.run(|trial| {
        if args.json {
            serde_json::to_writer(&mut to, trial)?;
            writeln!(to)?;
        } else if trial.verdict <= Verdict::Start {
            show_trial(&mut to, trial)?;
        }
        to.flush()
    })?;
    if let Some(path) = &args.junit {
        let words: Vec<_> = args.program.iter().map(|word| word.to_string_lossy()).collect();
        let written = std::fs::write(path, junit(&words.join(" "), &trials));
        written.map_err(|error| Failure::text(format!("cannot write {}: {error}", path.display())))?;
    }
    let count = |verdict| trials.iter().filter(|trial| trial.verdict == verdict).count();
    if !args.json {
        writeln!(
            to,
            "{} runs: {} crashed, {} hung, {} lost data, {} leaked, {} failed with a status, {} did not start, {} \
             unaffected, {} did not meet the fault",
            trials.len(),
            count(Verdict::Crashed),
            count(Verdict::Hung),
            count(Verdict::LostData),
            count(Verdict::Leaked),
            count(Verdict::Failed),
            count(Verdict::Start),
            count(Verdict::Unaffected),
            count(Verdict::NotMet)
        )?;
        for what in trials.first().map_or(&[][..], |trial| &trial.not_compared) {
            writeln!(to, "the {what} differs from run to run without a fault, and was not compared")?;
        }
    }
    to.flush()?;
    let is_bad = trials.iter().any(|trial| trial.verdict < Verdict::Failed);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A run that failed is a line; one that crashed, hung, lost data or leaked has its stack and the
/// command that replays it.
fn show_trial(to: &mut impl Write, trial: &Trial) -> io::Result<()> {
    let verdict = match trial.verdict {
        Verdict::LostData => "LOST DATA".to_owned(),
        verdict => format!("{verdict:?}").to_uppercase(),
    };
    writeln!(to, "{verdict:<10} status {:<4} {}  site {}", trial.status, trial.rule, trial.site)?;
    match trial.verdict {
        Verdict::Failed => return Ok(()),
        Verdict::Start => return writeln!(to, "    the loader itself gave up, before the program ran"),
        _ => {}
    }
    for finding in &trial.findings {
        writeln!(to, "    {finding}")?;
    }
    for (nth, frame) in trial.stack.iter().enumerate() {
        writeln!(to, "    #{nth:<2} {frame}")?;
    }
    writeln!(to, "    replay: {}", trial.replay)
}

fn jump(args: &Args) -> Result<Option<Jump>, Failure> {
    let Some(text) = &args.jump else { return Ok(None) };
    let wrong = || Failure::text(format!("--jump `{text}` is no jump; right would be: +1h, or '-30s after 10s'"));
    Jump::parse(text).map(Some).ok_or_else(wrong)
}

fn speed(args: &Args) -> Result<Option<Speed>, Failure> {
    let Some(times) = args.speed else { return Ok(None) };
    if times == 0.0 {
        return Ok(Some(Speed::FROZEN));
    }
    let wrong = || Failure::text(format!("--speed {times} is beyond what clocks can do: 0, or 0.001 to 1000000"));
    Speed::times(times).map(Some).ok_or_else(wrong)
}

fn object(args: &Args) -> Result<Option<Object>, Failure> {
    let load = |path: &PathBuf| Object::load(path).map_err(|error| Failure::text(error.to_string()));
    args.policy_object.as_ref().map(load).transpose()
}

fn decider(args: &Args) -> Result<Option<Decider>, Failure> {
    let start = |line: &String| {
        Decider::command(line).map_err(|error| Failure::text(format!("cannot start the decider: {error}")))
    };
    args.decider.as_ref().map(start).transpose()
}

/// The host of services, which must be there when the program starts.
fn services(args: &Args) -> Result<Decider, Failure> {
    let socket = args.services.clone().unwrap_or_else(orbit_service::default_socket);
    let absent = |error: io::Error| {
        let socket = socket.display();
        let way_out = "start one with orbit service run, or name its socket with --services";
        Failure::text(format!("no host of services at {socket}, which a rule asks: {error}: {way_out}"))
    };
    std::os::unix::net::UnixStream::connect(&socket).map_err(absent)?;
    Ok(orbit_service::decider(&socket, |why| drop(writeln!(io::stderr(), "orbit: no answer: {why}"))))
}

fn on_failure(word: &str) -> OnFailure {
    if word == "kill" { OnFailure::Kill } else { OnFailure::Pass }
}

/// `20ms`.
fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[split..] {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        _ => return Err("write a time with its unit: 20ms, 1s".to_owned()),
    };
    let number = text[..split].parse::<u32>().map_err(|error| error.to_string())?;
    unit.checked_mul(number).ok_or_else(|| "that is longer than a program can wait".to_owned())
}

fn rules(args: &Args) -> Result<Rules, Failure> {
    let text = |error: &dyn std::fmt::Display| Failure::text(error.to_string());
    let mut rules = Rules::default();
    if let Some(path) = &args.policy {
        let content =
            std::fs::read_to_string(path).map_err(|error| Failure::text(format!("{}: {error}", path.display())))?;
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        let parsed = if is_toml { Rules::parse_toml(&content) } else { Rules::parse(&content) };
        rules = parsed.map_err(|error| Failure::text(format!("{}: {error}", path.display())))?;
    }
    for rule in &args.inject {
        let more = Rules::parse(rule).map_err(|error| text(&error))?;
        rules.extend(more).map_err(|error| text(&error))?;
    }
    Ok(rules)
}

/// Calls, what rules can name of them, and the words of the language.
fn policies() -> out::Done {
    let mut to = BufWriter::new(io::stdout().lock());
    writeln!(to, "{:>4}  {:24} arguments that rules can name, beside arg0 to arg5", "nr", "call")?;
    for call in calls::all() {
        writeln!(to, "{:>4}  {:24} {}", call.number, call.name, rules::named_arguments(call).join(" "))?;
    }
    writeln!(to, "\n{}", words!())?;
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn table(to: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    let mut calls: Vec<_> = outcome.calls.iter().collect();
    calls.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    writeln!(to, "{:>12}  call", "count")?;
    for (name, count) in &calls {
        writeln!(to, "{count:>12}  {name}")?;
    }
    let all: u64 = outcome.calls.values().sum();
    writeln!(
        to,
        "{all:>12}  all; {} by signal, {} of {} sites rewritten",
        outcome.traps, outcome.rewritten, outcome.sites
    )
}

/// The guest's first process.
static GUEST: OnceLock<OwnedFd> = OnceLock::new();
/// A signal from before there was one; 0: none.
static EARLY: AtomicI32 = AtomicI32::new(0);

extern "C" fn to_guest(signal: libc::c_int, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel's information is live while the handler runs; errno is the thread's own,
    // and the interrupted code finds it as it was.
    unsafe {
        // A terminal sends to the whole group, and so to the program too.
        if (*info).si_code == libc::SI_KERNEL {
            return;
        }
        let errno = *libc::__errno_location();
        match GUEST.get() {
            // It fails where the program has ended, and the end of this one is near.
            Some(guest) => drop(pidfd::send_signal(guest.as_fd(), signal)),
            None => EARLY.store(signal, Ordering::SeqCst),
        }
        *libc::__errno_location() = errno;
    }
}

/// What a service manager or a shell sends to this process is meant for the program.
const FORWARDED: [libc::c_int; 7] =
    [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// Signals are the program's to follow: else it would run on unwatched. Called before it starts.
fn catch_signals() -> io::Result<()> {
    let action = Action::handler(to_guest as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART, &Set::of([]));
    for signal in FORWARDED.into_iter().filter(|signal| !signals::is_ignored(*signal)) {
        // SAFETY: the handler has this signature, makes one system call, and is never unmapped.
        unsafe { action.install(signal)? };
    }
    Ok(())
}

/// From here on signals go to this process, with the one that came before.
fn pass_on(pid: u32) -> io::Result<()> {
    let opened = pidfd::open(pid as i32)?;
    let guest = GUEST.get_or_init(|| opened);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        // It fails where the program has ended already.
        let _ = pidfd::send_signal(guest.as_fd(), early);
    }
    Ok(())
}
