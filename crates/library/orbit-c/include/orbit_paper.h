/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * orbit_paper.h: the interface of "orbit" (OSDI '22) as that paper prints it: Table 1, section 4.1,
 * and the calls of its listings. For ports of programs that are written to it; a new program has
 * more with orbit.h, of which this is a layer of macros and inline functions. A source file
 * includes one of the two: this one takes the names over. C (GNU) and C++ from C++11 on.
 *
 *     #include <orbit_paper.h>
 *     long check(void *argbuf, void *store) { ... return victim; }     // in the orbit
 *     orbit *dlc = orbit_create("dl_checker", check, NULL);
 *     orbit_area *area = orbit_area_create(4096);
 *     lock_t *lock = (lock_t *)orbit_alloc(area, sizeof(*lock));
 *     long victim = orbit_call(dlc, 1, &area, &args, sizeof(args));
 *
 * What the paper leaves open is so:
 * - A call whose task fails returns -errno as orbit.h says it; errno is that number, and 0 after a
 *   call that succeeded, so that a task may return anything. orbit_last_error() has the sentence.
 * - pull_orbit: 1, *update is one; 0, the call has ended and none is left, and *update is empty:
 *   orbit_update_first gives NULL; -errno. A pulled update is the future's: the next pull of the
 *   same future, and orbit_future_free, take it away. The paper shows no end of futures: they are
 *   freed by orbit_future_free, and at most 1,048,576 live.
 * - orbit_push takes the update over (the paper moves its pages). The future it may name is that
 *   of the call that runs.
 * - orbit_update_add_operation names a function of one pointer, as in the listing. Main runs it
 *   only if the text of the program or library that applies the update names this very function
 *   in an orbit_update_add_operation too, and if the pointer is NULL or points into an area
 *   (adopted memory does not count): else orbit_apply gives -EACCES and changes nothing. Not in
 *   inline functions and templates of C++.
 * - Snapshots are incremental always (section 4.6.1). ORBIT_INCREMENTAL may be said.
 */
#ifndef ORBIT_PAPER_H
#define ORBIT_PAPER_H

#include <errno.h>
#include <orbit.h>
#include <stdlib.h>
#include <string.h>

/* A flag of orbit_call_async, without effect: every snapshot is. */
#define ORBIT_INCREMENTAL 0x100

typedef struct orbit orbit;
typedef struct orbit_area orbit_area;
typedef struct orbit_future orbit_future;

/* orbit_update: in a task by pointer, from orbit_update_create; in main by value. */
typedef struct orbit_paper_update {
    struct orbit_update *handle;
} orbit_paper_update;

/* What orbit_update_first and orbit_update_next give: struct orbit_item, with data that may be
 * written to and is aligned to 16. */
struct orbit_paper_item {
    int kind; /* enum orbit_item_kind */
    int reserved;
    size_t size;
    void *data;
    void *address;
    const void *old_data;
    orbit_operation operation;
} __attribute__((may_alias));

/* A function that the program names as an operation; they lie side by side in a section. */
struct orbit_paper_named {
    void (*function)(void);
};
/* What a task asks for. */
struct orbit_paper_request {
    void (*function)(void);
    void *argument;
};

#ifdef __cplusplus
extern "C" {
#endif
extern struct orbit_paper_named __start_orbit_paper_operations[] __attribute__((weak, visibility("hidden")));
extern struct orbit_paper_named __stop_orbit_paper_operations[] __attribute__((weak, visibility("hidden")));
long orbit_paper_operation(void *args, size_t len) __attribute__((weak, visibility("hidden")));

/* Whether main may run what was asked for, which it has copied to *request. */
static inline int orbit_paper_permits(const void *args, size_t len, struct orbit_paper_request *request)
{
    if (args == NULL || len != sizeof *request)
        return 0;
    memcpy(request, args, sizeof *request);
    if (request->argument != NULL && orbit_is_from_area(request->argument) != 1)
        return 0;
    const struct orbit_paper_named *one = __start_orbit_paper_operations, *end = __stop_orbit_paper_operations;
    for (; one < end; one++)
        if (one->function == request->function)
            return 1;
    return 0;
}

/* The one operation that is registered: it runs the others. */
long orbit_paper_operation(void *args, size_t len)
{
    struct orbit_paper_request request;
    if (!orbit_paper_permits(args, len, &request))
        return -EACCES;
    return ((long (*)(void *))request.function)(request.argument);
}

static inline orbit *orbit_paper_create(const char *name, orbit_entry entry, void *(*init)(void))
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = name;
    options.entry = entry;
    options.init = init;
    options.flags = ORBIT_ARGS_FIRST;
    return orbit_create_with(&options);
}

/* The task's value, or how it failed. */
static inline long orbit_paper_value(int code, const struct orbit_outcome *outcome)
{
    errno = code < 0 ? -code : 0;
    return code < 0 ? code : outcome->value;
}

static inline long orbit_paper_call(orbit *ob, size_t narea, orbit_area **areas, orbit_entry func_once,
                                    const void *arg, size_t argsize)
{
    struct orbit_outcome outcome;
    int code = orbit_call(ob, narea, areas, func_once, arg, argsize, &outcome);
    return orbit_paper_value(code, &outcome);
}

static inline orbit_future *orbit_paper_call_async(orbit *ob, int flags, size_t narea, orbit_area **areas,
                                                   orbit_entry func_once, const void *arg, size_t argsize)
{
    return orbit_call_async(ob, flags & ~ORBIT_INCREMENTAL, narea, areas, func_once, arg, argsize);
}

/* Section 4.1: waits for the end of the call, and gives the task's value. */
static inline long orbit_future_get(orbit_future *future)
{
    struct orbit_outcome outcome;
    int code = orbit_future_wait(future, &outcome);
    return orbit_paper_value(code, &outcome);
}

static inline orbit_paper_update *orbit_paper_update_create(void)
{
    orbit_paper_update *update = (orbit_paper_update *)malloc(sizeof *update);
    if (update == NULL)
        return NULL;
    update->handle = orbit_update_create();
    if (update->handle == NULL) {
        free(update);
        return NULL;
    }
    return update;
}

static inline int orbit_paper_add_data(orbit_paper_update *update, const void *data, size_t size)
{
    return update == NULL ? -EINVAL : orbit_update_add_data(update->handle, data, size);
}

static inline int orbit_paper_add_modify(orbit_paper_update *update, const volatile void *place, const void *value,
                                         size_t size)
{
    return update == NULL ? -EINVAL : orbit_update_add_modify(update->handle, (const void *)place, value, size);
}

static inline int orbit_paper_add_operation(orbit_paper_update *update, void (*function)(void), const void *argument)
{
    struct orbit_paper_request request;
    request.function = function;
    request.argument = (void *)argument;
    return update == NULL ? -EINVAL
                          : orbit_update_add_operation(update->handle, orbit_paper_operation, &request, sizeof request);
}

static inline long orbit_paper_push(orbit_paper_update *update, orbit_future *future)
{
    (void)future;
    if (update == NULL)
        return -EINVAL;
    int code = orbit_push(update->handle);
    if (code < 0)
        return code;
    (void)orbit_update_free(update->handle);
    free(update);
    return 0;
}

static inline long orbit_paper_pull(orbit_future *future, orbit_paper_update *update)
{
    if (update == NULL)
        return -EINVAL;
    update->handle = NULL;
    return orbit_future_pull(future, &update->handle);
}

static inline const struct orbit_paper_item *orbit_paper_first(orbit_paper_update update)
{
    return update.handle == NULL ? NULL : (const struct orbit_paper_item *)orbit_update_first(update.handle);
}

static inline const struct orbit_paper_item *orbit_paper_next(orbit_paper_update update,
                                                              const struct orbit_paper_item *item)
{
    const struct orbit_item *after = (const struct orbit_item *)item;
    return update.handle == NULL ? NULL : (const struct orbit_paper_item *)orbit_update_next(update.handle, after);
}

static inline long orbit_paper_apply(orbit_paper_update update)
{
    const struct orbit_item *item = update.handle == NULL ? NULL : orbit_update_first(update.handle);
    for (; item != NULL; item = orbit_update_next(update.handle, item)) {
        struct orbit_paper_request request;
        if (item->kind == ORBIT_ITEM_OPERATION && item->operation == orbit_paper_operation &&
            !orbit_paper_permits(item->data, item->size, &request))
            return -EACCES;
    }
    int code = orbit_register_operation(orbit_paper_operation);
    return code < 0 ? code : orbit_apply(update.handle);
}
#ifdef __cplusplus
}
#endif

