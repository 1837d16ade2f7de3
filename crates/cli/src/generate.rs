//! `orbit generate`: manual pages and shell completions, from the commands' own arguments, for
//! `make install`; and whether command lines are accepted, for the test of the documents.
//!
//! Not one of the commands that the help lists: users get what it makes.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use orbit_console::out::{Done, Failure};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What follows the text that clap has, in the page of `orbit` itself.
const END_OF_MAIN_PAGE: &str = "\
.SH \"EXIT STATUS\"
0, or 1 after a failure that is reported on standard error, or 2 for wrong arguments.
.TP
\\fBorbit doctor\\fR
exits with 1 if orbits do not work here at all.
.TP
\\fBorbit watch\\fR, \\fBorbit keep\\fR, \\fBorbit hijack\\fR
exit as their program does: with its status, or 128 and the number of the signal that ended it.
\\fBorbit watch\\fR exits with 127 or 126 if the program could not be found or run, 125 if it could not begin.
.SH ENVIRONMENT
.TP
\\fBNO_COLOR\\fR
set to anything: no colours. There are none where the output is no terminal.
.SH \"SEE ALSO\"
.BR orbit (3)
";

/// Makes what `make install` puts beside the command.
#[derive(Parser)]
#[command(name = "orbit generate")]
enum Args {
    /// Writes a manual page for each command into a folder.
    Man { folder: PathBuf },
    /// Writes completions for bash, zsh and fish into a folder, under the names that these expect.
    Completions { folder: PathBuf },
    /// Reads command lines, each a line with a list of words in JSON, and prints an object for each
    /// that is rejected: its line (from 1), clap's kind of error, and the error.
    Check,
}

/// Runs it with the words after `generate`.
pub fn run(command: Command, words: impl Iterator<Item = OsString>) -> Done {
    match Args::parse_from(std::iter::once("orbit generate".into()).chain(words)) {
        Args::Man { folder } => {
            std::fs::create_dir_all(&folder)?;
            let mut command = command.disable_help_subcommand(true);
            command.build();
            pages(&command, &folder)?;
        }
        Args::Completions { folder } => completions(command, &folder)?,
        Args::Check => check(&command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of a command, and those of its subcommands.
fn pages(command: &Command, folder: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(below, folder)?;
    }
    let man = Man::new(command.clone()).manual("User commands").source(concat!("orbit ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    if command.get_name() == "orbit" {
        page.write_all(END_OF_MAIN_PAGE.as_bytes())?;
    }
    std::fs::write(folder.join(man.get_filename()), page)?;
    Ok(())
}

fn completions(mut command: Command, folder: &Path) -> std::io::Result<()> {
    for (shell, name) in [(Shell::Bash, "bash/orbit"), (Shell::Zsh, "zsh/_orbit"), (Shell::Fish, "fish/orbit.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, "orbit", &mut text);
        if shell == Shell::Zsh {
            text = escape_names(&command, String::from_utf8_lossy(&text).into_owned()).into_bytes();
        }
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap_or(folder))?;
        std::fs::write(file, text)?;
    }
    Ok(())
}

/// Escapes colons in names of values (`ADDRESS:PORT`): zsh would take one for the end of the name,
/// and the rest for a command to run.
fn escape_names(command: &Command, text: String) -> String {
    let names = command.get_arguments().filter_map(|argument| argument.get_value_names()).flatten();
    let text = names
        .filter(|name| name.contains(':'))
        .fold(text, |text, name| text.replace(&format!(":{name}:"), &format!(":{}:", name.replace(':', "\\:"))));
    command.get_subcommands().fold(text, |text, below| escape_names(below, text))
}

/// A word like an option that a command took for the program that it is to run.
fn swallowed(command: &Command, matches: &ArgMatches) -> Option<String> {
    if let Some((name, below)) = matches.subcommand() {
        return swallowed(command.find_subcommand(name)?, below);
    }
    // Its words are for the program beside.
    if command.get_name() == "bench" {
        return None;
    }
    let programs = command.get_arguments().filter(|argument| argument.is_trailing_var_arg_set());
    let first =
        |argument: &Arg| Some(matches.get_raw(argument.get_id().as_str())?.next()?.to_string_lossy().into_owned());
    programs.filter_map(first).find(|word| word.starts_with("--"))
}

fn check(command: &Command) -> Result<(), Failure> {
    let mut rejected = 0;
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let words: Vec<String> =
            serde_json::from_str(&line?).map_err(|error| Failure::text(format!("line {}: {error}", number + 1)))?;
        let (kind, text) = match command.clone().try_get_matches_from(&words) {
            Ok(matches) => match swallowed(command, &matches) {
                Some(option) => {
                    (ErrorKind::UnknownArgument, format!("{option} is no option, but taken for the program"))
                }
                None => continue,
            },
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => continue,
            Err(error) => (error.kind(), error.render().to_string()),
        };
        rejected += 1;
        let object = serde_json::json!({"line": number + 1, "kind": format!("{kind:?}"), "error": text});
        writeln!(std::io::stdout(), "{object}")?;
    }
    if rejected > 0 { Err(Failure::text(format!("{rejected} command lines are rejected"))) } else { Ok(()) }
}
