//! Allocation points, globals and bytes of programs whose sources say where they are: all are
//! found, and none besides.

use orbit_analyse::{Error, Options, Place, Report, Site, Source, analyse, likely, sketch, top};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A subject's source.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects").join(name)
}

/// Compiles it, for one test.
fn compile(compiler: &str, name: &str, test: &str, flags: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("analyse-{test}"));
    let done = Command::new(compiler)
        .args(["-g", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source(name))
        .status()
        .expect("the compiler runs");
    assert!(done.success(), "{name} compiles");
    program
}

/// Lines of a subject's source with this mark.
fn marked(name: &str, mark: &str) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(source(name)).expect("the source is readable");
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains(mark));
    lines.map(|(i, _)| i as u32 + 1).collect()
}

fn watch(program: &Path, arguments: &[&str], entry: &str) -> Result<Report, Error> {
    watch_and_wait(program, arguments, entry).0
}

/// The report, and what was said of an entry that was not there at the start.
fn watch_and_wait(program: &Path, arguments: &[&str], entry: &str) -> (Result<Report, Error>, Option<String>) {
    let words = std::iter::once(program.into()).chain(arguments.iter().map(Into::into));
    let options = Options {
        entry: entry.parse().expect("a function"),
        program: words.collect(),
        calls: 8,
        limit: Duration::from_secs(120),
    };
    let mut said = None;
    let report = analyse(&options, |missing| said = Some(missing.to_string()));
    (report, said)
}

fn found(report: &Report, name: &str) -> BTreeSet<u32> {
    let of = |site: &&Site| site.at.file.as_ref().is_some_and(|f| f.ends_with(name));
    assert_eq!(report.sites.iter().filter(of).count(), report.sites.len(), "{report}");
    report.sites.iter().filter_map(|site| site.at.line).collect()
}

fn site(report: &Report, line: u32) -> &Site {
    report.sites.iter().find(|s| s.at.line == Some(line)).expect("the site is there")
}

fn line(name: &str, mark: &str) -> u32 {
    *marked(name, mark).first().expect("the mark is there")
}

#[test]
fn all_sites_of_a_c_program_and_none_besides() {
    // A call that a compiler turned into a jump has no frame: its caller would be named.
    for flags in [["-O0", "-fno-optimize-sibling-calls"], ["-O2", "-fno-optimize-sibling-calls"]] {
        let program = compile("cc", "locks.c", &format!("c{}", flags[0]), &flags);
        let report = watch(&program, &[], "chain_length").expect("the program is analysed");
        let mut expected = marked("locks.c", "SITE");
        expected.remove(&line("locks.c", "SITE dangling"));
        assert_eq!(found(&report, "locks.c"), expected, "{report}");
        // The program ran as ever: its own task saw two calls.
        assert_eq!((report.calls, report.status), (2, 5), "{report}");
        assert_eq!(report.notes, Vec::<String>::new());

        let waiters = site(&report, line("locks.c", "SITE plain"));
        assert_eq!((waiters.objects, waiters.sizes), (8, [224, 224]), "{report}");
        // Only the pointer to the next one is read, and nothing written.
        assert_eq!((&waiters.read, &waiters.written), (&vec![[8, 15]], &vec![]), "{report}");
        assert!(waiters.path.iter().any(|p| p.function == "main" || p.function == "new_waiter"), "{report}");
        let names: Vec<&str> = report.globals.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["deepest", "label", "registry"], "{report}");
        assert_eq!(report.globals[0].written, [[0, 3]]);
        assert_eq!(report.globals[2].written, Vec::<[u64; 2]>::new());
    }
}

/// Of a wrapper as xmalloc the callers are named, by a run and by the source, also where the task
/// uses it itself; another allocator's functions in the program do no harm.
#[test]
fn the_caller_of_a_wrapper_is_named() {
    let program = compile("cc", "wrappers.c", "wrappers", &["-O0"]);
    let report = watch(&program, &[], "sum").expect("the program is analysed");
    assert_eq!((report.status, report.calls), (3, 1), "{report}");
    let sites = marked("wrappers.c", "SITE");
    assert_eq!(found(&report, "wrappers.c"), sites, "{report}");
    if Command::new("clang").arg("--version").output().is_err() {
        println!("SKIP: needs clang");
        return;
    }
    let found = likely("sum", &[Source { file: source("wrappers.c"), flags: vec![] }]).expect("clang reads it");
    let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
    assert_eq!(lines, sites.union(&marked("wrappers.c", "LIKELY")).copied().collect(), "{found:#?}");
}

