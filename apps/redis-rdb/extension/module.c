/* orbit_rdb as a module of Redis 7.0: set-up, and the command ORBIT.RDB.
 *
 * The library is preloaded too (see arena.c); without that, or on another version of Redis, the
 * module is not loaded, and Redis saves as always. The few functions of the module API that are
 * used are declared here as the API's documentation has them.
 */
#define _GNU_SOURCE
#include "rdb.h"

#include <execinfo.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct context;
struct string;
struct reply;
struct event {
    uint64_t id, version;
};
#define OK 0
#define ERR 1
#define API_VERSION 1
/* Of RedisModule_CallReplyType. */
#define REPLY_ARRAY 3
/* Of RedisModuleEvent_CronLoop, RedisModuleEvent_EventLoop (before it sleeps) and
 * RedisModuleEvent_Config. */
#define EVENT_CRON 8
#define EVENT_LOOP 15
#define EVENT_LOOP_BEFORE_SLEEP 0
#define EVENT_CONFIG 16

typedef int (*command)(struct context *, struct string **, int);
typedef void (*on_event)(struct context *, struct event, uint64_t, void *);

static int (*get_api)(const char *name, void *function);
static void (*set_attributes)(struct context *, const char *name, int version, int api_version);
static int (*create_command)(struct context *, const char *, command, const char *flags, int first, int last, int step);
static void (*log_line)(struct context *, const char *level, const char *format, ...);
static int (*reply_error)(struct context *, const char *);
static int (*reply_verbatim)(struct context *, const char *, size_t);
static int (*reply_status)(struct context *, const char *);
static const char *(*string_bytes)(const struct string *, size_t *);
static struct reply *(*call)(struct context *, const char *name, const char *format, ...);
static struct reply *(*reply_element)(struct reply *, size_t);
static size_t (*reply_length)(struct reply *);
static int (*reply_type)(struct reply *);
static struct context *(*make_context)(struct context *);
static const char *(*reply_bytes)(struct reply *, size_t *);
static void (*free_reply)(struct reply *);
static int (*server_version)(void);
static int (*subscribe)(struct context *, struct event, on_event);

static bool faults_permitted;
/* For commands outside of a command of ours. */
static struct context *own_context;

void module_log(const char *level, const char *text)
{
    log_line(NULL, level, "orbit_rdb: %s", text);
}

static bool find_api(struct context *ctx)
{
    static const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"RedisModule_SetModuleAttribs", &set_attributes},
        {"RedisModule_CreateCommand", &create_command},
        {"RedisModule_Log", &log_line},
        {"RedisModule_ReplyWithError", &reply_error},
        {"RedisModule_ReplyWithVerbatimString", &reply_verbatim},
        {"RedisModule_ReplyWithSimpleString", &reply_status},
        {"RedisModule_StringPtrLen", &string_bytes},
        {"RedisModule_Call", &call},
        {"RedisModule_CallReplyArrayElement", &reply_element},
        {"RedisModule_CallReplyLength", &reply_length},
        {"RedisModule_CallReplyType", &reply_type},
        {"RedisModule_GetDetachedThreadSafeContext", &make_context},
        {"RedisModule_CallReplyStringPtr", &reply_bytes},
        {"RedisModule_FreeCallReply", &free_reply},
        {"RedisModule_GetServerVersion", &server_version},
        {"RedisModule_SubscribeToServerEvent", &subscribe},
    };
    /* A context begins with the function that gives the others. */
    memcpy(&get_api, ctx, sizeof get_api);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (get_api(wanted[i].name, wanted[i].function) != OK)
            return false;
    return true;
}

/* Takes dbfilename from Redis. */
static bool read_file_name(struct context *ctx)
{
    struct reply *pair = call(ctx, "CONFIG", "cc", "GET", "dbfilename");
    struct reply *value = pair ? reply_element(pair, 1) : NULL;
    size_t length = 0;
    const char *bytes = value ? reply_bytes(value, &length) : NULL;
    char name[256];
    if (bytes) {
        snprintf(name, sizeof name, "%.*s", (int)length, bytes);
        save_set_file(name);
    }
    if (pair)
        free_reply(pair);
    return bytes != NULL;
}

bool module_is_alone(void)
{
    struct reply *list = call(own_context, "MODULE", "c", "LIST");
    /* In the list is this module itself. */
    bool is_alone = list && reply_type(list) == REPLY_ARRAY && reply_length(list) == 1;
    if (list)
        free_reply(list);
    return is_alone;
}

bool module_has_waiting_replica(void)
{
    static const char state[] = "state=wait_bgsave";
    struct reply *info = call(own_context, "INFO", "c", "replication");
    size_t length = 0;
    const char *bytes = info ? reply_bytes(info, &length) : NULL;
    bool waits = !bytes || memmem(bytes, length, state, sizeof state - 1) != NULL;
    if (info)
        free_reply(info);
    return waits;
}

static void on_config(struct context *ctx, struct event event, uint64_t what, void *data)
{
    (void)event, (void)what, (void)data;
    read_file_name(ctx);
}

/* Some thousand times a second under load, ten times else. */
static void on_loop(struct context *ctx, struct event event, uint64_t what, void *data)
{
    (void)ctx, (void)data;
    if (event.id == EVENT_CRON || what == EVENT_LOOP_BEFORE_SLEEP)
        save_sync_ahead();
    if (event.id == EVENT_CRON)
        save_note_names();
}

