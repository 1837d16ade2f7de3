//! Control sockets: where a command that runs is asked by others of the same user.
//!
//! Owns: the folders where they are, their names, and the check of who is at the other end.
//! A socket is the file `KIND-PID.sock`, in the first of these folders that is available:
//! `$XDG_RUNTIME_DIR/orbit`, `/run/user/UID/orbit`, for root `/run/orbit-0`, `/tmp/orbit-UID`.
//! (`/run/orbit` belongs to the user of `orbit agent`.) Readers search all of them, for the two
//! may have other environments.
//!
//! Promises: the folder has mode 0700 and is the user's own, no symbolic link, in a folder where
//! nobody else may replace it; else it is not used. A file appears when it is listened to, is
//! removed by its owner's end, and one whose owner was killed is removed by the next reader.
//! Whoever connects knows that the peer is the process in the name, of its own user.

use orbit_linux::{host, socket};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Attempts to listen in a folder that others remove when it is empty.
const ATTEMPTS: usize = 8;

/// The file of a socket. Removed when this is dropped, by the process that made it; a copy of the
/// process removes nothing.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    owner: u32,
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            remove(&self.path);
        }
    }
}

/// Listens as this process, for requests of this kind. Each kind once in a process.
///
/// # Errors
/// No folder is available: of the last one why.
pub fn listen(kind: &str) -> io::Result<(UnixListener, SocketFile)> {
    listen_in(&folders(), kind)
}

/// The processes that listen for requests of this kind, of this user, sorted. Connects to each.
pub fn owners(kind: &str) -> Vec<i32> {
    owners_in(&folders(), kind)
}

/// Connects to a process that listens for requests of this kind.
///
/// # Errors
/// `NotFound`: it does not listen, or another process has its name.
pub fn connect(kind: &str, pid: i32) -> io::Result<UnixStream> {
    connect_in(&folders(), kind, pid)
}

fn folders() -> Vec<PathBuf> {
    folders_of(host::user(), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

fn folders_of(user: u32, given: Option<PathBuf>) -> Vec<PathBuf> {
    let given = given.filter(|path| path.is_absolute());
    let mut all: Vec<PathBuf> = given.map(|path| path.join("orbit")).into_iter().collect();
    all.push(format!("/run/user/{user}/orbit").into());
    if user == 0 {
        all.push("/run/orbit-0".into());
    }
    all.push(format!("/tmp/orbit-{user}").into());
    // The first two are one, mostly.
    all.dedup();
    all
}

fn name(kind: &str, pid: i32) -> String {
    format!("{kind}-{pid}.sock")
}

fn listen_in(folders: &[PathBuf], kind: &str) -> io::Result<(UnixListener, SocketFile)> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for folder in folders {
        match listen_at(folder, kind) {
            Ok(both) => return Ok(both),
            Err(e) => failed = io::Error::new(e.kind(), format!("{}: {e}", folder.display())),
        }
    }
    Err(failed)
}

fn listen_at(folder: &Path, kind: &str) -> io::Result<(UnixListener, SocketFile)> {
    let owner = std::process::id();
    let path = folder.join(name(kind, owner as i32));
    for _ in 0..ATTEMPTS {
        make(folder)?;
        // One of another process namespace may have the same number.
        if UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process has this one's name"));
        }
        // Under another name until it listens: a reader takes one that does not for a left-over.
        let partial = path.with_extension("partial");
        let _ = fs::remove_file(&partial);
        let bound = UnixListener::bind(&partial).and_then(|listener| {
            fs::set_permissions(&partial, Permissions::from_mode(0o600))?;
            fs::rename(&partial, &path)?;
            Ok(listener)
        });
        match bound {
            // The folder was empty, and its last user has removed it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                let _ = fs::remove_file(&partial);
                return Err(e);
            }
            Ok(listener) => return Ok((listener, SocketFile { path, owner })),
        }
    }
    Err(io::Error::other("the folder is removed by another process each time"))
}

