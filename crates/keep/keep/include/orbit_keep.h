/* For programs that know when they may be put back to: under `orbit keep` these ask for
 * checkpoints, elsewhere they do nothing.
 *
 * Nothing has to be linked: the functions are there when the program runs under
 * `orbit keep -- PROGRAM`. Both may be called from any thread, and neither sets errno. Call them
 * where no lock is held that a signal handler takes.
 */
#ifndef ORBIT_KEEP_H
#define ORBIT_KEEP_H

#ifdef __cplusplus
extern "C" {
#endif

/* This is a good moment for a checkpoint: one is taken soon, whatever --every says. Returns at
 * once: 1 if there is a keeper, else 0. */
int orbit_keep_point(void) __attribute__((weak));

/* Waits until all that the program did before this call is in a checkpoint: output made before
 * it is never repeated by a recovery. Returns 1 then, at most after 10 s; 0 if there is no
 * keeper, or no checkpoint came. */
int orbit_keep_output_barrier(void) __attribute__((weak));

/* The same for programs that also run without a keeper, where the functions are not there. */
static inline int orbit_keep_if_kept_point(void)
{
    return orbit_keep_point ? orbit_keep_point() : 0;
}

static inline int orbit_keep_if_kept_output_barrier(void)
{
    return orbit_keep_output_barrier ? orbit_keep_output_barrier() : 0;
}

#ifdef __cplusplus
}
#endif
#endif