static int info(struct context *ctx)
{
    char text[2048];
    int first_line = (int)strcspn(save_last_failure, "\n");
    int length = snprintf(text, sizeof text,
                          "orbit_pid:%d\nsaves:%" PRIu64 "\nfailed:%" PRIu64 "\nagain:%" PRIu64 "\nkilled:%" PRIu64
                          "\nforks:%" PRIu64 "\ncall_usec:%" PRIu64
                          "\nareas:%" PRIu64 "\npages:%" PRIu64 "\nsyncs:%" PRIu64 "\nsync_usec:%" PRIu64
                          "\nsaving:%d\nlast_failure:%.*s\n",
                          save_orbit_pid(), save_counters.saves, save_counters.failed, save_counters.again,
                          save_counters.killed, save_counters.forks, save_counters.call_us, save_counters.areas,
                          save_counters.pages, save_counters.syncs, save_counters.sync_us, save_is_pending(),
                          first_line, save_last_failure);
    return reply_verbatim(ctx, text, (size_t)length);
}

static int order_fault(struct context *ctx, const char *kind)
{
    int32_t fault = fault_by_name(kind, "abort");
    if (!faults_permitted)
        return reply_error(ctx, "ERR faults are not permitted: load the module with faults yes");
    if (fault != FAULT_NONE) {
        save_set_fault(fault);
        return reply_status(ctx, "OK");
    }
    return reply_error(ctx, "ERR faults: segv, hang, recursion, abort, memory, kill, lie");
}

static int orbit_rdb_command(struct context *ctx, struct string **words, int count)
{
    const char *sub = count > 1 ? string_bytes(words[1], NULL) : "";
    if (count == 2 && strcasecmp(sub, "INFO") == 0)
        return info(ctx);
    if (count == 3 && strcasecmp(sub, "FAULT") == 0)
        return order_fault(ctx, string_bytes(words[2], NULL));
    return reply_error(ctx, "ERR usage: ORBIT.RDB INFO, or ORBIT.RDB FAULT "
                            "segv|hang|recursion|abort|memory|kill|lie");
}

static int refuse(struct context *ctx, const char *why)
{
    log_line(ctx, "warning", "orbit_rdb: %s", why);
    return ERR;
}

/* A setting of the line that loads the module. */
static bool take_setting(const char *name, const char *value)
{
    char *end;
    unsigned long number = strtoul(value, &end, 10);
    bool is_number = *end == 0 && end != value && number <= 1u << 22, is_yes = strcasecmp(value, "yes") == 0;
    if (strcasecmp(name, "faults") == 0)
        faults_permitted = is_yes;
    else if (strcasecmp(name, "sync") == 0)
        save_settings.syncs = is_yes;
    else if (strcasecmp(name, "memory") == 0 && is_number)
        save_settings.memory_mb = (unsigned)number, save_settings.is_memory_given = true;
    else if (strcasecmp(name, "deadline") == 0 && is_number)
        save_settings.deadline_s = (unsigned)number;
    else
        return false;
    return true;
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(struct context *ctx, struct string **words, int count)
{
    void *frames[2];
    bool is_ready;
    if (!find_api(ctx))
        return ERR;
    set_attributes(ctx, "orbit_rdb", 1, API_VERSION);
    for (int i = 0; i + 1 < count; i += 2)
        if (!take_setting(string_bytes(words[i], NULL), string_bytes(words[i + 1], NULL)))
            return refuse(ctx, "its settings: faults yes|no, sync yes|no, memory MEGABYTES, deadline SECONDS");
    if (server_version() >> 8 != 0x0700)
        return refuse(ctx, "this is not Redis 7.0, the version it knows how to save");
    if (!arena_is_used())
        return refuse(ctx, "Redis must be started with this library in LD_PRELOAD, and use jemalloc");
    if (!read_file_name(ctx))
        return refuse(ctx, "CONFIG GET dbfilename gives no answer");
    own_context = make_context(ctx);
    if (!own_context)
        return refuse(ctx, "Redis gives no context");
    /* Loads what the unwinder needs, before the first save does. */
    backtrace(frames, 2);
    /* What orbits allocate must not lie in memory that is shown to them. */
    arena_leave(true);
    is_ready = again_init() && areas_init() && save_init();
    arena_leave(false);
    if (!is_ready)
        return refuse(ctx, orbit_last_error());
    /* Replicas are served from a file that the orbit writes; a diskless transfer would fork. */
    free_reply(call(ctx, "CONFIG", "ccc", "SET", "repl-diskless-sync", "no"));
    if (subscribe(ctx, (struct event){EVENT_CONFIG, 1}, on_config) != OK ||
        subscribe(ctx, (struct event){EVENT_CRON, 1}, on_loop) != OK ||
        subscribe(ctx, (struct event){EVENT_LOOP, 1}, on_loop) != OK)
        return refuse(ctx, "Redis reports no changes of its settings");
    return create_command(ctx, "orbit.rdb", orbit_rdb_command, "admin readonly", 0, 0, 0);
}

/* Its memory is Redis' heap: it stays. */
__attribute__((visibility("default"))) int RedisModule_OnUnload(struct context *ctx)
{
    return refuse(ctx, "it cannot be unloaded: Redis' heap is in its regions");
}
