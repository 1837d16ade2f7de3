//! The functions of Redis' module interface that are used, as a server gives them by name.
//!
//! | table | since | where it is missing |
//! |---|---|---|
//! | [`Core`] | 6.0 | the module is not loaded |
//! | [`Rights`] | 7.0 | [`Caller::Hidden`](crate::Caller) |
//! | [`Categories`] | 7.2 | commands have no categories |
//!
//! Names, types and numbers are those of Redis' [reference].
//!
//! [reference]: https://redis.io/docs/latest/develop/reference/modules/modules-api-ref/

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_ulonglong, c_void};

/// Declares types of the server that are only ever pointed to.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    /// A context: what a module is called with, and what it calls the server with.
    Ctx
    /// A string of the server.
    Text
    /// What a command answered that a module called.
    Reply
    /// A client that waits for a module.
    Blocked
    /// A user, as a module holds it.
    User
    /// A command that is about to run, as a filter gets it.
    Filter
    /// A filter that has been registered.
    Registration
    /// A command that a module has added.
    Entry
}

/// Success, of functions that return a status.
pub const OK: c_int = 0;
/// Failure, of functions that return a status.
pub const ERR: c_int = 1;

/// The version of the interface that a module says it is written for.
pub const VERSION: c_int = 1;

/// Types of a [`Reply`], of the protocol's second version.
pub const REPLY_STRING: c_int = 0;
/// See [`REPLY_STRING`].
pub const REPLY_ERROR: c_int = 1;
/// See [`REPLY_STRING`].
pub const REPLY_INTEGER: c_int = 2;
/// See [`REPLY_STRING`].
pub const REPLY_ARRAY: c_int = 3;

/// Flag of a context: a script calls.
pub const IN_SCRIPT: c_int = 1;
/// Flag of a filter: it does not see what its module calls.
pub const NOT_OWN_CALLS: c_int = 1;
/// Reason of a line in `ACL LOG`: the command was denied.
pub const DENIED_COMMAND: c_int = 1;

/// Names an event of the server.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Event {
    /// Which.
    pub id: u64,
    /// Version of the data that come with it.
    pub version: u64,
}

/// What runs a command.
pub type OnCommand = unsafe extern "C" fn(*mut Ctx, *mut *mut Text, c_int) -> c_int;
/// What runs at an event, with its subevent and data.
pub type OnEvent = unsafe extern "C" fn(*mut Ctx, Event, u64, *mut c_void);
/// What runs before each command.
pub type OnFilter = unsafe extern "C" fn(*mut Filter);
/// Frees what a module has tied to a waiting client.
pub type Free = unsafe extern "C" fn(*mut Ctx, *mut c_void);

/// Writes the address of the function of this name; without one it leaves the place as it is.
type GetApi = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;

/// Declares a table of functions, and how it is filled.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident {
        $($field:ident $name:literal ($($of:ty),* $(; $variadic:tt)?) $(-> $to:ty)?;)*
    }) => {
        $(#[$doc])*
        #[expect(missing_docs, reason = "each function is documented by its name in Redis' reference")]
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($of),* $(, $variadic)?) $(-> $to)?,)*
        }

        impl $table {
            /// Asks for each function. An error is the name of the first that is missing.
            ///
            /// # Safety
            /// `get` is that of the server in which this runs.
            unsafe fn ask(get: GetApi) -> Result<$table, &'static CStr> {
                Ok($table {$(
                    $field: {
                        let mut function: Option<unsafe extern "C" fn($($of),* $(, $variadic)?) $(-> $to)?> = None;
                        // SAFETY: by contract. It writes the address of a function of this type,
                        // which an option of one has room for, or nothing.
                        unsafe { get($name.as_ptr(), (&raw mut function).cast()) };
                        function.ok_or($name)?
                    },
                )*})
            }
        }
    };
}

