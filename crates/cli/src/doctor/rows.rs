//! The rows: every facility with what it is for, what stands in for it, and the way to get it.

use super::{Row, tries};
use orbit_linux::host;
use orbit_linux::{
    Support, cgroup, eventfd, futex, map, memfd, pagemap, perf, pidfd, poll, pressure, process, rlimit, sched,
};
use orbit_linux::{seccomp, socket, uffd};
use orbit_service::support;

/// What a row is about, before it is tried.
struct About {
    group: &'static str,
    name: &'static str,
    used_for: &'static str,
    instead: &'static str,
    to_do: &'static str,
    needed: bool,
}

impl About {
    fn row(&self, support: Support, found: &str) -> Row {
        let there = support.is_yes();
        Row {
            group: self.group,
            name: self.name,
            there,
            why: support.reason().unwrap_or(found).to_owned(),
            used_for: self.used_for,
            instead: self.instead,
            to_do: if there { String::new() } else { self.to_do.to_owned() },
            needed: self.needed,
        }
    }

    /// A row whose answer is read from a file rather than tried.
    fn found(&self, there: bool, found: impl Into<String>) -> Row {
        let found = found.into();
        self.row(if there { Support::Yes } else { Support::No(found.clone()) }, &found)
    }
}

const PROCESSES: &str = "Processes and memory";
const TRACKING: &str = "Finding written pages";
const LIMITS: &str = "Limits";
const WATCHING: &str = "Watching programs";
const SERVICES: &str = "Services";
const HOST: &str = "The host";

/// Tries everything. Takes some milliseconds.
pub fn all() -> Vec<Row> {
    let mut rows = processes();
    rows.extend(tracking());
    rows.extend(limits());
    rows.extend(watching());
    rows.extend(services());
    rows.extend(surroundings());
    rows
}

fn processes() -> Vec<Row> {
    let basics = [map::probe(), futex::probe(), socket::probe(), eventfd::probe(), poll::probe()];
    let basics = basics.into_iter().find(|support| !support.is_yes()).unwrap_or(Support::Yes);
    let needs_5_4 = "Linux 5.4 or later, and a seccomp profile that allows it";
    vec![
        About {
            group: PROCESSES,
            name: "mappings, futex, sockets",
            used_for: "areas, the queue of calls, handing descriptors over",
            instead: "nothing: orbits cannot be made",
            to_do: "see the reason; a seccomp profile that allows mmap, futex, socketpair, eventfd2, ppoll",
            needed: true,
        }
        .row(basics, ""),
        About {
            group: PROCESSES,
            name: "clone with a pidfd",
            used_for: "making orbits from the template",
            instead: "nothing: orbits cannot be made",
            to_do: needs_5_4,
            needed: true,
        }
        .row(process::probe(), ""),
        About {
            group: PROCESSES,
            name: "pidfd",
            used_for: "seeing how an orbit ended, ending it without hitting another process",
            instead: "nothing: orbits cannot be made",
            to_do: needs_5_4,
            needed: true,
        }
        .row(pidfd::probe(), ""),
        About {
            group: PROCESSES,
            name: "memory files",
            used_for: "replicas, the queue and the log of changed pages",
            instead: "nothing: orbits cannot be made",
            to_do: "Linux 3.17 or later, and a seccomp profile that allows memfd_create",
            needed: true,
        }
        .row(memfd::probe(), ""),
        About {
            group: PROCESSES,
            name: "memory file seals",
            used_for: "keeping an orbit from writing to its queue of calls and from changing the size of its replicas",
            instead: "nothing: orbits cannot be made",
            to_do: "Linux 5.1 or later",
            needed: true,
        }
        .row(tries::seals(), ""),
        About {
            group: PROCESSES,
            name: "protection keys",
            used_for: "nothing yet",
            instead: "nothing is needed",
            to_do: "a processor with protection keys (Intel servers since 2017, AMD since Zen 3) that the hypervisor \
                shows",
            needed: false,
        }
        .row(orbit_linux::keys::probe(), ""),
    ]
}

