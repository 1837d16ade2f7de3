//! `orbit service new`: a folder with a service that builds, in the language that was asked for.

use orbit_services::{Error, Kind, Result, objects};
use std::path::Path;

/// What the service is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// Without the standard library.
    Rust,
    /// Without a libc.
    C,
    /// As the compiler `asc` has it.
    Assemblyscript,
}

impl Language {
    /// The files: their names, where NAME stands for the service's, and what they say.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Language::Rust => &[
                ("lib.rs", include_str!("../templates/lib.rs")),
                ("Cargo.toml", include_str!("../templates/cargo.toml")),
                ("Makefile", include_str!("../templates/rust.mk")),
            ],
            Language::C => &[
                ("NAME.c", include_str!("../templates/service.c")),
                ("orbit_service.h", objects::HEADER),
                ("Makefile", include_str!("../templates/c.mk")),
            ],
            Language::Assemblyscript => &[
                ("index.ts", include_str!("../templates/index.ts")),
                ("Makefile", include_str!("../templates/assemblyscript.mk")),
            ],
        }
    }
}

/// Makes a folder `name` here and answers what to do next.
///
/// # Errors
/// `Invalid` for a name that is no name of a crate and of a file, or is there already; `System`.
pub fn create(folder: &Path, name: &str, language: Language) -> Result<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.bytes().all(is_word) || !name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic()) {
        let text = format!("{name:?}: a service's name is letters, digits, - and _, a letter first");
        return Err(Error::new(Kind::Invalid, text));
    }
    let to = folder.join(name);
    let failed = |error: std::io::Error| Error::system(to.display(), &error);
    // Never into a folder that is there: nothing is overwritten.
    std::fs::create_dir(&to).map_err(failed)?;
    for (file, text) in language.files() {
        let text = if *file == "orbit_service.h" { (*text).to_owned() } else { text.replace("NAME", name) };
        std::fs::write(to.join(file.replace("NAME", name)), text).map_err(failed)?;
    }
    Ok(format!(
        "{}: build and load it:\n  make -C {name}\n  orbit service load {name}/{name}.wasm --owner PID --on tick=1s \
         --grant 'cpu:nice:set(pid=PID,max=10)'",
        to.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_and_nothing_is_overwritten() {
        let folder = std::env::temp_dir().join(format!("orbit-new-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for bad in ["", "..", "a/b", "a b", "1a", "-a", "a$b"] {
            let error = create(&folder, bad, Language::C).expect_err(bad);
            assert_eq!(error.kind(), Kind::Invalid, "{bad}");
        }
        create(&folder, "one", Language::C).expect("made");
        assert!(create(&folder, "one", Language::Rust).is_err());
        assert!(folder.join("one/one.c").exists() && !folder.join("one/lib.rs").exists());
        std::fs::remove_dir_all(folder).expect("own folder");
    }
}
