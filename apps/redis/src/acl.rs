//! The users that may use the module's commands.
//!
//! Redis 7.0 puts a module's command into no category, so `-@admin` and `-@dangerous` pass it by.
//! Each of the commands therefore asks, beside the right to itself, for the right to the command of
//! Redis that it is like; a user without it gets Redis' own error, and it is noted in `ACL LOG`.
//! From 7.2 on the categories are set too.

use std::os::raw::c_int;

use redis_module::{Context, RedisError, RedisString, raw};

/// The answer of a server that lacks what is needed to know.
const RIGHTS_UNKNOWN: RedisError = RedisError::Str("ORBIT this Redis does not show a module what its users may do");

/// An error unless the user of this context may run this command (with its subcommand). Of several
/// the first counts that the server has; where it has none of them there is nothing to be allowed.
pub fn may(ctx: &Context, commands: &[&[&[u8]]]) -> Result<(), RedisError> {
    let Some(name) = user_name(ctx)? else { return Ok(()) };
    // SAFETY: pointers that are set when the module is loaded and only read later.
    let functions = unsafe {
        (
            raw::RedisModule_GetModuleUserFromUserName,
            raw::RedisModule_ACLCheckCommandPermissions,
            raw::RedisModule_ACLAddLogEntry,
            raw::RedisModule_FreeModuleUser,
        )
    };
    let (Some(user_named), Some(check), Some(log), Some(free)) = functions else { return Err(RIGHTS_UNKNOWN) };
    // SAFETY: the name lives; the user is freed below.
    let user = unsafe { user_named(name.inner) };
    if user.is_null() {
        return Err(RedisError::Str("NOPERM this user is there no more"));
    }
    let mut result = Ok(());
    for words in commands {
        let strings: Vec<_> = words.iter().map(|word| string(word)).collect();
        let mut pointers: Vec<_> = strings.iter().map(|string| string.inner).collect();
        // SAFETY: the user and the strings live through the call.
        if unsafe { check(user, pointers.as_mut_ptr(), pointers.len() as c_int) } == raw::Status::Ok as c_int {
            break;
        }
        if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) {
            continue;
        }
        let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
        let command = words.join("|");
        let object = string(command.as_bytes());
        // SAFETY: all three live; Redis copies the string.
        unsafe { log(ctx.ctx, user, object.inner, raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CMD) };
        let user = if names_users() { format!("User {}", name.to_string_lossy()) } else { "this user".to_owned() };
        result = Err(RedisError::String(format!("NOPERM {user} has no permissions to run the '{command}' command")));
        break;
    }
    // SAFETY: made above and used no more.
    unsafe { free(user) };
    result
}

fn string(bytes: &[u8]) -> RedisString {
    RedisString::create_from_slice(std::ptr::null_mut(), bytes)
}

/// The user this command runs for; `None` for Redis itself (a replication link, another module),
/// whom nothing is denied.
fn user_name(ctx: &Context) -> Result<Option<RedisString>, RedisError> {
    // SAFETY: pointers that are set when the module is loaded and only read later.
    let functions = unsafe {
        (
            raw::RedisModule_GetClientId,
            raw::RedisModule_GetClientUserNameById,
            raw::RedisModule_GetCurrentUserName,
            raw::RedisModule_GetContextFlags,
        )
    };
    let (Some(id), Some(by_id), Some(current), Some(flags)) = functions else { return Err(RIGHTS_UNKNOWN) };
    // SAFETY: the context is live. Of a client without a user only the question by id may be asked;
    // a script's client has one, the caller's, but is found by no id.
    let name = unsafe {
        let in_script = flags(ctx.ctx) as u32 & raw::REDISMODULE_CTX_FLAGS_LUA != 0;
        if in_script { current(ctx.ctx) } else { by_id(ctx.ctx, id(ctx.ctx)) }
    };
    // Freed when it is dropped.
    Ok((!name.is_null()).then(|| RedisString::from_redis_module_string(ctx.ctx, name)))
}

/// Whether this Redis, 7.2 or later, names the user in its refusals.
fn names_users() -> bool {
    // SAFETY: a pointer that is set when the module is loaded; the function takes nothing.
    unsafe { raw::RedisModule_GetServerVersion.is_some_and(|version| version() >= 0x0007_0200) }
}