fn services() -> Vec<Row> {
    let rights = "root, or CAP_BPF and CAP_PERFMON";
    let about =
        |name, used_for, instead, to_do| About { group: SERVICES, name, used_for, instead, to_do, needed: false };
    vec![
        about(
            "upcalls by the kernel half",
            "starting a service in whichever member is current",
            "clocks of the members' threads",
            rights,
        )
        .row(support::upcalls(), ""),
        about(
            "upcalls by clocks of threads",
            "upcalls for users without rights",
            "agents, which take every event",
            "Linux 5.13 or later, and kernel.perf_event_paranoid at most 2",
        )
        .row(support::clocks(), ""),
        about(
            "real-time agents",
            "taking an event within microseconds",
            "ordinary agents",
            "root, CAP_SYS_NICE or ulimit -r",
        )
        .row(support::real_time(), ""),
        about(
            "protection keys",
            "opening a service's data for its handler alone, in some cycles",
            "mprotect",
            "a CPU that has them (pku in /proc/cpuinfo)",
        )
        .row(support::keys(), ""),
        about(
            "weights by control group",
            "cpu:weight and cpu:max without privilege",
            "cpu:weight by niceness; no cpu:max",
            "a control group with the cpu controller, delegated to this user",
        )
        .row(support::weights(), ""),
        about(
            "pressure stall events",
            "the memory manager: a cache that shrinks when memory is short",
            "ticks",
            "Linux 5.2 or later with CONFIG_PSI (psi=1); windows other than 2s, 4s, ... need CAP_SYS_RESOURCE",
        )
        .row(pressure::probe(), ""),
    ]
}

fn tracking() -> Vec<Row> {
    let huge = host::chosen("/sys/kernel/mm/transparent_hugepage/enabled");
    vec![
        About {
            group: TRACKING,
            name: "userfaultfd WP_ASYNC",
            used_for: "engine `track`: the kernel notes the pages that main writes; orbit keep",
            instead: "engine `compare`: every page is compared with a copy; the same meaning, a read of the area \
                each call; orbit keep --log copies all memory for each checkpoint, 256 MiB at most",
            to_do: "Linux 6.7 or later; in a container a seccomp profile that allows userfaultfd (and its ioctl)",
            needed: false,
        }
        .row(uffd::probe(), ""),
        About {
            group: TRACKING,
            name: "PAGEMAP_SCAN",
            used_for: "fetching the written pages, 1 to 4 ns for each page that was not",
            instead: "engine `compare`; orbits find their own writes in the entries of /proc/self/pagemap",
            to_do: "Linux 6.7 or later; /proc mounted; after setuid prctl(PR_SET_DUMPABLE, 1)",
            needed: false,
        }
        .row(pagemap::probe(), ""),
        About {
            group: TRACKING,
            name: "moving page tables of files",
            used_for: "engine `share`, for areas that ask for it: a call sends nothing, whatever the size (`auto` \
                never \
                chooses it: docs/limits.md says why)",
            instead: "engine `track`: written pages are sent",
            to_do: "Linux 5.13 or later (6.7, with PAGEMAP_SCAN, to be fast); a seccomp profile that allows mremap",
            needed: false,
        }
        .row(map::probe_move_tables(), ""),
        About {
            group: TRACKING,
            name: "transparent huge pages",
            used_for: "scans of large areas: one entry for 2 MiB",
            instead: "4 KiB pages: a scan of 256 MiB takes 113 to 270 us, not 4 to 10",
            to_do: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root, on the host)",
            needed: false,
        }
        .found(
            huge.as_deref().is_some_and(|choice| choice != "never"),
            huge.map_or("this kernel has none".to_owned(), |choice| format!("transparent_hugepage/enabled: {choice}")),
        ),
    ]
}