/// An allocator behind a pointer of a library, by a run and by the source.
#[test]
fn an_allocator_behind_a_pointer() {
    let program = compile("cc", "hooks.c", "hooks", &["-O0"]);
    let report = watch(&program, &[], "sum").expect("the program is analysed");
    assert_eq!((report.status, report.calls), (6, 1), "{report}");
    assert_eq!(found(&report, "hooks.c"), marked("hooks.c", "SITE"), "{report}");
    if Command::new("clang").arg("--version").output().is_err() {
        println!("SKIP: needs clang");
        return;
    }
    let found = likely("sum", &[Source { file: source("hooks.c"), flags: vec![] }]).expect("clang reads it");
    let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
    assert_eq!(lines, marked("hooks.c", "SITE"), "{found:#?}");
}

/// Memory that is mapped, grown, aligned, of the C library or on the caller's stack.
#[test]
fn memory_of_other_kinds() {
    for optimize in ["-O0", "-O2"] {
        let flags = [optimize, "-fno-optimize-sibling-calls"];
        let program = compile("cc", "kinds.c", &format!("kinds{optimize}"), &flags);
        let report = watch(&program, &[], "total").expect("the program is analysed");
        assert_eq!((report.status, report.calls), (0, 1), "{report}");
        assert_eq!(found(&report, "kinds.c"), marked("kinds.c", "SITE"), "{report}");
        // Two pointers and one of the numbers, of the function that called.
        let [stack] = report.stack.as_slice() else { panic!("{report}") };
        assert_eq!((stack.bytes_read, stack.bytes_written), (24, 0), "{report}");
        assert_eq!(stack.at.line, Some(line("kinds.c", "CALL")), "{report}");
    }
}

/// Of libraries that are loaded later by several threads and from libraries' constructors: the
/// entry is found when its library is there, and the program runs as ever.
#[test]
fn an_entry_in_a_library_loaded_later() {
    let library = |name: &str| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("analyse-{name}.so"));
        let flags = ["-g", "-O0", "-shared", "-fPIC", "-Wl,--build-id", "-o"];
        let mut compiler = Command::new("cc");
        compiler.args(flags).arg(&file).arg(source("plugin.c")).arg(format!("-DTASK={name}"));
        assert!(compiler.status().expect("the compiler runs").success(), "plugin.c compiles");
        file
    };
    let (first, second) = (library("audit_first"), library("audit_second"));
    let names = [first.to_str().expect("UTF-8"), second.to_str().expect("UTF-8")];
    let program = compile("cc", "plugins.c", "plugins", &["-O0"]);
    for entry in ["audit_second", "analyse-audit_second.so:audit_second"] {
        let (report, said) = watch_and_wait(&program, &[&names[..], &["audit_second"]].concat(), entry);
        let report = report.expect("the program is analysed");
        assert!(said.is_some_and(|said| said.contains("was not found")));
        assert_eq!((report.status, report.calls), (12, 1), "{report}");
        assert_eq!(found(&report, "plugin.c"), marked("plugin.c", "SITE"), "{report}");
        assert_eq!(report.globals.iter().map(|g| g.name.as_str()).collect::<Vec<_>>(), ["values"], "{report}");
    }
    // One that never comes is said, with what was searched; one near a name is a mistake at once.
    let (report, said) = watch_and_wait(&program, &[&names[..], &["audit_second"]].concat(), "no_such_task");
    let why = report.expect_err("there is none").to_string();
    assert!(said.is_some() && why.contains("no_such_task was not found") && why.contains("more"), "{why}");
    let (report, said) = watch_and_wait(&program, &[&names[..], &["audit_second"]].concat(), "load_al");
    assert!(report.is_err_and(|why| why.to_string().contains("load_all")) && said.is_none());
}

#[test]
fn all_sites_of_a_c_plus_plus_program_and_none_besides() {
    for flags in [["-std=c++17", "-O0"], ["-std=c++17", "-O2"]] {
        let program = compile("c++", "items.cc", &format!("cc{}", flags[1]), &flags);
        let report = watch(&program, &[], "tasks::total").expect("the program is analysed");
        assert_eq!(found(&report, "items.cc"), marked("items.cc", "SITE"), "{report}");
        let texts = site(&report, line("items.cc", "SITE text"));
        // One letter of each.
        assert_eq!((texts.objects, &texts.read), (20, &vec![[3, 3]]), "{report}");
        assert_eq!(site(&report, line("items.cc", "SITE node")).objects, 20);
        let names: Vec<&str> = report.globals.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["items"], "{report}");
    }
}

