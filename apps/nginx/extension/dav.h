/* orbit_dav: PUT for nginx, its file work in an orbit. What the files of the module share. */
#ifndef ORBIT_DAV_H
#define ORBIT_DAV_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <orbit.h>

#include "fault.h"

/* Longest path that is taken, bytes with its NUL. */
#define MAX_PATH_SIZE 4096

/* A port's fault: trusts that there is a body, as nginx did before its bug 238 was fixed. */
#define FAULT_NO_BODY FAULT_OF_PORT

/* Of a location. */
typedef struct {
    ngx_flag_t on;
    ngx_flag_t create_full_path;
    ngx_uint_t access;
    ngx_msec_t deadline; /* milliseconds */
    ngx_flag_t faults;
} dav_location_conf;

/* Of the server. */
typedef struct {
    size_t memory; /* bytes */
    ngx_flag_t is_used;
} dav_main_conf;

/* The arguments of a call. Written by the worker, read by the task. */
struct put_args {
    int64_t modified; /* seconds since 1970; -1: the time of the write */
    uint64_t temp_number;
    uint32_t access;
    uint32_t create_path;
    uint32_t fault;
    uint32_t source_size; /* bytes of the temporary file's path with its NUL; 0: there is no body */
    uint32_t target_size;
    char paths[]; /* source, target */
};

static inline const char *put_target(const struct put_args *args)
{
    return args->paths + args->source_size;
}

/* A line of nginx' log that the task wrote, as it is pushed. */
struct log_line {
    uint32_t level;
    uint32_t size;
    char text[NGX_MAX_ERROR_STR];
};

/* The end of a PUT, as it is pushed: a line has a level. */
struct put_end {
    uint32_t no_level; /* 0 */
    uint32_t status;
};

extern ngx_module_t orbit_dav_module;

/* orbit.c: the orbit of this worker. */
/* An eventfd that the task signals as it ends; -1: none. */
extern int put_done_fd;
ngx_int_t dav_orbit_start(ngx_cycle_t *cycle, const dav_main_conf *conf);
ngx_int_t dav_orbit_is_up(void);
void dav_orbit_stop(void);

/* A call's end: the status of the response, or a negative error with outcome->text. */
struct put_call;
typedef void (*put_done)(void *data, ngx_int_t status, const char *failure);
/* A line that the task logged. */
typedef void (*put_log)(void *data, ngx_uint_t level, const u_char *text, size_t size);

/* Makes the call as soon as the orbit takes it, never blocks. done is called once, from the event
 * loop, unless the call is abandoned. NULL: no memory. args_size bytes at args are copied. */
struct put_call *put_call_start(const struct put_args *args, size_t args_size, ngx_msec_t deadline, put_done done,
                                put_log log, void *data);
/* done will not be called. */
void put_call_abandon(struct put_call *call);

/* put.c: a request. */
ngx_int_t put_handler(ngx_http_request_t *r);

/* task.c */
void *put_init(void);
long put_task(void *store, void *args);

#endif
