//! Who a command runs for, and what else that user may run.

use std::ffi::c_int;
use std::io::ErrorKind;

use crate::context::{Texts, bytes};
use crate::{Context, api, core, ffi};

/// Who a command runs for.
pub enum Caller<'a> {
    /// The server itself (a replication link, another module), whom nothing is denied.
    Server,
    /// This user.
    User(User<'a>),
    /// A user that has been deleted.
    Gone,
    /// The server does not show it: it is older than 7.0.
    Hidden,
}

/// What a user may do with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Run it.
    Allowed,
    /// Not run it.
    Denied,
    /// The server has no such command.
    Missing,
}

/// A user as of the command that is running.
pub struct User<'a> {
    ctx: &'a Context,
    rights: &'static ffi::Rights,
    name: *mut ffi::Text,
    user: *mut ffi::User,
}

impl Context {
    /// Who the command of this context runs for.
    pub fn caller(&self) -> Caller<'_> {
        let Some(rights) = &api().rights else { return Caller::Hidden };
        // SAFETY: the context is good. Of a client without a user only the question by id may be
        // asked; a script's client has one, the caller's, but is found by no id.
        let name = unsafe {
            let is_in_script = (rights.context_flags)(self.raw) & ffi::IN_SCRIPT != 0;
            if is_in_script {
                (rights.current_user_name)(self.raw)
            } else {
                (rights.user_name_by_id)(self.raw, (rights.client_id)(self.raw))
            }
        };
        if name.is_null() {
            return Caller::Server;
        }
        // SAFETY: the name lives. Both are freed when the value is dropped.
        let user = unsafe { (rights.user_named)(name) };
        let found = User { ctx: self, rights, name, user };
        if user.is_null() { Caller::Gone } else { Caller::User(found) }
    }
}

impl User<'_> {
    /// The user's name.
    pub fn name(&self) -> String {
        // SAFETY: the name lives as long as this.
        String::from_utf8_lossy(unsafe { bytes(self.name) }).into_owned()
    }

    /// Whether the user may run this command, by its name and arguments.
    pub fn may(&self, words: &[&[u8]]) -> Permission {
        let mut texts = Texts::new(words);
        let words = texts.pointers();
        // SAFETY: the user and the strings live through the call.
        let status = unsafe { (self.rights.check_command)(self.user, words.as_mut_ptr(), words.len() as c_int) };
        if status == ffi::OK {
            Permission::Allowed
        } else if std::io::Error::last_os_error().kind() == ErrorKind::NotFound {
            Permission::Missing
        } else {
            Permission::Denied
        }
    }

    /// Notes in `ACL LOG` that the user was denied this command.
    pub fn note_denial(&self, command: &[u8]) {
        let mut texts = Texts::new(&[command]);
        let object = texts.pointers()[0];
        // SAFETY: all three live; the server copies the string.
        unsafe { (self.rights.note_denial)(self.ctx.raw, self.user, object, ffi::DENIED_COMMAND) };
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        // SAFETY: both were made for this value; the context that the name was made with lives.
        unsafe {
            if !self.user.is_null() {
                (self.rights.free_user)(self.user);
            }
            (core().free_text)(self.ctx.raw, self.name);
        }
    }
}

/// The server's version, a byte each for major, minor and patch: 7.2.0 is 0x070200. 0 where it does
/// not say, before 7.0.
pub fn server_version() -> c_int {
    // SAFETY: the function takes nothing.
    api().rights.as_ref().map_or(0, |rights| unsafe { (rights.server_version)() })
}
