/* Marks in source for application hang detection: `orbit watch` reads them from outside. Both the
 * library (librmk_section, shared and static) and this file are installed by `make install`:
 *
 *     cc program.c $(pkg-config --cflags --libs rmk_section)
 *     cc -static program.c $(pkg-config --static --cflags --libs rmk_section)
 *
 *     static int request = -1;
 *     request = rmk_section("request");          // once, at the start
 *     ...
 *     rmk_section_enter(request);
 *     ...
 *     rmk_section_leave(request, 0);             // by exit 0
 *
 * A thread that uses far more CPU inside a section than usual, or sits in it without running, is
 * reported as hung. Waits without an end of their own (accept, epoll_wait) belong outside. Every
 * exit has a history of its own; a section must be left before the same thread enters it again.
 * Sections may nest and overlap, and any number of threads may be in one. A child made by fork() is
 * in no section, whatever its parent was in, until it enters one. All functions may be called from
 * any thread; entering and leaving cost some nanoseconds and make no system call after a thread's
 * first. None of them fails in a way that matters to the program. Of several copies in a process (a
 * plug-in may be linked with one of its own) each has its own sections; one that is loaded after
 * another is seen within ten seconds. */
#ifndef RMK_H
#define RMK_H

#ifdef __cplusplus
extern "C" {
#endif

/* The number of the section with this name (at most 63 bytes count): the same each time it is asked
 * for. -1: no room (126 sections a process) or no memory; the functions below accept it and do
 * nothing. */
int rmk_section(const char *name);

/* Enters a section. 1; 0 if nothing was marked: the thread is inside already, or there is no room
 * for it (2048 threads). */
int rmk_section_enter(int section);

/* Leaves a section by an exit, 0 to 6; higher numbers count as 6. Nothing happens if the thread is
 * not inside. */
void rmk_section_leave(int section, int exit);

#ifdef __cplusplus
}
#endif

#endif
