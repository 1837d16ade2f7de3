/* Calls of other threads than the serving one that must not be made twice.
 *
 * A thread that a rollback has put back makes its calls again, while descriptors and files stay as
 * they are. A second close may hit another file that has the number by now; a second fsync keeps
 * the serving thread waiting for a disk in its replay. So it is noted, in memory that is not rolled
 * back, which of its calls a thread has made: the thread counts them in memory that is.
 *
 * Only descriptors that the serving thread has opened as files count for close: only their numbers
 * are the same in a replay.
 */
#include "own.h"
#include <sys/syscall.h>

#define DESCRIPTORS 65536
static unsigned char opened[DESCRIPTORS];

void keep_note_opened(int fd, int is_by_server)
{
    if ((unsigned)fd < DESCRIPTORS && opened[fd] != is_by_server)
        opened[fd] = (unsigned char)is_by_server;
}

static struct keep_done *known(uint32_t tid, uint32_t nth)
{
    for (int i = 0; i < KEEP_DONE; i++)
        if (keep_done->calls[i].tid == tid && keep_done->calls[i].nth == nth)
            return (struct keep_done *)&keep_done->calls[i];
    return NULL;
}

/* This thread has come to a call that it has never made: what is known of later ones is of a
 * history that was left. */
static void forget_from(uint32_t tid, uint32_t nth)
{
    for (int i = 0; i < KEEP_DONE; i++)
        if (keep_done->calls[i].tid == tid && keep_done->calls[i].nth >= nth)
            keep_done->calls[i].tid = 0;
}

static void note(uint32_t tid, uint32_t nth, long nr, int fd, long ret)
{
    forget_from(tid, nth);
    uint32_t at = __atomic_fetch_add(&keep_done->next, 1, __ATOMIC_SEQ_CST) % KEEP_DONE;
    keep_done->calls[at] = (struct keep_done){.tid = tid, .nth = nth, .nr = (uint32_t)nr, .fd = fd, .ret = ret};
}

long keep_call_once(long nr, int fd)
{
    static __thread uint32_t made __attribute__((tls_model("initial-exec")));
    if (nr == SYS_close && !((unsigned)fd < DESCRIPTORS && opened[fd]))
        return keep_plain(nr, fd, 0, 0, 0, 0, 0);
    uint32_t tid = (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0), nth = ++made;
    struct keep_done *done = known(tid, nth);
    int is_it = done && done->nr == (uint32_t)nr && done->fd == fd;
    /* After the replay a file may hold what no fsync has seen. */
    if (is_it && (nr == SYS_close || keep_both->mode == KEEP_REPLAY))
        return done->ret;
    /* Of a close before it is made: if a rollback comes between, a descriptor stays open; in the
     * other order another file would be closed. */
    if (nr == SYS_close)
        note(tid, nth, nr, fd, 0);
    long ret = keep_plain(nr, fd, 0, 0, 0, 0, 0);
    if (nr != SYS_close && !is_it)
        note(tid, nth, nr, fd, ret);
    return ret;
}
