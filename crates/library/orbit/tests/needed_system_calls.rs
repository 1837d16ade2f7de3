//! Main works under a filter that allows, once the library is set up, only the system calls of
//! `orbit_linux::needed`; without one of them it works too, or its error names the call. So it does
//! under one that is there before set-up, allows all of its lists, and kills for anything else.

use std::ffi::{c_long, c_void};
use std::process::Command;
use std::time::Duration;

use orbit::{Area, CallOptions, Orbit, Outcome, Restart, Update};
use orbit_linux::{needed, seccomp};

unsafe extern "C" fn sum(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of 512 numbers in an area, or 0.
    let total = unsafe { (0..512).map(|n| *(*args.cast::<*const i64>()).add(n)).sum() };
    orbit::push(Update::new().data(b"seen")).expect("push");
    total
}

/// All that a main does with orbits: small and large snapshots, updates, a crash, a deadline,
/// orbits made and ended.
fn live(knows_ends: bool) -> orbit::Result<()> {
    let small = Area::builder("small").limit(64 << 10).build()?;
    let large = Area::builder("large").size(64 << 20).limit(64 << 20).build()?;
    let numbers = small.place([1i64; 512])?.as_ptr();
    let bytes = large.alloc(48 << 20, 4096)?.as_ptr();
    for round in 0..1i64 {
        let orbit = Orbit::builder("adder").entry(sum).restart(Restart::Always).build()?;
        let options = CallOptions::new().deadline(Duration::from_secs(60));
        // SAFETY: an object of the area, which this thread alone uses.
        unsafe { (*numbers)[0] = round };
        let args = (numbers as usize).to_ne_bytes();
        for dirty in [0, 1 << 20, 48 << 20] {
            // SAFETY: so many bytes were allocated.
            unsafe { bytes.write_bytes(round as u8 + 1, dirty) };
            let call = orbit.call_async_with(&[&small, &large], &args, &options)?;
            call.fd()?;
            let outcome = call.wait()?;
            assert_eq!(outcome, Outcome::Returned(511 + round));
            assert_eq!(call.try_pull().expect("an update").first_data(), Some(&b"seen"[..]));
        }
        let crashed = orbit.call_with(&[&small], &0usize.to_ne_bytes(), &options)?;
        // Without some calls main cannot ask how it ended.
        assert!(crashed.is_failure(), "{crashed}");
        let by_fault = matches!(&crashed, Outcome::Crashed(crash) if crash.signal == libc::SIGSEGV);
        assert!(by_fault || !knows_ends, "{crashed}");
        assert_eq!(orbit.call_with(&[&small, &large], &args, &options)?, Outcome::Returned(511 + round));
        orbit.destroy()?;
    }
    orbit::shutdown()
}

/// Without these no program gets as far as an error: locks, the end of a process, return from a
/// signal, output; and without `clock_nanosleep` Rust's library panics.
const UNNAMED: &[&str] = &["brk", "clock_nanosleep", "exit", "exit_group", "futex", "getpid", "rt_sigreturn", "write"];

/// Without these the first call of the library fails.
const AT_ONCE: &[&str] =
    &["eventfd2", "fcntl", "ftruncate", "memfd_create", "mmap", "mprotect", "newfstatat", "ppoll", "recvmsg"];

const NAME: &str = "ORBIT_TEST_NEEDED";
/// The filter that is there first, in place of a call's name.
const BEFORE_SET_UP: &str = "before-set-up";
/// The root directory, without files, to work in.
const ROOT: &str = "ORBIT_TEST_EMPTY_ROOT";

/// Calls that this test's harness makes, not the library.
const HARNESS: &[libc::c_long] = &[libc::SYS_sigaltstack, libc::SYS_sched_yield];

/// Main under a filter that lacks one call; `-`: none.
fn under_a_filter(missing: &str) {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(100));
        println!("WAITS FOR EVER");
        // The filter lacks what a signal to itself takes.
        std::process::exit(3);
    });
    if let Some(empty) = std::env::var_os(ROOT) {
        // Without `/proc`, or any other file.
        std::os::unix::fs::chroot(&empty).and_then(|()| std::env::set_current_dir("/")).expect("a root of its own");
    }
    if missing == BEFORE_SET_UP {
        let listed = needed::OPTIONAL.iter().chain(needed::SET_UP).map(|(_, number)| *number);
        let allowed: Vec<_> = needed::numbers_without(None).into_iter().chain(listed).collect();
        seccomp::install_only_or_kill(&allowed).expect("the filter was tried before");
        match live(true) {
            Ok(()) => println!("WORKS"),
            Err(error) => println!("SAYS {:?} {error}", error.kind()),
        }
        return;
    }
    orbit::init().expect("set up");
    let mut allowed = needed::numbers_without(Some(missing));
    allowed.extend(HARNESS);
    seccomp::install_only(&allowed).expect("the filter was tried before");
    match live(false) {
        Ok(()) => println!("WORKS"),
        Err(error) => println!("SAYS {:?} {error}", error.kind()),
    }
}

#[test]
fn each_needed_call_is_named_by_the_error_without_it() {
    if let Ok(missing) = std::env::var(NAME) {
        return under_a_filter(&missing);
    }
    if let Some(why) = seccomp::probe().reason() {
        return println!("SKIP: needs seccomp filters: {why}");
    }
    let me = std::env::current_exe().expect("own path");
    let ran_in = |missing: &str, root: Option<&std::path::Path>| {
        let test = ["--exact", "each_needed_call_is_named_by_the_error_without_it", "--nocapture"];
        let mut command = Command::new(&me);
        command.args(test).env(NAME, missing);
        if let Some(root) = root {
            command.env(ROOT, root);
        }
        let output = command.output().expect("run");
        format!(
            "{}{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let ran = |missing: &str| ran_in(missing, None);
    for filter in ["-", BEFORE_SET_UP] {
        let text = ran(filter);
        assert!(text.contains("WORKS"), "{filter}, with all that is listed:\n{text}");
    }
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        let empty = std::env::temp_dir().join(format!("orbit-empty-{}", std::process::id()));
        std::fs::create_dir(&empty).expect("a directory");
        let texts = ["-", BEFORE_SET_UP].map(|filter| ran_in(filter, Some(&empty)));
        std::fs::remove_dir(&empty).expect("nothing was left in it");
        assert!(texts.iter().all(|text| text.contains("WORKS")), "in a root without /proc:\n{texts:?}");
    } else {
        println!("SKIP: needs root for a root directory of its own");
    }
    let full = std::env::var_os("ORBIT_TEST_FULL").is_some();
    for missing in needed::names().filter(|name| !UNNAMED.contains(name) && (full || AT_ONCE.contains(name))) {
        let text = ran(missing);
        let named = text.contains("SAYS") && text.contains(missing);
        assert!(text.contains("WORKS") || named, "without {missing}:\n{text}");
        println!("without {missing}: {}", if named { "named" } else { "works" });
    }
}

#[test]
fn the_page_for_adopters_lists_them() {
    let Ok(page) = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/adopting.md")) else {
        return println!("SKIP: needs the project's documents");
    };
    let lists = needed::OPTIONAL.iter().chain(needed::SET_UP).map(|(name, _)| *name);
    for name in needed::names().chain(lists) {
        assert!(page.contains(&format!("`{name}`")), "docs/adopting.md lacks {name}");
    }
}
