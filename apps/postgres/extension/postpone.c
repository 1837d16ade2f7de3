/* The server's own detector is put off while the worker finds deadlocks, and only then.
 *
 * In each session the handler of the server's timer, which fires when a wait has lasted for
 * deadlock_timeout, asks whether the worker has answered within the last second. If so, it asks
 * again later; if not, the server's own handler runs, as it would without the library. So a worker
 * that never started, has exited, hangs, or whose orbit fails costs a second.
 *
 * The handlers run as those of a signal: they read one atomic and set a timer or a latch.
 */
#include "detector.h"

#include "storage/proc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

/* Of libpq/auth.h, which needs headers of other packages. */
struct Port;
typedef void (*authentication_hook)(struct Port *port, int status);
extern PGDLLIMPORT authentication_hook ClientAuthentication_hook;

/* An answer that is older counts as none, microseconds. */
#define ANSWER_US 1000000
/* Longest time between two questions, milliseconds. */
#define ASK_AGAIN_MS 500

static authentication_hook previous_authentication_hook;
static TimeoutId ask_again;

static bool is_put_off(void)
{
    TimestampTz now = GetCurrentTimestamp();
    TimestampTz answered = (TimestampTz)pg_atomic_read_u64(&detector_state->answered_at);
    TimestampTz since = (TimestampTz)pg_atomic_read_u64(&MyProc->waitStart);
    if (log_lock_waits || answered == 0 || now < answered || now - answered >= ANSWER_US)
        return false;
    return since == 0 || now - since < (TimestampTz)setting_server_timeout * USECS_PER_SEC;
}

static void on_deadlock_timeout(void)
{
    int before = errno;
    if (is_put_off())
        enable_timeout_after(ask_again, Min(DeadlockTimeout, ASK_AGAIN_MS));
    else
        CheckDeadLockAlert();
    errno = before;
}

static void on_ask_again(void)
{
    if (MyProc && MyProc->waitStatus == PROC_WAIT_STATUS_WAITING)
        on_deadlock_timeout();
}

/* In each session, after the server has registered its own handler. Processes that nobody logs in
 * to keep the server's. */
static void install(struct Port *port, int status)
{
    if (previous_authentication_hook)
        previous_authentication_hook(port, status);
    if (status != STATUS_OK || !detector_state)
        return;
    ask_again = RegisterTimeout(USER_TIMEOUT, on_ask_again);
    RegisterTimeout(DEADLOCK_TIMEOUT, on_deadlock_timeout);
}

void postpone_server_detector(void)
{
    if (setting_server_timeout < 0)
        return;
    previous_authentication_hook = ClientAuthentication_hook;
    ClientAuthentication_hook = install;
}