#[test]
fn all_sites_of_a_rust_program_and_none_besides() {
    for optimize in ["0", "2"] {
        let name = format!("analyse-rust{optimize}");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args(["--edition=2021", "-g", "-C"]).arg(format!("opt-level={optimize}"));
        let done = command.arg("-o").arg(&program).arg(source("items.rs")).status().expect("rustc runs");
        assert!(done.success(), "items.rs compiles");
        let report = watch(&program, &[], "total").expect("the program is analysed");
        assert_eq!(found(&report, "items.rs"), marked("items.rs", "SITE"), "{report}");
    }
}

#[test]
fn a_read_of_freed_memory_is_shown_with_its_place() {
    let program = compile("cc", "locks.c", "freed", &["-O0"]);
    let report = watch(&program, &["freed"], "reads_freed").expect("the program is analysed");
    let [site] = report.sites.as_slice() else { panic!("one site: {report}") };
    assert_eq!(site.at.line, Some(line("locks.c", "SITE dangling")), "{report}");
    assert_eq!(site.after_free.iter().map(|p| p.function.as_str()).collect::<Vec<_>>(), ["reads_freed"], "{report}");
    assert_eq!(site.read, [[216, 219]], "{report}");
}

#[test]
fn threads_and_children_of_the_program_go_on() {
    let program = compile("cc", "threads.c", "threads", &["-O0"]);
    let report = watch(&program, &[], "sum").expect("the program is analysed");
    assert_eq!((report.status, report.calls), (0, 8), "{report}");
    assert_eq!(found(&report, "threads.c"), marked("threads.c", "SITE"), "{report}");
    let [site] = report.sites.as_slice() else { panic!("one site: {report}") };
    assert_eq!((site.objects, &site.read), (4, &vec![[0, 3], [8, 15]]), "{report}");
}

#[test]
fn an_unknown_entry_and_a_static_program_are_refused() {
    let program = compile("cc", "locks.c", "unknown", &["-O0"]);
    let error = watch(&program, &[], "chain_lengt").expect_err("there is no such function").to_string();
    assert!(error.contains("chain_length"), "{error}");
    let program = compile("cc", "locks.c", "static", &["-O0", "-static"]);
    let error = watch(&program, &[], "chain_length").expect_err("the recorder is not loaded").to_string();
    assert!(error.contains("dynamically"), "{error}");
}

/// By the sources alone: the same points, the one that only another task reads, and no other.
#[test]
fn likely_sites_of_a_c_program() {
    if Command::new("clang").arg("--version").output().is_err() {
        println!("SKIP: needs clang");
        return;
    }
    let sources = [Source { file: source("locks.c"), flags: vec![] }];
    let found = likely("chain_length", &sources).expect("clang reads it");
    let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
    assert_eq!(lines, marked("locks.c", "SITE"), "{found:#?}");

    // What a run found is not repeated.
    let program = compile("cc", "locks.c", "likely", &["-O0"]);
    let mut report = watch(&program, &[], "chain_length").expect("the program is analysed");
    report.add_likely(found);
    let likely: Vec<Option<u32>> = report.likely.iter().map(|site| site.at.line).collect();
    assert_eq!(likely, [Some(line("locks.c", "SITE dangling"))], "{report}");

    // The patch changes each line that calls malloc, calloc or realloc, and names the one that does
    // not.
    let patch = sketch(&report, &source(""), |file| std::fs::read_to_string(file).ok());
    assert!(patch.contains("--- a/locks.c\n+++ b/locks.c\n"), "{patch}");
    assert!(patch.contains("+    return orbit_alloc(area, size); /* SITE plain */"), "{patch}");
    assert!(patch.contains("= orbit_calloc(area, 1, sizeof *lock); /* SITE lock */"), "{patch}");
    assert_eq!(patch.matches("@@ -").count(), 6, "{patch}");
    assert!(patch.contains(&format!("locks.c:{}: not a call", line("locks.c", "SITE name"))), "{patch}");

    assert!(matches!(likely_of("nowhere"), Err(Error::NotInSources { .. })));
}

