//! A stack as people read it: frames of libraries that the user did not write are one line a run.
//!
//! Owns: what counts as such a frame ([`is_of_system`]), and [`folded`]. Promises: pure; every
//! frame of the user's own, and every signal frame, is a line; frames are never reordered.

use super::{Frame, of_c_library};

/// A line of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The frame: of a run, the function that the program called.
    pub frame: &'a Frame,
    /// Frames that the line stands for; 1 for a frame of its own.
    pub count: usize,
}

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frame = self.frame;
        if self.count == 1 && !is_of_system(frame) {
            return frame.fmt(f);
        }
        let file = frame.module.rsplit('/').next().unwrap_or_default();
        match &frame.function {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "a function without a name")?,
        }
        let place = if file.is_empty() { "its runtime" } else { file };
        match self.count {
            1 => write!(f, " in {place}"),
            n => write!(f, " in {place} ({n} frames)"),
        }
    }
}

/// The lines of a stack, innermost first.
pub fn folded(frames: &[Frame]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut in_run = false;
    for frame in frames {
        let of_system = is_of_system(frame);
        match lines.last_mut().filter(|_| of_system && in_run) {
            Some(line) => {
                line.count += 1;
                // The outermost that has a name of its own is what the program called.
                if frame.function.is_some() && !frame.inlined {
                    line.frame = frame;
                }
            }
            None => lines.push(Line { frame, count: 1 }),
        }
        in_run = of_system;
    }
    lines
}

/// At most so many lines of a stack as a report shows it, and how many more frames there are. What
/// leads to the program's first function is left out. A stack without a frame of the program's has
/// the name of the call that it is in.
pub fn shown(frames: &[Frame], most: usize) -> (Vec<Line<'_>>, usize) {
    let mut lines = folded(frames);
    if lines.len() > 1 && lines.last().is_some_and(|line| is_of_system(line.frame)) {
        lines.pop();
    }
    if let [line] = &mut lines[..]
        && is_of_system(line.frame)
    {
        let in_first = frames.iter().take_while(|frame| frame.module == frames[0].module && !frame.is_signal());
        line.frame = in_first.filter(|frame| frame.function.is_some()).last().unwrap_or(line.frame);
    }
    let left = lines.iter().skip(most).map(|line| line.count).sum();
    lines.truncate(most);
    (lines, left)
}

/// Libraries by the beginning of their file's name.
const LIBRARIES: [&str; 12] = [
    "libstdc++.so",
    "libgcc_s.so",
    "libpthread",
    "libm.so",
    "libjvm.so",
    "libjli.so",
    "libjava.so",
    "libnio.so",
    "libnet.so",
    "libpython",
    "libuv.so",
    "libnode.so",
];
/// Packages of languages' own libraries, by how their functions' names begin.
const PACKAGES: [&str; 21] = [
    "java.",
    "javax.",
    "jdk.",
    "sun.",
    "com.sun.",
    "std::",
    "core::",
    "alloc::",
    "__rustc::",
    "__gnu_cxx::",
    "runtime.",
    "runtime/",
    "internal/",
    "sync.",
    "sync/",
    "syscall.",
    "net.",
    "net/",
    "os.",
    "bufio.",
    "io.",
];
/// Functions in a program's own file that lead to its first one.
const STARTS: [&str; 4] = ["_start", "start_thread", "__libc_start_main", "_rust_begin_short_backtrace"];

/// Whether a frame is of the C library, of a language's own library or of its runtime, not of the
/// program. A frame for a signal's handler is not.
pub fn is_of_system(frame: &Frame) -> bool {
    if frame.is_signal() {
        return false;
    }
    let file = frame.module.rsplit('/').next().unwrap_or_default();
    let source = frame.file.as_deref().unwrap_or_default();
    let name = frame.function.as_deref().unwrap_or_default();
    let bare = name.trim_start_matches('<');
    let of_source =
        source.starts_with("/rustc/") || source.contains("/lib/rustlib/src/") || source.contains("/include/c++/");
    let of_python = file.starts_with("python") && !file.contains(".so");
    of_c_library(&frame.module)
        || frame.module == "[vdso]"
        || of_python
        || of_source
        || LIBRARIES.iter().any(|library| file.starts_with(library))
        || PACKAGES.iter().any(|package| bare.starts_with(package))
        || STARTS.iter().any(|start| name.ends_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sure;

    fn frame(function: &str, module: &str, inlined: bool) -> Frame {
        Frame {
            address: 0,
            module: module.to_owned(),
            function: Some(function.to_owned()),
            file: None,
            line: None,
            offset: 0,
            inlined,
            sure: Sure::Certain,
            cfa: None,
        }
    }

    #[test]
    fn a_run_of_the_libraries_is_a_line_and_the_programs_own_frames_stay() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        let stack = [
            frame("__futex_abstimed_wait", libc, false),
            frame("pthread_cond_wait", libc, false),
            frame("std::sys::wait", "/srv/app", true),
            frame("worker", "/srv/app", false),
            frame("__restore_rt", libc, false),
            frame("malloc", libc, false),
            frame("main", "/srv/app", false),
            frame("__libc_start_call_main", libc, false),
            frame("_start", "/srv/app", false),
        ];
        let lines: Vec<(String, usize)> =
            folded(&stack).iter().map(|line| (line.frame.function.clone().unwrap_or_default(), line.count)).collect();
        let expected =
            [("pthread_cond_wait", 3), ("worker", 1), ("__restore_rt", 1), ("malloc", 1), ("main", 1), ("_start", 2)];
        assert_eq!(lines, expected.map(|(name, count)| (name.to_owned(), count)));
        let shown: Vec<String> = folded(&stack).iter().map(Line::to_string).collect();
        assert_eq!(shown[0], "pthread_cond_wait in libc.so.6 (3 frames)");
        assert!(shown[2].contains("interrupted by the handler"), "{shown:?}");
        let idle = [frame("poll", libc, false), frame("thread_run", "/lib/libpython3.so", false)];
        let (lines, _) = super::shown(&idle, 3);
        assert_eq!(lines[0].to_string(), "poll in libc.so.6 (2 frames)", "the call, not the thread's start");
        let (lines, left) = super::shown(&stack, 3);
        assert_eq!((lines.len(), left), (3, 2), "the start of the program is not shown");
    }
}