table! {
    /// The server's log.
    Log {
        log c"RedisModule_Log" (*mut Ctx, *const c_char, *const c_char; ...);
    }
}

table! {
    /// What every module needs.
    Core {
        set_attributes c"RedisModule_SetModuleAttribs" (*mut Ctx, *const c_char, c_int, c_int);
        is_name_taken c"RedisModule_IsModuleNameBusy" (*const c_char) -> c_int;
        create_command c"RedisModule_CreateCommand"
            (*mut Ctx, *const c_char, OnCommand, *const c_char, c_int, c_int, c_int) -> c_int;

        create_text c"RedisModule_CreateString" (*mut Ctx, *const c_char, usize) -> *mut Text;
        free_text c"RedisModule_FreeString" (*mut Ctx, *mut Text);
        bytes_of c"RedisModule_StringPtrLen" (*const Text, *mut usize) -> *const c_char;

        call c"RedisModule_Call" (*mut Ctx, *const c_char, *const c_char; ...) -> *mut Reply;
        free_reply c"RedisModule_FreeCallReply" (*mut Reply);
        reply_type c"RedisModule_CallReplyType" (*mut Reply) -> c_int;
        reply_length c"RedisModule_CallReplyLength" (*mut Reply) -> usize;
        reply_element c"RedisModule_CallReplyArrayElement" (*mut Reply, usize) -> *mut Reply;
        reply_integer c"RedisModule_CallReplyInteger" (*mut Reply) -> c_longlong;
        reply_bytes c"RedisModule_CallReplyStringPtr" (*mut Reply, *mut usize) -> *const c_char;

        send_integer c"RedisModule_ReplyWithLongLong" (*mut Ctx, c_longlong) -> c_int;
        send_error c"RedisModule_ReplyWithError" (*mut Ctx, *const c_char) -> c_int;
        send_status c"RedisModule_ReplyWithSimpleString" (*mut Ctx, *const c_char) -> c_int;
        send_bytes c"RedisModule_ReplyWithStringBuffer" (*mut Ctx, *const c_char, usize) -> c_int;
        send_array c"RedisModule_ReplyWithArray" (*mut Ctx, c_long) -> c_int;
        send_reply c"RedisModule_ReplyWithCallReply" (*mut Ctx, *mut Reply) -> c_int;
        send_wrong_arity c"RedisModule_WrongArity" (*mut Ctx) -> c_int;

        block c"RedisModule_BlockClient"
            (*mut Ctx, Option<OnCommand>, Option<OnCommand>, Option<Free>, c_longlong) -> *mut Blocked;
        unblock c"RedisModule_UnblockClient" (*mut Blocked, *mut c_void) -> c_int;
        make_context c"RedisModule_GetThreadSafeContext" (*mut Blocked) -> *mut Ctx;
        free_context c"RedisModule_FreeThreadSafeContext" (*mut Ctx);
        lock c"RedisModule_ThreadSafeContextLock" (*mut Ctx);
        unlock c"RedisModule_ThreadSafeContextUnlock" (*mut Ctx);

        subscribe c"RedisModule_SubscribeToServerEvent" (*mut Ctx, Event, Option<OnEvent>) -> c_int;
        register_filter c"RedisModule_RegisterCommandFilter" (*mut Ctx, OnFilter, c_int) -> *mut Registration;
        filtered_count c"RedisModule_CommandFilterArgsCount" (*mut Filter) -> c_int;
        filtered_argument c"RedisModule_CommandFilterArgGet" (*mut Filter, c_int) -> *const Text;
    }
}

