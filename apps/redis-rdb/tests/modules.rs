//! Other modules, whose variables are in no area: saves are made by a fork, and have them.

use orbit_redis_rdb::Server;

/// A module with a count in a variable of its own, which it saves beside the keys.
const OTHER: &str = r#"
#include <string.h>
struct context; struct string; struct io;
static int (*api)(const char *, void *);
static void (*attributes)(struct context *, const char *, int, int);
static int (*command)(struct context *, const char *, int (*)(struct context *, struct string **, int), const char *,
                      int, int, int);
static int (*reply)(struct context *, long long);
static void *(*new_type)(struct context *, const char *, int, void *);
static void (*save_number)(struct io *, long long);
static long long (*load_number)(struct io *);
static long long count;
static void save_count(struct io *io, int when) { if (when == 1) save_number(io, count); }
static int load_count(struct io *io, int version, int when)
{
    (void)version, (void)when;
    count = load_number(io);
    return 0;
}
static int add(struct context *ctx, struct string **words, int n) { (void)words, (void)n; return reply(ctx, ++count); }
static int get(struct context *ctx, struct string **words, int n) { (void)words, (void)n; return reply(ctx, count); }
int RedisModule_OnLoad(struct context *ctx, struct string **words, int n)
{
    struct { unsigned long version; void *key[6]; void *aux_load, *aux_save; int when; void *rest[24]; } type;
    (void)words, (void)n;
    memcpy(&api, ctx, sizeof api);
    api("RedisModule_SetModuleAttribs", &attributes);
    api("RedisModule_CreateCommand", &command);
    api("RedisModule_ReplyWithLongLong", &reply);
    api("RedisModule_CreateDataType", &new_type);
    api("RedisModule_SaveSigned", &save_number);
    api("RedisModule_LoadSigned", &load_number);
    attributes(ctx, "counts", 1, 1);
    memset(&type, 0, sizeof type);
    type.version = 4, type.aux_load = load_count, type.aux_save = save_count, type.when = 1;
    return !new_type(ctx, "countsbox", 0, &type) || command(ctx, "counts.add", add, "write", 0, 0, 0) ||
           command(ctx, "counts.get", get, "readonly", 0, 0, 0);
}
"#;

fn build_other(directory: &std::path::Path) -> std::path::PathBuf {
    let (source, library) = (directory.join("counts.c"), directory.join("counts.so"));
    std::fs::write(&source, OTHER).expect("written");
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("cc runs").success());
    library
}

#[test]
fn what_another_module_keeps_is_saved() {
    let Some(server) = Server::start(&[]) else { return };
    let other = build_other(server.directory());
    server.run("SET key value");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 1);

    // Loaded after the orbit was made.
    assert_eq!(server.run(&format!("MODULE LOAD {}", other.display())), "OK");
    (1..=5).for_each(|n| assert_eq!(server.run("COUNTS.ADD"), n.to_string()));
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 1, "the orbit does not have the module's variables");
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 1);
    server.wait_for_log("this save is forked as without the module: another module is loaded");
    let Some(stock) = Server::start_module(&other, &[]) else { return };
    std::fs::copy(server.directory().join("dump.rdb"), stock.directory().join("dump.rdb")).expect("a file was saved");
    assert_eq!(stock.run("DEBUG RELOAD NOSAVE NOFLUSH"), "OK", "{}", stock.log());
    assert_eq!(stock.run("COUNTS.GET"), "5");
    assert_eq!(stock.run("GET key"), "value");

    // Loaded before this one.
    let Some(server) = Server::start(&["--loadmodule", &other.display().to_string()]) else { return };
    assert_eq!(server.run("COUNTS.ADD"), "1");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 1);
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 0);
}
