/* A PUT, in the worker: reads the body into a temporary file as nginx' own PUT does, has the
 * orbit do the rest, and responds. */
#include "dav.h"

struct put {
    ngx_http_request_t *request;
    struct put_call *call;
    struct put_args *args;
};

static int32_t fault_of(ngx_http_request_t *r, const dav_location_conf *conf)
{
    static const u_char header[] = "x-orbit-fault";
    ngx_list_part_t *part;
    if (!conf->faults)
        return FAULT_NONE;
    for (part = &r->headers_in.headers.part; part; part = part->next) {
        ngx_table_elt_t *headers = part->elts;
        for (ngx_uint_t i = 0; i < part->nelts; i++)
            if (headers[i].key.len == sizeof header - 1
                && ngx_strncmp(headers[i].lowcase_key, header, sizeof header - 1) == 0)
                return fault_by_name((const char *)headers[i].value.data, "no-body");
    }
    return FAULT_NONE;
}

/* ---- the end ---- */

static ngx_int_t add_location(ngx_http_request_t *r)
{
    ngx_table_elt_t *header;
    uintptr_t escapes = ngx_escape_uri(NULL, r->uri.data, r->uri.len, NGX_ESCAPE_URI);
    u_char *text = r->uri.data;
    size_t size = r->uri.len;
    if (escapes) {
        size += 2 * escapes;
        if (!(text = ngx_pnalloc(r->pool, size)))
            return NGX_ERROR;
        ngx_escape_uri(text, r->uri.data, r->uri.len, NGX_ESCAPE_URI);
    }
    ngx_http_clear_location(r);
    if (!(header = ngx_list_push(&r->headers_out.headers)))
        return NGX_ERROR;
    r->headers_out.location = header;
    header->hash = 1;
    ngx_str_set(&header->key, "Location");
    header->value.len = size;
    header->value.data = text;
    return NGX_OK;
}

static ngx_int_t respond(ngx_http_request_t *r, ngx_int_t status)
{
    if (status >= NGX_HTTP_SPECIAL_RESPONSE)
        return status;
    if (status == NGX_HTTP_CREATED) {
        if (add_location(r) != NGX_OK)
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        r->headers_out.content_length_n = 0;
    }
    r->headers_out.status = (ngx_uint_t)status;
    r->header_only = 1;
    return ngx_http_send_header(r);
}

static void remove_file(const char *name, ngx_log_t *log)
{
    if (name[0] && ngx_delete_file(name) == NGX_FILE_ERROR && ngx_errno != NGX_ENOENT)
        ngx_log_error(NGX_LOG_CRIT, log, ngx_errno, ngx_delete_file_n " \"%s\" failed", name);
}

/* What a task that did not come to its end may leave: the body, and a copy of it beside the
 * target. */
static void remove_leavings(const struct put_args *args, ngx_log_t *log)
{
    u_char copy[MAX_PATH_SIZE + NGX_ATOMIC_T_LEN + 2];
    if (args->source_size)
        remove_file(args->paths, log);
    /* As nginx names it. */
    ngx_snprintf(copy, sizeof copy, "%s.%010uD%Z", put_target(args), (uint32_t)args->temp_number);
    remove_file((const char *)copy, log);
}

/* Its lines one by one: a crash has its call stack below. */
static void log_failure(const char *text, ngx_log_t *log)
{
    const char *prefix = "orbit_dav: PUT failed: ";
    while (*text) {
        size_t size = strcspn(text, "\n");
        ngx_str_t line = {size, (u_char *)text};
        ngx_log_error(NGX_LOG_ALERT, log, 0, "%s%V", prefix, &line);
        prefix = "orbit_dav: ";
        text += size + (text[size] == '\n');
    }
}

static void log_of_task(void *data, ngx_uint_t level, const u_char *text, size_t size)
{
    struct put *put = data;
    u_char clean[NGX_MAX_ERROR_STR];
    ngx_str_t line = {ngx_min(size, sizeof clean), clean};
    for (size_t i = 0; i < line.len; i++)
        clean[i] = text[i] < ' ' ? ' ' : text[i];
    ngx_log_error(level, put->request->connection->log, 0, "%V", &line);
}

static void on_done(void *data, ngx_int_t status, const char *failure)
{
    struct put *put = data;
    ngx_http_request_t *r = put->request;
    ngx_connection_t *c = r->connection;
    put->call = NULL;
    ngx_http_set_log_request(c->log, r);
    if (failure) {
        log_failure(failure, c->log);
        remove_leavings(put->args, c->log);
    }
    r->main->blocked--;
    r->aio = 0;
    ngx_http_finalize_request(r, respond(r, status));
    ngx_http_run_posted_requests(c);
}