table! {
    /// What it takes to know the rights of a command's user.
    Rights {
        client_id c"RedisModule_GetClientId" (*mut Ctx) -> c_ulonglong;
        user_name_by_id c"RedisModule_GetClientUserNameById" (*mut Ctx, u64) -> *mut Text;
        current_user_name c"RedisModule_GetCurrentUserName" (*mut Ctx) -> *mut Text;
        context_flags c"RedisModule_GetContextFlags" (*mut Ctx) -> c_int;
        user_named c"RedisModule_GetModuleUserFromUserName" (*mut Text) -> *mut User;
        free_user c"RedisModule_FreeModuleUser" (*mut User);
        check_command c"RedisModule_ACLCheckCommandPermissions" (*mut User, *mut *mut Text, c_int) -> c_int;
        note_denial c"RedisModule_ACLAddLogEntry" (*mut Ctx, *mut User, *mut Text, c_int);
        server_version c"RedisModule_GetServerVersion" () -> c_int;
    }
}

table! {
    /// What it takes to put commands into categories.
    Categories {
        command c"RedisModule_GetCommand" (*mut Ctx, *const c_char) -> *mut Entry;
        set c"RedisModule_SetCommandACLCategories" (*mut Entry, *const c_char) -> c_int;
    }
}

/// All that the server has.
pub struct Api {
    /// Its log.
    pub log: Log,
    /// What every module needs.
    pub core: Core,
    /// `None` before 7.0.
    pub rights: Option<Rights>,
    /// `None` before 7.2.
    pub categories: Option<Categories>,
}

/// What a server lacks, so that no module is loaded.
pub struct Lacking {
    /// The name of a function.
    pub function: &'static CStr,
    /// Its log, if that is there.
    pub log: Option<Log>,
}

impl Api {
    /// Asks the server that loads the module.
    ///
    /// # Safety
    /// `ctx` is what the server has called the module's `RedisModule_OnLoad` with.
    pub unsafe fn ask(ctx: *mut Ctx) -> Result<Api, Lacking> {
        // SAFETY: the first word of a context is the address of the function that gives the others.
        // That, and each table, is of this server.
        unsafe {
            let get = *ctx.cast::<GetApi>();
            let log = Log::ask(get).map_err(|function| Lacking { function, log: None })?;
            match Core::ask(get) {
                Ok(core) => Ok(Api { log, core, rights: Rights::ask(get).ok(), categories: Categories::ask(get).ok() }),
                Err(function) => Err(Lacking { function, log: Some(log) }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has all functions but one.
    unsafe extern "C" fn all_but_lock(name: *const c_char, place: *mut c_void) -> c_int {
        // SAFETY: `ask` gives a name, and a place for the address of a function.
        unsafe {
            if CStr::from_ptr(name) == c"RedisModule_ThreadSafeContextLock" {
                return ERR;
            }
            place.cast::<GetApi>().write(all_but_lock);
        }
        OK
    }

    /// One that has what Redis 6.0 had.
    unsafe extern "C" fn of_6_0(name: *const c_char, place: *mut c_void) -> c_int {
        // SAFETY: as above.
        unsafe {
            let name = CStr::from_ptr(name).to_bytes();
            if [b"ACL".as_slice(), b"UserName", b"GetCommand"]
                .iter()
                .any(|new| name.windows(new.len()).any(|w| w == *new))
            {
                return ERR;
            }
            place.cast::<GetApi>().write(of_6_0);
        }
        OK
    }

    #[test]
    fn a_server_that_lacks_a_function_is_rejected_by_its_name() {
        let mut ctx: GetApi = all_but_lock;
        // SAFETY: a context's first word is such a function; none of those that it gives is called.
        let lacking = unsafe { Api::ask((&raw mut ctx).cast()) }.err().expect("it lacks one");
        assert_eq!((lacking.function, lacking.log.is_some()), (c"RedisModule_ThreadSafeContextLock", true));
    }

    #[test]
    fn what_came_after_6_0_may_be_missing() {
        let mut ctx: GetApi = of_6_0;
        // SAFETY: the same.
        let api = unsafe { Api::ask((&raw mut ctx).cast()) }.ok().expect("it has what is needed");
        assert!(api.rights.is_none() && api.categories.is_none());
    }
}
