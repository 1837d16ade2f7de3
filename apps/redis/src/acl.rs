//! The users that may use the module's commands.
//!
//! Redis 7.0 puts a module's command into no category, so `-@admin` and `-@dangerous` pass it by.
//! Each of the commands therefore asks, beside the right to itself, for the right to the command of
//! Redis that it is like; a user without it gets Redis' own error, and it is noted in `ACL LOG`.
//! From 7.2 on the categories are set too.

use orbit_redis_api::{Caller, Context, Error, Permission, server_version};

/// From this version on the server names the user in its refusals.
const NAMES_USERS: i32 = 0x07_02_00;

/// An error unless the user of this context may run this command (with its subcommand). Of several
/// the first counts that the server has; where it has none of them there is nothing to be allowed.
pub fn may(ctx: &Context, commands: &[&[&[u8]]]) -> Result<(), Error> {
    let user = match ctx.caller() {
        Caller::Server => return Ok(()),
        Caller::User(user) => user,
        Caller::Gone => return Err("NOPERM this user is there no more".into()),
        Caller::Hidden => return Err("ORBIT this Redis does not show a module what its users may do".into()),
    };
    for words in commands {
        match user.may(words) {
            Permission::Allowed => break,
            Permission::Missing => {}
            Permission::Denied => {
                let words: Vec<_> =
                    words.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
                let command = words.join("|");
                user.note_denial(command.as_bytes());
                let who = if server_version() >= NAMES_USERS {
                    format!("User {}", user.name())
                } else {
                    "this user".to_owned()
                };
                return Err(format!("NOPERM {who} has no permissions to run the '{command}' command").into());
            }
        }
    }
    Ok(())
}
