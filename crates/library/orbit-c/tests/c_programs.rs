//! C and C++ programs against the library: each is one behaviour, and says in its first line which.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Scratch, must, needs, package, run, sources};

const LIMIT: Duration = Duration::from_secs(120);

fn program(sources_of_it: &[&str], arguments: &[&[&str]]) {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let built = scratch.compile("program", sources_of_it, &[]);
    for arguments in arguments {
        must(Command::new(&built).args(*arguments), LIMIT);
    }
}

macro_rules! programs {
    ($($name:ident: $sources:expr, $arguments:expr;)*) => { $(
        #[test]
        fn $name() {
            program(&$sources, &$arguments);
        }
    )* };
}

programs! {
    calls: ["tests/c/calls.c"], [&[]];
    bad_input_costs_nothing: ["tests/c/bad_input.c"], [&[]];
    updates_are_applied_whole_or_not: ["tests/c/updates.c"], [&[]];
    a_forked_child_gets_an_error: ["tests/c/forked_child.c"], [&[]];
    memory_limits_hold: ["tests/c/limits.c"], [&[]];
    signals_disturb_no_wait: ["tests/c/signals.c"], [&[]];
    futures: ["tests/c/futures.c"], [&[]];
    containers_in_an_area: ["tests/c/containers.cpp"], [&[]];
    objects_end_through_any_base: ["tests/c/bases.cpp"], [&[]];
    globals_of_several_files: ["tests/c/globals.c", "tests/c/globals_other.c"], [&[]];
    limit_of_descriptors: ["tests/c/few_resources.c"], [&["descriptors"]];
    limit_of_processes: ["tests/c/few_resources.c"], [&["processes"]];
    limit_of_address_space: ["tests/c/few_resources.c"], [&["address-space"]];
    less_address_space_after_the_set_up: ["tests/c/few_resources.c"], [&["address-space-later"]];
    more_descriptors_are_never_worse: ["tests/c/few_resources.c"], [&["ever-more-descriptors"]];
    more_address_space_is_never_worse: ["tests/c/few_resources.c"], [&["ever-more-address-space"]];
    messages_make_sense_in_c: ["tests/c/messages.c"], [&[]];
    updates_of_synchronous_calls: ["tests/c/sync_updates.c"], [&[]];
    shutdown_leaves_nothing: ["tests/c/shutdown.c"], [&[]];
    no_proc: ["tests/c/no_proc.c"], [&[]];
    areas_destroyed_while_updates_are_applied: ["tests/c/apply_while_destroyed.c"], [&[]];
    pauses_of_any_length: ["tests/c/pauses.c"], [&[]];
    sizes_of_the_log: ["tests/c/log_sizes.c"], [&[]];
    a_full_queue_holds_nobody_beyond_the_deadline: ["tests/c/full_until_deadline.c"], [&[]];
    larger_files_are_never_worse: ["tests/c/few_resources.c"], [&["ever-larger-files"]];
    closed_descriptors_cost_nothing: ["tests/c/closed_descriptors.c"], [&[]];
    descriptors_of_main_in_a_task: ["tests/c/task_descriptors.c"], [&["0", "-"], &["1", "-"], &["5", "-"], &["12", "-"], &["70", "-"]];
    main_closes_what_it_inherited: ["tests/c/main_closes.c"], [
        &["after-init", "nothing", "all"], &["after-init", "sockets", "all"], &["after-init", "pipes", "all"],
        &["after-init", "events", "all"], &["after-init", "events", "the-librarys"]];
    main_closes_beside_an_orbit: ["tests/c/main_closes.c"], [
        &["beside-an-orbit", "nothing", "all"], &["beside-an-orbit", "sockets", "all"], &["beside-an-orbit", "pipes", "all"],
        &["beside-an-orbit", "events", "all"], &["beside-a-future", "events", "the-librarys"],
        &["beside-a-future", "pipes", "the-librarys"]];
    a_copier_holds_no_descriptor: ["tests/c/copier_holds.c"], [&[]];
    shared_memory_of_main: ["tests/c/shared_memory.c"], [&["0"], &["1"], &["2"]];
    locks_in_an_area: ["tests/c/stuck_on_lock.c"], [&[]];
    limit_of_data: ["tests/c/few_resources.c"], [&["data"]];
    limit_of_locked_memory: ["tests/c/few_resources.c"], [&["locked-memory"]];
    what_an_operation_throws_reaches_main: ["tests/c/throwing_operation.cpp"], [&[]];
    what_a_task_throws_is_reported_with_its_thrower: ["tests/c/throwing_task.cpp"], [&[]];
    rights_given_up_later: ["tests/c/gives_up_rights.c"], [&[]];
    snapshots_without_copiers: ["tests/c/without_copiers.c"], [&[], &["die"]];
    the_first_thread_ends: ["tests/c/first_thread_ends.c"], [&[], &["fresh"]];
    many_threads: ["tests/c/threads.c"], [&[]];
    areas_whose_memory_is_shared: ["tests/c/shared_area.c"], [&[]];
    table_1_of_the_paper: ["tests/c/paper_table1.c"], [&[]];
    figure_4_of_the_paper: ["tests/c/paper_figure4.cpp"], [&[]];
    figure_7_of_the_paper: ["tests/c/paper_figure7.c"], [&[]];
    figure_9_of_the_paper: ["tests/c/paper_figure9.cpp"], [&[]];
    figure_11_of_the_paper: ["tests/c/paper_figure11.c"], [&[]];
    a_crash_costs_main_neither_time_nor_memory: ["tests/c/crash_names.c"], [&[], &["no-memory"]];
    exit_of_a_task_leaves_main_alone: ["tests/c/exits.c"], [&[]];
    locks_held_at_the_set_up: ["tests/c/stuck_on_inherited_lock.c"], [&[]];
    containers_of_pmr: ["tests/c/pmr.cpp"], [&[]];
    cancelled_threads: ["tests/c/cancelled.c"], [&[]];
    a_late_call_says_where: ["tests/c/late_where.c"], [&[]];
    a_call_after_a_kill: ["tests/c/killed_then_called.c"], [&[]];
    no_set_up_in_a_new_pid_namespace: ["tests/c/new_pid_namespace.c"], [&[]];
    nothing_to_wait_for_after_exec: ["tests/c/exec.c"], [&[], &["adopting"], &["large"]];
}

