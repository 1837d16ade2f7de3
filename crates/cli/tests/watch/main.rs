//! What `orbit watch` finds, says and does: tests that share one process, since each starts
//! commands of its own.

#[path = "../guard_common/mod.rs"]
mod guard_common;

mod guard_acts_within_bounds;
mod guard_config_errors;
mod guard_events_on_full_disk;
mod guard_events_renamed;
mod guard_finds_hangs;
mod guard_foreign_names;
mod guard_joins_a_hang;
mod guard_json;
mod guard_kernel_thread;
mod guard_names_the_program;
mod guard_pid_without_rights;
mod guard_replays;
mod guard_report_fields;
mod guard_sections_compiled;
mod guard_sections_leave_nothing;
mod guard_sections_shown;
mod guard_text_harmless;