fn limits() -> Vec<Row> {
    let bounds = tries::group_bounds();
    let bound = |has: fn(&(bool, bool)) -> bool, what: &str| match &bounds {
        Ok(bounds) if has(bounds) => Support::Yes,
        Ok(_) => Support::No(format!("no {what} controller in the groups that this user may make")),
        Err(error) => Support::No(format!("no group can be made: {error}")),
    };
    let delegate = "run as root, or have the groups delegated: systemd-run --user -p Delegate=yes PROGRAM";
    vec![
        About {
            group: LIMITS,
            name: "control groups",
            used_for: "one group an orbit: its limits hold for all its processes together",
            instead: "RLIMIT_DATA, nice, affinity: they hold for each process",
            to_do: delegate,
            needed: false,
        }
        .row(cgroup::probe(), ""),
        About {
            group: LIMITS,
            name: "control group: memory",
            used_for: "an exact limit of memory, beyond which the kernel ends the orbit",
            instead: "RLIMIT_DATA, beyond which malloc fails in the orbit",
            to_do: delegate,
            needed: false,
        }
        .row(bound(|has| has.0, "memory"), ""),
        About {
            group: LIMITS,
            name: "control group: CPU",
            used_for: "an exact share of CPU time",
            instead: "a nice value of like weight: holds about, and only while others want the CPU",
            to_do: delegate,
            needed: false,
        }
        .row(bound(|has| has.1, "cpu"), ""),
        About {
            group: LIMITS,
            name: "rlimits",
            used_for: "limits of memory without a group",
            instead: "nothing: such limits are refused",
            to_do: "a seccomp profile that allows prlimit64",
            needed: false,
        }
        .row(rlimit::probe(), ""),
        About {
            group: LIMITS,
            name: "affinity, nice, schedstat",
            used_for: "choosing CPUs and weight of an orbit; seeing whether a thread gets on",
            instead: "nothing: such limits are refused",
            to_do: "a seccomp profile that allows sched_setaffinity and setpriority; /proc mounted",
            needed: false,
        }
        .row(sched::probe(), ""),
        About {
            group: LIMITS,
            name: "orbits are killed first",
            used_for: "the kernel, out of memory, kills an orbit (oom_score_adj 1000) and not this program",
            instead: "the limit of memory that each orbit has below the room that is left",
            to_do: "mount /proc, set the library up before giving up root; give this program an oom_score_adj below \
                1000 (systemd: OOMScoreAdjust=)",
            needed: false,
        }
        .row(tries::killed_first(), ""),
        About {
            group: LIMITS,
            name: "memory.oom.group is 0",
            used_for: "the kernel, when a control group is out of memory, kills one process and not the whole group",
            instead: "the limit of memory that each orbit has below the room that is left",
            to_do: "write 0 to memory.oom.group of the group (systemd: OOMPolicy=continue or stop in place of kill)",
            needed: false,
        }
        .row(tries::killed_alone(), ""),
        About {
            group: LIMITS,
            name: "systemd's OOMPolicy",
            used_for: "the service goes on when the kernel has killed an orbit of it for want of memory",
            instead: "the limit of memory that each orbit has below the room that is left",
            to_do: "OOMPolicy=continue in the unit",
            needed: false,
        }
        .row(tries::goes_on_after_a_kill(), ""),
    ]
}