/// A patch applies at the top of the working tree, whatever paths compilers and debuggers gave.
#[test]
fn a_patch_is_relative_to_the_top() {
    let top_of_it = Path::new(env!("CARGO_TARGET_TMPDIR")).join("analyse-tree");
    let _ = std::fs::remove_dir_all(&top_of_it);
    std::fs::create_dir_all(top_of_it.join("src/deep")).expect("a directory");
    let git = |words: &[&str]| Command::new("git").current_dir(&top_of_it).args(words).output();
    if !git(&["init", "-q"]).is_ok_and(|done| done.status.success()) {
        println!("SKIP: needs git");
        return;
    }
    let file = top_of_it.join("src/deep/locks.c");
    std::fs::copy(source("locks.c"), &file).expect("a copy");
    let at = |file: PathBuf, line| Place {
        function: "f".to_owned(),
        file: Some(file.to_string_lossy().into_owned()),
        line: Some(line),
    };
    let [plain, lock] = ["SITE plain", "SITE lock"].map(|mark| line("locks.c", mark));
    let likely = [at(file, plain), at(top_of_it.join("src/../src/deep/./locks.c"), lock)]
        .map(|at| orbit_analyse::Likely { at, holds: String::new() });
    let report = Report { likely: likely.into(), ..Report::default() };
    assert_eq!(top(&report), top_of_it);
    let patch = sketch(&report, &top(&report), |file| std::fs::read_to_string(file).ok());
    assert_eq!(patch.matches("--- a/src/deep/locks.c\n").count(), 1, "{patch}");
    std::fs::write(top_of_it.join("areas.patch"), &patch).expect("the patch");
    let applied = git(&["apply", "--unidiff-zero", "areas.patch"]).expect("git runs");
    assert!(applied.status.success(), "{}{patch}", String::from_utf8_lossy(&applied.stderr));
    let changed = std::fs::read_to_string(top_of_it.join("src/deep/locks.c")).expect("the file");
    assert_eq!(changed.matches("alloc(area, ").count(), 2, "{changed}");
}

/// A server is ended by Ctrl-C, which comes to what analyses it too: the report is there.
#[test]
fn ctrl_c_ends_the_program_alone() {
    let program = compile("cc", "interrupted.c", "interrupted", &["-O0"]);
    let report = watch(&program, &[], "task").expect("the program is analysed");
    assert_eq!((report.calls, report.status), (1, 128 + 2), "{report}");
    assert_eq!(found(&report, "interrupted.c"), marked("interrupted.c", "SITE"), "{report}");
}

/// A report and a patch without a watched call do not read as if nothing were needed.
#[test]
fn no_watched_call_is_said() {
    let program = compile("cc", "locks.c", "uncalled", &["-O0"]);
    let report = watch(&program, &[], "reads_freed").expect("the program is analysed");
    let text = report.to_string();
    assert!(text.contains("no call was watched") && text.contains("never called"), "{text}");
    assert!(!text.contains("must move") && !text.contains("Likely"), "{text}");
    let patch = sketch(&report, Path::new("/"), |file| std::fs::read_to_string(file).ok());
    assert_eq!(patch, "# no allocation point was found\n");
}

fn likely_of(entry: &str) -> Result<orbit_analyse::Found, Error> {
    likely(entry, &[Source { file: source("locks.c"), flags: vec![] }])
}

/// C++ by the sources alone: the three points; not the text that another container has, though of
/// the same type, and nothing of a type that the task does not touch.
#[test]
fn likely_sites_of_a_c_plus_plus_program() {
    if Command::new("clang").arg("--version").output().is_err() {
        println!("SKIP: needs clang");
        return;
    }
    let source = |name| Source { file: source(name), flags: vec!["-std=c++17".into()] };
    for entry in ["tasks::total", "total"] {
        let found = likely(entry, &[source("items.cc")]).expect("clang compiles it");
        let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
        assert_eq!(lines, marked("items.cc", "SITE"), "{found:#?}");
        assert_eq!(found.unclear, 0);
    }
    let missing = likely("tasks::tota", &[source("items.cc")]);
    assert!(matches!(missing, Err(Error::NotInSources { .. })));
}

