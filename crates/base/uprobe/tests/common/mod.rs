//! The program whose function is counted, and waiting for probes.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

pub use orbit_testing::{PATIENCE, until};
use orbit_uprobe::code::{Place, Return, behind, shape};
use orbit_uprobe::{Behind, CodeFile, Duty, State, Target};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Program {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    pub file: PathBuf,
    pub start: u64,
    pub address: u64,
    functions: Vec<(u64, u64, Vec<u8>)>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Program {
    /// Builds and starts a program of `tests/c`.
    pub fn start(name: &str, source: &str) -> Program {
        Program::built(name, source, &["-O1"])
    }

    /// The same with these flags for the compiler.
    pub fn built(name: &str, source: &str, flags: &[&str]) -> Program {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        orbit_testing::compile("cc", &source, &file, flags);
        Program::of(file)
    }

    /// Starts one that was built.
    pub fn of(file: PathBuf) -> Program {
        let mut child = Command::new(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let to = child.stdin.take().expect("a pipe");
        let mut from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        from.read_line(&mut line).expect("an address");
        let address = hex(&line);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("maps");
        let start = maps
            .lines()
            .find_map(|l| {
                let f: Vec<&str> = l.split_ascii_whitespace().collect();
                let (low, high) = f[0].split_once('-')?;
                (hex(low)..hex(high)).contains(&address).then(|| address - hex(low) + hex(f[2]))
            })
            .expect("its mapping");
        let bytes = std::fs::read(&file).expect("the program");
        let nm = Command::new("nm").arg("-S").arg(&file).output().expect("nm").stdout;
        let nm = String::from_utf8(nm).expect("text");
        // Address as linked, size, kind, name.
        let symbols: Vec<[&str; 4]> =
            nm.lines().filter_map(|l| l.split(' ').collect::<Vec<_>>().try_into().ok()).collect();
        let linked = symbols.iter().find(|s| s[3] == "counted").map(|s| hex(s[0])).expect("its symbol");
        let functions = symbols
            .iter()
            .filter(|s| matches!(s[2], "t" | "T"))
            .map(|s| {
                // All are of one segment.
                let offset = start.wrapping_add(hex(s[0])).wrapping_sub(linked);
                let code = bytes.get(offset as usize..(offset + hex(s[1])) as usize).unwrap_or_default().to_vec();
                (offset, address.wrapping_add(hex(s[0])).wrapping_sub(linked), code)
            })
            .collect();
        Program { child, to, from, file, start, address, functions }
    }

    /// The function that holds this address: its offset in the file, its address, its code.
    pub fn function_at(&self, at: u64) -> Option<(u64, u64, Vec<u8>)> {
        let holds = |f: &&(u64, u64, Vec<u8>)| (f.1..f.1 + f.2.len() as u64).contains(&at);
        self.functions.iter().find(holds).cloned()
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn target(&self) -> Target {
        let (_, address, code) = self.function_at(self.address).expect("its own function");
        let shape = shape(&code, true, address, &|at, len| self.memory(at, len));
        Target { pid: self.pid(), file: self.code_file(), start: self.start, shape, callers: false }
    }

    /// The file that it runs.
    pub fn code_file(&self) -> Arc<CodeFile> {
        code_file(&self.file)
    }

    /// The code of the function that is counted, as in the file.
    pub fn code(&self) -> Vec<u8> {
        self.function_at(self.address).expect("its own function").2
    }

    /// What lies in its memory.
    fn memory(&self, at: u64, len: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; len];
        let file = std::fs::File::open(format!("/proc/{}/mem", self.pid())).expect("its memory");
        let got = file.read_at(&mut bytes, at).unwrap_or(0);
        bytes.truncate(got);
        bytes
    }

    /// Has it call the function so often in this way, and waits until it has.
    pub fn run(&mut self, how: u32, times: u64) {
        assert_eq!(self.ask(&format!("{how} {times}")), "done");
    }

    /// Its answer to a line.
    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("a reader");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }
}

/// A file as it is now.
pub fn code_file(name: &Path) -> Arc<CodeFile> {
    let is = std::fs::metadata(name).expect("it is there");
    Arc::new(CodeFile::open(name, (is.dev(), is.ino())).expect("a file"))
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).expect("a number")
}

/// Probes at work; nothing, with a line that says so, where they are not available.
pub fn duty(bound: Option<f64>) -> Option<Duty> {
    let duty = Duty::start(bound);
    let start = Instant::now();
    loop {
        match duty.state() {
            State::Ready(_) => return Some(duty),
            State::Failed(e) => {
                println!("SKIP: needs uprobes ({e})");
                return None;
            }
            State::Starting => assert!(start.elapsed() < PATIENCE, "the kernel half is not loaded"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says of so many callers where they continue; of how many others come by there too.
pub fn tell_callers(duty: &mut Duty, id: u64, program: &Program, callers: usize) -> usize {
    let start = Instant::now();
    let (mut seen_callers, mut shared) = (0, 0);
    while seen_callers < callers {
        assert!(start.elapsed() < PATIENCE, "{seen_callers} of {callers} callers are seen");
        for back in duty.tally(id).expect("an account").callers {
            let (offset, address, code) = program.function_at(back - 1).expect("a function");
            let found = behind(&code, address, back, &|_, _| Vec::new()).expect("a place behind the call");
            let in_file = |place: Place| Place { offset: offset + place.offset, ..place };
            let places = Return { own: found.own.map(in_file), shared: found.shared.map(in_file) };
            duty.returned(id, back, Some(Behind { file: program.code_file(), places }));
            (seen_callers, shared) = (seen_callers + 1, shared + usize::from(found.shared.is_some()));
            until("the answer is not heard", || duty.tally(id).is_some_and(|t| !t.callers.contains(&back)));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    shared
}