fn watching() -> Vec<Row> {
    let paranoid =
        "sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON; in a container a profile that allows perf_event_open";
    vec![
        About {
            group: WATCHING,
            name: "perf: task clock",
            used_for: "measuring progress in CPU time (pin P_PMC); seeing where a suspected thread runs (orbit watch)",
            instead: "orbit watch: the times that /proc counts, which takes longer; P_PMC is missing",
            to_do: paranoid,
            needed: false,
        }
        .row(perf::probe(), ""),
        About {
            group: WATCHING,
            name: "perf: instructions",
            used_for: "measuring progress in instructions (pin P_PMC)",
            instead: "the task clock: progress in nanoseconds run",
            to_do: "a machine, or a virtual one, with a performance unit; then as for the task clock",
            needed: false,
        }
        .row(perf::probe_instructions(), ""),
        About {
            group: WATCHING,
            name: "perf: breakpoints",
            used_for: "watching a word or an instruction (pin P_DBR)",
            instead: "nothing: P_DBR is missing, and orbit watch finds fewer busy hangs in sections by name and of \
                Python",
            to_do: paranoid,
            needed: false,
        }
        .row(perf::probe_breakpoint(), ""),
        About {
            group: WATCHING,
            name: "Syscall User Dispatch",
            used_for: "seeing and controlling all system calls of a program (orbit hijack)",
            instead: "nothing: orbit hijack does not start programs",
            to_do: "Linux 5.11 or later on x86-64, and a seccomp profile that allows this prctl",
            needed: false,
        }
        .row(orbit_linux::dispatch::probe(), ""),
        About {
            group: WATCHING,
            name: "FSGSBASE",
            used_for: "finding the executive's state of a thread without a system call (orbit hijack)",
            instead: "nothing: orbit hijack does not start programs",
            to_do: "Linux 5.9 or later on a CPU that has it, without nofsgsbase on the kernel's command line",
            needed: false,
        }
        .row(orbit_linux::dispatch::probe_gs_base(), ""),
        About {
            group: WATCHING,
            name: "BPF programs",
            used_for: "counting events in the kernel (pins P_SCHL, P_SYSC, P_SIG, P_NET, P_INTR, P_APIC, P_FILE, \
                P_IPC), orbit watch --system",
            instead: "P_SCHL: run times of /proc, polled; the other pins: operations, few or no events (orbit pins); \
                --system: nothing",
            to_do: "run as root, or give CAP_BPF and CAP_PERFMON (setcap cap_bpf,cap_perfmon+ep PROGRAM)",
            needed: false,
        }
        .row(tries::bpf(), ""),
        types_for_bpf(),
        About {
            group: WATCHING,
            name: "tracepoints by BPF",
            used_for: "seeing switches, system calls, signals and interrupts as they happen (pins P_SCHL, P_SYSC, \
                P_SIG, P_NET, P_INTR, P_FILE, P_IPC)",
            instead: "as for BPF programs",
            to_do: "as for BPF programs; a kernel with CONFIG_TRACEPOINTS",
            needed: false,
        }
        .row(tries::tracepoint(), ""),
        About {
            group: WATCHING,
            name: "kprobes",
            used_for: "nothing yet: pins use tracepoints, which every kernel has",
            instead: "tracepoints",
            to_do: "a kernel with CONFIG_KPROBE_EVENTS; then as for the task clock",
            needed: false,
        }
        .row(tries::kprobe(), ""),
        About {
            group: WATCHING,
            name: "uprobes",
            used_for: "sections by name in unmodified programs (orbit watch --section)",
            instead: "stacks of threads that are suspected, and breakpoints",
            to_do: "run as root, or give CAP_BPF and CAP_PERFMON; a kernel with CONFIG_UPROBE_EVENTS",
            needed: false,
        }
        .row(tries::uprobe(), ""),
        About {
            group: WATCHING,
            name: "uprobes, many at a time",
            used_for: "taking a section's probes out of the program at once, when they have cost enough",
            instead: "one by one; some kernels then leave each in the program for a tenth of a second, uncounted: \
                --section costs a hot function more than it says",
            to_do: "Linux 6.13 or later; then as for uprobes",
            needed: false,
        }
        .row(orbit_linux::uprobes::probe(), ""),
        ptrace(),
        About {
            group: WATCHING,
            name: "process_vm_readv",
            used_for: "reading stacks and locks of a watched program (pin P_MEM)",
            instead: "nothing: rings of locks and marked sections are not seen, nor stacks",
            to_do: "as for ptrace",
            needed: false,
        }
        .row(tries::process_vm_readv(), ""),
    ]
}

