//! The benches as a user starts them: tests that share one process, since each starts commands of
//! its own.

mod bench_files;
mod bench_gives_rows;
mod bench_shd_rows;
mod help_and_arguments;