/* From here on the paper's names. */
#define orbit_update orbit_paper_update
#define orbit_create orbit_paper_create
#define orbit_call_async orbit_paper_call_async
#define orbit_update_create orbit_paper_update_create
#define orbit_update_first orbit_paper_first
#define orbit_update_next orbit_paper_next
#define orbit_apply orbit_paper_apply
#define pull_orbit orbit_paper_pull

/* With the argument that the listings leave out, or without. */
#define ORBIT_PAPER_SEVENTH_(a, b, c, d, e, f, g, ...) g
#define ORBIT_PAPER_CALL_5_(ob, narea, areas, arg, argsize) orbit_paper_call(ob, narea, areas, NULL, arg, argsize)
#define orbit_call(...) \
    ORBIT_PAPER_SEVENTH_(__VA_ARGS__, orbit_paper_call, ORBIT_PAPER_CALL_5_, 0, 0, 0)(__VA_ARGS__)
#define orbit_area_create(...) ORBIT_PAPER_AREA_(__VA_ARGS__, NULL, 0)
#define ORBIT_PAPER_AREA_(size, ob, ...) (orbit_area_create)(size, ob)
#define orbit_push(...) ORBIT_PAPER_PUSH_(__VA_ARGS__, NULL, 0)
#define ORBIT_PAPER_PUSH_(update, future, ...) orbit_paper_push(update, future)

/* All bytes of what data points to, or so many. */
#define orbit_update_add_data(...) \
    ORBIT_PAPER_FOURTH_(__VA_ARGS__, orbit_paper_add_data, ORBIT_PAPER_DATA_, 0, 0)(__VA_ARGS__)
#define ORBIT_PAPER_FOURTH_(a, b, c, d, ...) d
#define ORBIT_PAPER_DATA_(update, data) orbit_paper_add_data(update, data, sizeof(*(data)))
/* The field at place gets this value. */
#define orbit_update_add_modify(update, place, value)                                               \
    __extension__({                                                                                 \
        __typeof__(*(place)) orbit_paper_value_ = (value);                                          \
        orbit_paper_add_modify(update, place, (const void *)&orbit_paper_value_, sizeof orbit_paper_value_); \
    })
/* Main calls function(argument). */
#define orbit_update_add_operation(update, function_, argument_)                                    \
    __extension__({                                                                                 \
        static struct orbit_paper_named orbit_paper_named_                                          \
            __attribute__((section("orbit_paper_operations"), used)) = { (void (*)(void))(function_) }; \
        orbit_paper_add_operation(update, (void (*)(void))(function_), (const void *)(argument_));  \
    })

#endif
