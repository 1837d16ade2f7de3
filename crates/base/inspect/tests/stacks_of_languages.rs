//! Functions have the names their language gives them: C++, Rust and Go, Go also when stripped; by
//! these they are found.

mod common;
use common::{Dir, Running, have, until};
use orbit_inspect::stacks::{ThreadStack, Unwinder};
use orbit_inspect::{Maps, functions};
use std::process::Command;

fn stack_with(pid: i32, name: &str) -> ThreadStack {
    let mut u = Unwinder::new(pid).unwrap();
    until(name, || u.capture(&[]).into_iter().find(|s| names(s).iter().any(|n| n.contains(name))))
}

fn names(s: &ThreadStack) -> Vec<&str> {
    s.frames.iter().filter_map(|f| f.function.as_deref()).collect()
}

fn in_order(s: &ThreadStack, want: &[&str]) {
    let all = names(s);
    let mut rest = all.iter();
    for w in want {
        assert!(rest.any(|n| n.contains(w)), "{w} is missing or out of order in {all:#?}");
    }
}

#[test]
fn cpp() {
    let dir = Dir::new("names-cpp");
    let program = dir.build("names.cpp", &["-O2", "-g", "-fomit-frame-pointer"]);
    let p = Running::program(&program, &[]);
    let s = stack_with(p.pid(), "::hold");
    in_order(&s, &["outer::Box<std::", "outer::call(outer::Box<std::", "main"]);
    let hold = s.frames.iter().find(|f| f.function.as_ref().is_some_and(|n| n.contains("::hold("))).unwrap();
    assert!(hold.file.as_ref().unwrap().ends_with("names.cpp"), "{hold}");
}

/// The function that `rust` searches for; it runs in a thread of this very program, started again.
#[inline(never)]
fn rust_holds_here(n: u64) -> u64 {
    println!("\nready");
    loop {
        std::thread::park();
        std::hint::black_box(n);
    }
}

#[test]
fn rust() {
    if std::env::var_os("ORBIT_INSPECT_HOLD").is_some() {
        let t = std::thread::spawn(|| std::hint::black_box(rust_holds_here(3)) + 1);
        let _ = t.join();
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "rust", "--nocapture"]).env("ORBIT_INSPECT_HOLD", "1");
    let p = Running::start(&mut again);
    let s = stack_with(p.pid(), "stacks_of_languages::rust_holds_here");
    assert!(!names(&s).iter().any(|n| n.starts_with("_ZN") || n.starts_with("_R")), "{:#?}", names(&s));
    let f = s.frames.iter().find(|f| f.function.as_ref().is_some_and(|n| n.ends_with("rust_holds_here"))).unwrap();
    assert!(f.file.as_ref().unwrap().ends_with("stacks_of_languages.rs"), "{f}");
}

#[test]
fn go() {
    if !have("go", "version") {
        println!("SKIP: needs go");
        return;
    }
    let dir = Dir::new("names-go");
    for flags in ["", "-s -w"] {
        let out = dir.0.join("names");
        let built = Command::new("go")
            .args(["build", "-ldflags", flags, "-o"])
            .arg(&out)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/names.go"))
            .env("CGO_ENABLED", "0")
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "-p=1")
            .env("GOTOOLCHAIN", "local")
            .stdin(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(built.success());
        let p = Running::program(&out, &[]);
        let s = stack_with(p.pid(), "main.(*keeper).hold");
        in_order(&s, &["main.(*keeper).hold", "main.middle", "main.main", "runtime.main"]);
        let f = s.frames.iter().find(|f| f.function.as_deref() == Some("main.middle")).unwrap();
        assert!(f.file.as_ref().unwrap().ends_with("names.go"), "{f}");
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/names.go")).unwrap();
        assert!(text.lines().nth(f.line.unwrap() as usize - 1).unwrap().contains("k.hold(fds) + 1"), "{f}");
        println!("go {flags:?}: {:#?}", names(&s));
        let maps = Maps::of(p.pid()).unwrap();
        let found = functions::find(p.pid(), &maps, &"main.middle".parse().unwrap()).unwrap();
        assert!(found.go && found.holds(f.address) && found.code.len() as u64 == found.size, "{flags:?}: {found:?}");
        let held = functions::at(p.pid(), &maps, f.address).unwrap();
        assert_eq!((held.address, held.offset), (found.address, found.offset), "{flags:?}");
        let none = functions::find(p.pid(), &maps, &"main.midle".parse().unwrap()).unwrap_err();
        assert!(none.near.iter().any(|n| n == "main.middle"), "{flags:?}: {none}");
    }
}
