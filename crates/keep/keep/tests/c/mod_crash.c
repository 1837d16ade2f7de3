/* An Apache module with a bug: the handler `crash` writes through a null pointer for a URI that
 * ends with "/poison"; others are answered with their arguments. */
#include <httpd.h>
#include <http_config.h>
#include <http_protocol.h>
#include <string.h>

/* The compiler must not know it. */
static volatile int *volatile nowhere;

static int handle(request_rec *r)
{
    static const char POISON[] = "/poison";
    size_t length = strlen(r->uri), tail = sizeof POISON - 1;
    if (!r->handler || strcmp(r->handler, "crash") != 0)
        return DECLINED;
    if (length >= tail && strcmp(r->uri + length - tail, POISON) == 0)
        *nowhere = 1;
    ap_set_content_type(r, "text/plain");
    ap_rputs(r->args ? r->args : "", r);
    return OK;
}

static void hooks(apr_pool_t *pool)
{
    (void)pool;
    ap_hook_handler(handle, NULL, NULL, APR_HOOK_MIDDLE);
}

module AP_MODULE_DECLARE_DATA crash_module = {STANDARD20_MODULE_STUFF, NULL, NULL, NULL, NULL, NULL, hooks, 0};