fn types_for_bpf() -> Row {
    let path = "/sys/kernel/btf/vmlinux";
    let there = std::fs::exists(path).unwrap_or(false);
    About {
        group: WATCHING,
        name: "BPF type information",
        used_for: "BPF programs that fit this kernel's structures",
        instead: "nothing: without it no BPF program is loaded here, so as for these; and no uprobes",
        to_do: "a kernel with CONFIG_DEBUG_INFO_BTF, and /sys mounted",
        needed: false,
    }
    .found(there, if there { path.to_owned() } else { format!("{path} is not there") })
}

fn ptrace() -> Row {
    const CAP_SYS_PTRACE: u32 = 19;
    let scope = host::text("/proc/sys/kernel/yama/ptrace_scope").and_then(|text| text.parse::<u32>().ok());
    let (may, found) = match (scope, host::has_capability(CAP_SYS_PTRACE)) {
        (Some(3), _) => (false, "yama/ptrace_scope is 3: nobody may attach"),
        (_, true) => (true, "any program (CAP_SYS_PTRACE)"),
        (None | Some(0), false) => (true, "programs of this user"),
        (Some(1), false) => (false, "yama/ptrace_scope is 1: only programs that were started from here"),
        (Some(_), false) => (false, "yama/ptrace_scope is 2: only with CAP_SYS_PTRACE"),
    };
    let support = match orbit_linux::ptrace::probe() {
        Support::Yes if !may => Support::No(found.to_owned()),
        tried => tried,
    };
    About {
        group: WATCHING,
        name: "ptrace",
        used_for: "stopping a thread of a watched program to sample its stack; holding signals back (pin P_SIG)",
        instead: "reads /proc without stacks",
        to_do: "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE; in a container --cap-add SYS_PTRACE",
        needed: false,
    }
    .row(support, found)
}

fn surroundings() -> Vec<Row> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let container = host::container();
    let restrictions = host::proc_restrictions();
    let proc_open = restrictions.as_ref().is_some_and(Vec::is_empty);
    let proc_found = match restrictions {
        None => "/proc is not mounted".to_owned(),
        Some(options) if options.is_empty() => "no option hides processes".to_owned(),
        Some(options) => format!("mounted with {}", options.join(",")),
    };
    let filtered = host::is_filtered();
    vec![
        About {
            group: HOST,
            name: "more than one CPU",
            used_for: "orbits that run beside main, and poll for calls before they sleep",
            instead: "one CPU in turns: orbits sleep at once, and each call waits for a change of process",
            to_do: "a machine, affinity or control group with two CPUs or more",
            needed: false,
        }
        .found(cpus > 1, format!("{cpus} usable")),
        About {
            group: HOST,
            name: "free of a seccomp filter",
            used_for: "all of the above",
            instead: "what each row says",
            to_do: "a profile of one's own: --security-opt seccomp=FILE (docker, podman)",
            needed: false,
        }
        .found(!filtered, if filtered { "a filter holds this process" } else { "no filter on this process" }),
        About {
            group: HOST,
            name: "outside a container",
            used_for: "seeing, limiting and watching processes beside one's own",
            instead: "only this container's processes are seen",
            to_do: "nothing, unless a row above says so",
            needed: false,
        }
        .found(container.is_none(), container.unwrap_or_else(|| "no sign of one".to_owned())),
        About {
            group: HOST,
            name: "/proc shows all",
            used_for: "orbit ps, orbit top, guards",
            instead: "only processes that /proc shows are seen",
            to_do: "mount -o remount,hidepid=0 /proc (as root)",
            needed: false,
        }
        .found(proc_open, proc_found),
        About {
            group: HOST,
            name: "seccomp filters",
            used_for: "tests as in a container (orbit-contained); no pin uses them",
            instead: "nothing: those tests are left out",
            to_do: "a kernel with CONFIG_SECCOMP_FILTER",
            needed: false,
        }
        .row(seccomp::probe(), ""),
    ]
}