/// Rust by the sources alone: all points, and none besides; by LLVM's text that a build has left,
/// too.
#[test]
fn likely_sites_of_a_rust_program() {
    let [text, old] = ["items.ll", "items-old.ll"].map(|name| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    for (to, names) in [(&text, "v0"), (&old, "legacy")] {
        let mut rustc = Command::new("rustc");
        rustc.args([
            "--edition=2021",
            "--emit=llvm-ir",
            "-g",
            "-Copt-level=0",
            "-Ccodegen-units=1",
            "-Zunstable-options",
        ]);
        rustc.env("RUSTC_BOOTSTRAP", "1").arg(format!("-Csymbol-mangling-version={names}"));
        if !rustc.arg("-o").arg(to).arg(source("items.rs")).status().is_ok_and(|status| status.success()) {
            println!("SKIP: needs rustc");
            return;
        }
    }
    let refused = likely("total", &[Source { file: old, flags: vec![] }]).expect_err("no types").to_string();
    assert!(refused.contains("symbol-mangling-version=v0"), "{refused}");
    for file in [source("items.rs"), text] {
        let found = likely("total", &[Source { file, flags: vec!["--edition=2021".into()] }]).expect("it is read");
        let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
        assert_eq!(lines, marked("items.rs", "SITE"), "{found:#?}");
    }
}

/// A cargo project: types, containers and boxes of a crate on which the task's crate depends.
#[test]
fn likely_sites_of_a_cargo_workspace() {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("analyse-workspace");
    for file in
        ["Cargo.toml", "Cargo.lock", "app/Cargo.toml", "app/src/main.rs", "model/Cargo.toml", "model/src/lib.rs"]
    {
        let to = project.join(file);
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        std::fs::copy(source("workspace").join(file), to).expect("a copy");
    }
    if Command::new("cargo").arg("--version").output().is_err() {
        println!("SKIP: needs cargo");
        return;
    }
    let at = |found: Vec<&Place>| -> BTreeSet<String> {
        let name = |place: &Place| {
            let file = place.file.as_ref().map(|file| file.rsplit('/').next().unwrap_or_default().to_owned());
            format!("{}:{}", file.unwrap_or_default(), place.line.unwrap_or_default())
        };
        found.into_iter().map(name).collect()
    };
    let mut expected = BTreeSet::new();
    for file in ["app/src/main.rs", "model/src/lib.rs"] {
        let name = file.rsplit('/').next().unwrap_or_default();
        expected.extend(marked(&format!("workspace/{file}"), "SITE").iter().map(|line| format!("{name}:{line}")));
    }
    let found = likely("task", &[Source { file: project.join("Cargo.toml"), flags: vec![] }]).expect("cargo builds it");
    assert_eq!(at(found.likely.iter().map(|likely| &likely.at).collect()), expected, "{found:#?}");
    // Built by the run with names of the same form, so that it is there without another build.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project.join("target"), PathBuf::from);
    let host = std::fs::read_dir(target.join("orbit-analyse")).expect("the target");
    let programs = host.flatten().map(|of| of.path().join("debug/app"));
    let program = programs.into_iter().find(|program| program.exists()).expect("the program");
    let mut report = watch(&program, &[], "task").expect("the program is analysed");
    assert_eq!(at(report.sites.iter().map(|site| &site.at).collect()), expected, "{report}");
    report.add_likely(found);
    assert_eq!(report.likely, [], "{report}");
}

/// Containers of several kinds, nodes and virtual functions: what a run finds, but for an array of
/// numbers, and none besides.
#[test]
fn likely_sites_by_instances_of_templates() {
    if Command::new("clang").arg("--version").output().is_err() {
        println!("SKIP: needs clang");
        return;
    }
    let program = compile("c++", "registry.cc", "registry", &["-std=c++17", "-O0"]);
    let mut report = watch(&program, &[], "db::task").expect("the program is analysed");
    assert_eq!(found(&report, "registry.cc"), marked("registry.cc", "SITE"), "{report}");
    let sources = [Source { file: source("registry.cc"), flags: vec!["-std=c++17".into()] }];
    let found = likely("db::task", &sources).expect("clang compiles it");
    let lines: BTreeSet<u32> = found.likely.iter().filter_map(|site| site.at.line).collect();
    let mut expected = marked("registry.cc", "SITE");
    expected.remove(&line("registry.cc", "SITE bytes and numbers"));
    assert_eq!(lines, expected, "{found:#?}");
    report.add_likely(found);
    assert_eq!(report.likely, [], "{report}");
}
