//! The other subcommands as a user meets them: tests that share one process, since each starts
//! commands of its own.

mod arguments_and_pipes;
mod bench_is_beside;
mod doctor_names_every_facility;
mod documents_show_accepted_commands;
mod pages_and_completions;
mod pins_missing_is_named;
mod pins_twelve_rows;
