/* orbit_dav: PUT for nginx, its file work in an orbit. This file: directives and registration. */
#include "dav.h"

static void *create_main(ngx_conf_t *cf)
{
    dav_main_conf *conf = ngx_pcalloc(cf->pool, sizeof *conf);
    if (conf)
        conf->memory = NGX_CONF_UNSET_SIZE;
    return conf;
}

static char *init_main(ngx_conf_t *cf, void *raw)
{
    dav_main_conf *conf = raw;
    ngx_conf_init_size_value(conf->memory, 64 << 20);
    return NGX_CONF_OK;
}

static void *create_location(ngx_conf_t *cf)
{
    dav_location_conf *conf = ngx_pcalloc(cf->pool, sizeof *conf);
    if (conf) {
        conf->on = NGX_CONF_UNSET;
        conf->create_full_path = NGX_CONF_UNSET;
        conf->access = NGX_CONF_UNSET_UINT;
        conf->deadline = NGX_CONF_UNSET_MSEC;
        conf->faults = NGX_CONF_UNSET;
    }
    return conf;
}

static char *merge_location(ngx_conf_t *cf, void *outer, void *inner)
{
    dav_location_conf *from = outer, *conf = inner;
    dav_main_conf *all = ngx_http_conf_get_module_main_conf(cf, orbit_dav_module);
    ngx_conf_merge_value(conf->on, from->on, 0);
    ngx_conf_merge_value(conf->create_full_path, from->create_full_path, 0);
    ngx_conf_merge_uint_value(conf->access, from->access, 0600);
    ngx_conf_merge_msec_value(conf->deadline, from->deadline, 30000);
    ngx_conf_merge_value(conf->faults, from->faults, 0);
    if (conf->deadline == 0)
        return "orbit_dav_deadline must be more than 0";
    all->is_used |= conf->on;
    return NGX_CONF_OK;
}

/* Content handlers run in the reverse order of their registration: this one before nginx' own. */
static ngx_int_t register_handler(ngx_conf_t *cf)
{
    ngx_http_core_main_conf_t *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    ngx_http_handler_pt *handler = ngx_array_push(&core->phases[NGX_HTTP_CONTENT_PHASE].handlers);
    if (!handler)
        return NGX_ERROR;
    *handler = put_handler;
    return NGX_OK;
}

/* Workers only: not the processes that manage caches. */
static ngx_int_t init_process(ngx_cycle_t *cycle)
{
    dav_main_conf *conf = ngx_http_cycle_get_module_main_conf(cycle, orbit_dav_module);
    if (conf && conf->is_used && (ngx_process == NGX_PROCESS_WORKER || ngx_process == NGX_PROCESS_SINGLE))
        /* A failure is logged. The worker serves all else, and tries again at the next PUT. */
        (void)dav_orbit_start(cycle, conf);
    return NGX_OK;
}

static void exit_process(ngx_cycle_t *cycle)
{
    dav_orbit_stop();
}

#define ANYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)
#define FIELD(type, name) offsetof(type, name), NULL

static ngx_command_t commands[] = {
    {ngx_string("orbit_dav_put"), ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     FIELD(dav_location_conf, on)},
    {ngx_string("orbit_dav_create_full_path"), ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
        NGX_HTTP_LOC_CONF_OFFSET,
     FIELD(dav_location_conf, create_full_path)},
    {ngx_string("orbit_dav_access"), ANYWHERE | NGX_CONF_TAKE123, ngx_conf_set_access_slot, NGX_HTTP_LOC_CONF_OFFSET,
     FIELD(dav_location_conf, access)},
    {ngx_string("orbit_dav_deadline"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET,
     FIELD(dav_location_conf, deadline)},
    {ngx_string("orbit_dav_faults"), ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     FIELD(dav_location_conf, faults)},
    {ngx_string("orbit_dav_memory"), NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE1, ngx_conf_set_size_slot,
        NGX_HTTP_MAIN_CONF_OFFSET,
     FIELD(dav_main_conf, memory)},
    ngx_null_command,
};

static ngx_http_module_t functions = {
    .postconfiguration = register_handler,
    .create_main_conf = create_main,
    .init_main_conf = init_main,
    .create_loc_conf = create_location,
    .merge_loc_conf = merge_location,
};

ngx_module_t orbit_dav_module = {
    NGX_MODULE_V1,
    .ctx = &functions,
    .commands = commands,
    .type = NGX_HTTP_MODULE,
    .init_process = init_process,
    .exit_process = exit_process,
};

/* What nginx reads of a file that load_module names. */
__attribute__((visibility("default"))) ngx_module_t *ngx_modules[] = {&orbit_dav_module, NULL};
__attribute__((visibility("default"))) char *ngx_module_names[] = {"orbit_dav_module", NULL};
__attribute__((visibility("default"))) char *ngx_module_order[] = {NULL};