/* The request is destroyed before the end of its call: nginx is being terminated. */
static void on_destroy(void *data)
{
    struct put *put = data;
    if (put->call)
        put_call_abandon(put->call);
}

/* ---- the beginning ---- */

static ngx_int_t fill_args(ngx_http_request_t *r, struct put *put)
{
    dav_location_conf *conf = ngx_http_get_module_loc_conf(r, orbit_dav_module);
    ngx_str_t target, source = ngx_null_string;
    size_t root, size;
    struct put_args *args;
    int32_t fault = fault_of(r, conf);
    if (r->request_body && r->request_body->temp_file)
        source = r->request_body->temp_file->file.name;
    if (source.len == 0 && fault != FAULT_NO_BODY) {
        if (r->request_body)
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "PUT request body must be in a file");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (!ngx_http_map_uri_to_path(r, &target, &root, 0))
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    target.len--;
    if (target.len >= MAX_PATH_SIZE || source.len >= MAX_PATH_SIZE)
        return NGX_HTTP_REQUEST_URI_TOO_LARGE;
    size = source.len + target.len + 2;
    put->args = args = ngx_pcalloc(r->pool, sizeof *args + size);
    if (!args)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    args->modified = r->headers_in.date ? ngx_parse_http_time(r->headers_in.date->value.data,
        r->headers_in.date->value.len)
                                        : NGX_ERROR;
    if (args->modified == NGX_ERROR)
        args->modified = -1;
    args->temp_number = ngx_next_temp_number(0);
    args->access = (uint32_t)conf->access;
    args->create_path = (uint32_t)conf->create_full_path;
    args->fault = (uint32_t)fault;
    args->source_size = source.len ? (uint32_t)source.len + 1 : 0;
    args->target_size = (uint32_t)target.len + 1;
    ngx_memcpy(args->paths, source.data, source.len);
    ngx_memcpy(args->paths + args->source_size, target.data, target.len);
    return NGX_OK;
}

static ngx_int_t start(ngx_http_request_t *r)
{
    dav_location_conf *conf = ngx_http_get_module_loc_conf(r, orbit_dav_module);
    struct put *put = ngx_pcalloc(r->pool, sizeof *put);
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);
    ngx_int_t status;
    if (!put || !cleanup)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    if (!dav_orbit_is_up() &&
        dav_orbit_start((ngx_cycle_t *)ngx_cycle, ngx_http_get_module_main_conf(r, orbit_dav_module)) != NGX_OK)
        return NGX_HTTP_SERVICE_UNAVAILABLE;
    put->request = r;
    status = fill_args(r, put);
    if (status != NGX_OK)
        return status;
    put->call = put_call_start(put->args, sizeof *put->args + put->args->source_size + put->args->target_size,
        conf->deadline,
                               on_done, log_of_task, put);
    if (!put->call)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    cleanup->handler = on_destroy;
    cleanup->data = put;
    /* The request stays while its call runs, also if the client leaves. */
    r->main->blocked++;
    r->aio = 1;
    return NGX_DONE;
}

static void on_body(ngx_http_request_t *r)
{
    ngx_int_t status = start(r);
    if (status != NGX_DONE)
        ngx_http_finalize_request(r, status);
}

ngx_int_t put_handler(ngx_http_request_t *r)
{
    dav_location_conf *conf = ngx_http_get_module_loc_conf(r, orbit_dav_module);
    ngx_int_t status;
    if (!conf->on || r->method != NGX_HTTP_PUT)
        return NGX_DECLINED;
    if (r->uri.data[r->uri.len - 1] == '/') {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "cannot PUT to a collection");
        return NGX_HTTP_CONFLICT;
    }
    if (r->headers_in.content_range) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "PUT with range is unsupported");
        return NGX_HTTP_NOT_IMPLEMENTED;
    }
    r->request_body_in_file_only = 1;
    r->request_body_in_persistent_file = 1;
    r->request_body_in_clean_file = 1;
    r->request_body_file_group_access = 1;
    r->request_body_file_log_level = 0;
    status = ngx_http_read_client_request_body(r, on_body);
    return status >= NGX_HTTP_SPECIAL_RESPONSE ? status : NGX_DONE;
}