/// Beside a preloaded library that asks a server of its own about files, and that ends first.
#[test]
fn silence_under_fakeroot() {
    if !sources() || !needs("fakeroot") {
        return;
    }
    let scratch = Scratch::new();
    let built = scratch.compile("program", &["tests/c/killed_then_called.c"], &[]);
    for _ in 0..5 {
        let ran = run(Command::new("fakeroot").arg(&built), LIMIT);
        assert_eq!((ran.code, ran.text.as_str()), (Some(0), ""));
    }
}

/// `orbit_jemalloc.h`: a program's heap in areas.
#[test]
fn a_heap_of_jemalloc() {
    if !sources() {
        return;
    }
    if !Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2").exists() {
        println!("SKIP: needs libjemalloc2");
        return;
    }
    let scratch = Scratch::new();
    let built = scratch.compile("program", &["tests/c/jemalloc_heap.c"], &["-l:libjemalloc.so.2"]);
    must(&mut Command::new(&built), LIMIT);
}

/// `orbit.hpp` with each standard from C++11 on, with and without exceptions and RTTI, by each
/// compiler that is there.
#[test]
fn cpp_standards_and_options() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
        for options in [&[][..], &["-fno-exceptions", "-fno-rtti"]] {
            let flags = [&[standard, "-pedantic"], options].concat();
            let program = scratch.compile("program", &["tests/c/plain_cpp.cpp"], &flags);
            must(&mut Command::new(program), LIMIT);
        }
        if standard != "-std=c++14" && needs("clang++") {
            let header = package().join("tests/c/plain_cpp.cpp");
            for options in [&[][..], &["-fno-exceptions", "-fno-rtti"]] {
                let mut compiler = Command::new("clang++");
                compiler.args([standard, "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]).args(options);
                must(compiler.arg(format!("-I{}", package().join("include").display())).arg(&header), LIMIT);
            }
        }
    }
}

/// Sets the library up, then loads code, makes an orbit of it, and lets go of both libraries.
#[test]
fn code_loaded_later() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let plugin = scratch.compile("plugin.so", &["tests/c/plugin.c"], &["-shared", "-fPIC"]);
    let program = scratch.compile("program", &["tests/c/loaded_later.c"], &["-ldl"]);
    must(Command::new(program).arg(plugin).arg(scratch.0.join("lib/liborbit.so.0")), LIMIT);
}

/// Plugins with this in addition to what calls get, built with these flags.
fn plugins<const N: usize>(scratch: &Scratch, adds: [u32; N], flags: &[&str]) -> [PathBuf; N] {
    adds.map(|adds| {
        let (name, define) = (format!("adds-{adds}.so"), format!("-DADDS={adds}"));
        let flags = [&["-shared", "-fPIC", define.as_str()], flags].concat();
        scratch.compile(&name, &["tests/c/plugin.c"], &flags)
    })
}

/// Puts another plugin in the place of one that orbits run: with build ids, and without.
#[test]
fn a_plugin_replaced_at_its_address() {
    if !sources() {
        return;
    }
    for (flag, named) in [("-Wl,--build-id=sha1", Some("named")), ("-Wl,--build-id=none", None)] {
        let scratch = Scratch::new();
        let plugins = plugins(&scratch, [1000, 2000, 3000], &[flag]);
        let program = scratch.compile("program", &["tests/c/plugin_replaced.c"], &["-ldl"]);
        let mut command = Command::new(program);
        command.args(plugins).args(named);
        // Where something else comes to lie at the address it shows nothing.
        let shown = (0..5).any(|_| {
            let ran = run(&mut command, LIMIT);
            assert_eq!(ran.code, Some(0), "{command:?}:\n{}", ran.text);
            !ran.text.contains("SKIP:")
        });
        if !shown {
            println!("SKIP: needs a plugin to be loaded at the address of the one before: five times it was not");
        }
    }
}

/// Loads a plugin beside an orbit, and has the orbit made again run its function for a call.
#[test]
fn a_function_loaded_after_the_orbit() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let plugins = plugins(&scratch, [1000], &[]);
    let program = scratch.compile("program", &["tests/c/plugin_func_once.c"], &["-ldl"]);
    must(Command::new(program).args(plugins), LIMIT);
}

/// Calls functions of plugins while the orbit is down.
#[test]
fn a_function_the_next_process_lacks() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let plugins = plugins(&scratch, [1000, 2000], &["-Wl,--build-id=sha1"]);
    let program = scratch.compile("program", &["tests/c/plugin_while_down.c"], &["-ldl"]);
    must(Command::new(program).args(plugins), LIMIT);
}
