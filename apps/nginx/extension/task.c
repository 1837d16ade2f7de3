/* The task, in the orbit: all that PUT does with files once the body is there. nginx' own
 * functions do it: a rename, a copy where the file systems differ, directories, access and time
 * of the file.
 *
 * The orbit cannot write nginx' log or its shared memory. Lines to be logged are pushed to the
 * worker. Names of copies come from a counter in shared memory: the worker draws the number, and
 * removes the copy if the task fails.
 */
#include "dav.h"

static ngx_atomic_t temp_number;
static ngx_open_file_t no_file = {.fd = ngx_stderr};

static void push(const void *bytes, size_t size)
{
    struct orbit_update *update = orbit_update_create();
    if (update) {
        orbit_update_add_data(update, bytes, size);
        orbit_push(update);
        orbit_update_free(update);
    }
}

/* nginx writes "time [level] pid#tid: text": the worker's line has all but the text. */
static void push_line(ngx_log_t *log, ngx_uint_t level, u_char *line, size_t size)
{
    struct log_line copy = {.level = level};
    u_char *end = line + size, *text = ngx_strlchr(line, end, '#');
    text = text ? ngx_strlchr(text, end, ' ') : NULL;
    text = text ? text + 1 : line;
    while (end > text && (end[-1] == LF || end[-1] == ' '))
        end--;
    copy.size = ngx_min((size_t)(end - text), sizeof copy.text);
    ngx_memcpy(copy.text, text, copy.size);
    push(&copy, offsetof(struct log_line, text) + copy.size);
}

static ngx_log_t to_worker = {.log_level = NGX_LOG_NOTICE, .file = &no_file, .writer = push_line};

void *put_init(void)
{
    ngx_setproctitle("orbit of PUT");
    ngx_temp_number = &temp_number;
    return NULL;
}

/* nginx' bug 238: the handler took for granted that a body was there. */
static __attribute__((noinline)) long size_of_missing_body(const struct put_args *args)
{
    const char *volatile body = args->source_size ? args->paths : NULL;
    return body[0];
}

static long store_file(const struct put_args *args)
{
    ngx_ext_rename_file_t how;
    ngx_file_info_t target_info;
    ngx_str_t source = {args->source_size - 1, (u_char *)args->paths};
    ngx_str_t target = {args->target_size - 1, (u_char *)put_target(args)};
    long status = NGX_HTTP_CREATED;
    if (ngx_file_info(target.data, &target_info) != NGX_FILE_ERROR) {
        if (ngx_is_dir(&target_info)) {
            ngx_log_error(NGX_LOG_ERR, &to_worker, NGX_EISDIR, "\"%s\" could not be created", target.data);
            if (ngx_delete_file(source.data) == NGX_FILE_ERROR)
                ngx_log_error(NGX_LOG_CRIT, &to_worker, ngx_errno, ngx_delete_file_n " \"%s\" failed", source.data);
            return NGX_HTTP_CONFLICT;
        }
        status = NGX_HTTP_NO_CONTENT;
    }
    ngx_memzero(&how, sizeof how);
    how.access = how.path_access = args->access;
    how.time = args->modified;
    how.fd = NGX_INVALID_FILE;
    how.create_path = args->create_path != 0;
    how.delete_file = 1;
    how.log = &to_worker;
    return ngx_ext_rename_file(&source, &target, &how) == NGX_OK ? status : NGX_HTTP_INTERNAL_SERVER_ERROR;
}

static long do_put(const struct put_args *args)
{
    temp_number = args->temp_number - 1;
    do_fault(args->fault);
    if (args->fault == FAULT_NO_BODY)
        return size_of_missing_body(args);
    if (args->fault == FAULT_LIE)
        return 12345;
    return store_file(args);
}

long put_task(void *store, void *raw)
{
    static const uint64_t one = 1;
    const struct put_end end = {.status = (uint32_t)do_put(raw)};
    push(&end, sizeof end);
    /* Its failure costs time only: the worker checks too. */
    if (write(put_done_fd, &one, sizeof one) < 0)
        return 0;
    return 0;
}
