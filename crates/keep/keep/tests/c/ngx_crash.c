/* An nginx module with a bug: where `crash;` stands in a location, a request whose URI ends with
 * "/poison" writes through a null pointer; others are answered with their arguments. SIGNATURE
 * is that of the installed nginx, for this is compiled with fewer of its options. */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

static ngx_int_t handle(ngx_http_request_t *r)
{
    static const char POISON[] = "/poison";
    size_t len = sizeof POISON - 1;
    if (r->uri.len >= len && ngx_memcmp(r->uri.data + r->uri.len - len, POISON, len) == 0)
        *(volatile int *)NULL = 1;
    ngx_int_t failed = ngx_http_discard_request_body(r);
    if (failed != NGX_OK)
        return failed;
    ngx_str_t type = ngx_string("text/plain");
    ngx_http_complex_value_t answer;
    ngx_memzero(&answer, sizeof answer);
    answer.value = r->args;
    return ngx_http_send_response(r, NGX_HTTP_OK, &type, &answer);
}

static char *set(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
    (void)command;
    (void)conf;
    ngx_http_core_loc_conf_t *location = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    location->handler = handle;
    return NGX_CONF_OK;
}

static ngx_command_t commands[] = {
    {ngx_string("crash"), NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS, set, 0, 0, NULL},
    ngx_null_command,
};
static ngx_http_module_t context;

ngx_module_t ngx_crash_module = {
    NGX_MODULE_UNSET_INDEX, NGX_MODULE_UNSET_INDEX, NULL, 0, 0, nginx_version, SIGNATURE, &context, commands, NGX_HTTP_MODULE,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING,
};
ngx_module_t *ngx_modules[] = {&ngx_crash_module, NULL};
char *ngx_module_names[] = {"ngx_crash_module", NULL};
char *ngx_module_order[] = {NULL};