/// Makes the folder if there is none. What is there is used as it is if it is this user's own.
fn make(folder: &Path) -> io::Result<()> {
    let parent = folder.parent().unwrap_or(Path::new("/"));
    let above = fs::metadata(parent)?;
    let is_trusted = above.uid() == host::user() || above.uid() == 0;
    let is_sticky = above.mode() & libc::S_ISVTX != 0;
    if !is_trusted || (above.mode() & 0o022 != 0 && !is_sticky) {
        return Err(denied("others may replace what is in the folder above it"));
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    check(folder)
}

/// Whether the folder is this user's own, and closed to others.
fn check(folder: &Path) -> io::Result<()> {
    let own = fs::symlink_metadata(folder)?;
    if !own.is_dir() || own.uid() != host::user() {
        return Err(denied("it is no folder of this user's own"));
    }
    if own.mode() & 0o077 != 0 {
        return Err(denied("it is open to others: it needs mode 0700"));
    }
    Ok(())
}

fn denied(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn owners_in(folders: &[PathBuf], kind: &str) -> Vec<i32> {
    let mut all = Vec::new();
    for folder in folders.iter().filter(|folder| check(folder).is_ok()) {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let pid_of =
            |name: &str| name.strip_prefix(kind)?.strip_prefix('-')?.strip_suffix(".sock")?.parse::<i32>().ok();
        all.extend(names.filter_map(|name| pid_of(name.to_str()?)));
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|pid| connect_in(folders, kind, *pid).is_ok());
    all
}

fn connect_in(folders: &[PathBuf], kind: &str, pid: i32) -> io::Result<UnixStream> {
    for folder in folders.iter().filter(|folder| check(folder).is_ok()) {
        let path = folder.join(name(kind, pid));
        match UnixStream::connect(&path) {
            Ok(stream) if socket::peer(stream.as_fd())? == (pid, host::user()) => return Ok(stream),
            // A file that is there was listened to, so its owner is gone.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => remove_left(folder, pid),
            Ok(_) | Err(_) => {}
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Removes all that a process left which has ended, of whatever kind.
fn remove_left(folder: &Path, pid: i32) {
    let ends = [format!("-{pid}.sock"), format!("-{pid}.partial")];
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let is_its = path.to_str().is_some_and(|text| ends.iter().any(|end| text.ends_with(end)));
        if is_its && UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            remove(&path);
        }
    }
}

/// Removes a socket's file, and its folder if that was the last.
fn remove(path: &Path) {
    // Another may have been faster.
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder of the test's own, and a place below it for sockets.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("orbit-control-{name}-{}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path).expect("made");
            Place(path)
        }

        fn folder(&self) -> PathBuf {
            self.0.join("orbit")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn a_socket_is_a_private_file_that_its_owner_removes() {
        let place = Place::new("own");
        let folders = [place.folder()];
        let (listener, file) = listen_in(&folders, "core").expect("listens");
        let mode = |path: &Path| fs::symlink_metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&place.folder()), mode(file.path())), (0o700, 0o600));
        let (_other, other_file) = listen_in(&folders, "core-of").expect("another kind");
        assert_eq!((owners_in(&folders, "core"), owners_in(&folders, "core-of")), (vec![own()], vec![own()]));
        assert!(owners_in(&folders, "cor").is_empty());
        connect_in(&folders, "core", own()).expect("connected");
        assert_eq!(listen_in(&folders, "core").expect_err("twice").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_dir(place.folder()).expect("a folder").count(), 2, "nothing else");
        // A copy of the process has the same value, and another number.
        drop(SocketFile { path: file.path().to_owned(), owner: file.owner + 1 });
        assert!(file.path().exists());
        drop(listener);
        drop(other_file);
        drop(file);
        assert!(!place.folder().exists(), "the last one removes the folder");
    }

    #[test]
    fn what_a_killed_owner_left_is_removed_and_replaced() {
        let place = Place::new("left");
        let folders = [place.folder()];
        make(&place.folder()).expect("made");
        let leave = |pid: i32| drop(UnixListener::bind(place.folder().join(name("core", pid))).expect("bound"));
        leave(own());
        leave(4_000_000);
        drop(UnixListener::bind(place.folder().join(name("keep", 4_000_000))).expect("bound"));
        let (_listener, file) = listen_in(&folders, "core").expect("replaces it");
        connect_in(&folders, "core", own()).expect("connected");
        assert_eq!(owners_in(&folders, "core"), [own()]);
        assert_eq!(fs::read_dir(place.folder()).expect("a folder").count(), 1, "the others are removed");
        drop(file);
        make(&place.folder()).expect("made");
        leave(4_000_000);
        let none = connect_in(&folders, "core", 4_000_000).expect_err("nobody listens");
        assert!(none.kind() == io::ErrorKind::NotFound && !place.folder().exists());
    }

    #[test]
    fn a_process_that_has_the_name_of_another_is_not_believed() {
        let place = Place::new("name");
        make(&place.folder()).expect("made");
        // This process listens under the number of process 1.
        let _listener = UnixListener::bind(place.folder().join(name("core", 1))).expect("bound");
        assert!(owners_in(&[place.folder()], "core").is_empty());
        assert!(connect_in(&[place.folder()], "core", 1).is_err());
    }

    #[test]
    fn folders_that_others_could_have_made_are_not_used() {
        let place = Place::new("trust");
        let why = |folder: &Path| listen_in(&[folder.to_owned()], "core").expect_err("not used").to_string();
        let real = place.0.join("real");
        DirBuilder::new().mode(0o700).create(&real).expect("made");
        symlink(&real, place.folder()).expect("made");
        assert!(why(&place.folder()).contains("no folder of this user's own"), "a link is not followed");
        assert_eq!(fs::read_dir(&real).expect("a folder").count(), 0);
        fs::remove_file(place.folder()).expect("removed");
        DirBuilder::new().create(place.folder()).expect("made");
        fs::set_permissions(place.folder(), Permissions::from_mode(0o750)).expect("set");
        assert!(why(&place.folder()).contains("needs mode 0700"));
        fs::remove_dir(place.folder()).expect("removed");
        let mode = |mode| fs::set_permissions(&place.0, Permissions::from_mode(mode)).expect("set");
        mode(0o777);
        assert!(why(&place.folder()).contains("may replace"));
        mode(0o1777);
        drop(listen_in(&[place.folder()], "core").expect("as /tmp"));
        mode(0o700);
        if host::user() != 0 {
            println!("SKIP: needs root for folders of other users");
            return;
        }
        DirBuilder::new().mode(0o700).create(place.folder()).expect("made");
        std::os::unix::fs::chown(place.folder(), Some(1), None).expect("given away");
        assert!(why(&place.folder()).contains("no folder of this user's own"));
        assert!(owners_in(&[place.folder()], "core").is_empty());
        // The next folder is taken.
        let next = place.0.join("next");
        let (_listener, file) = listen_in(&[place.folder(), next.clone()], "core").expect("listens");
        assert_eq!(file.path().parent(), Some(next.as_path()));
    }

    #[test]
    fn the_environment_names_the_first_folder() {
        let of = |user, given: Option<&str>| {
            let all = folders_of(user, given.map(PathBuf::from));
            all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(7, Some("/run/user/7")), "/run/user/7/orbit /tmp/orbit-7");
        assert_eq!(of(7, Some("/own")), "/own/orbit /run/user/7/orbit /tmp/orbit-7");
        assert_eq!(of(0, Some("relative")), "/run/user/0/orbit /run/orbit-0 /tmp/orbit-0");
        assert_eq!(of(7, None), of(7, Some("")));
    }
}
