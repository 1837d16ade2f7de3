// Programs that are hard to enter; argv[1] says how. Each says "ready ADDRESS" like subject.c, with
// its rounds at the address.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/rseq.h>
#include <linux/seccomp.h>

static struct {
	volatile uint64_t rounds, wrong, done;
	volatile int64_t result, error;
	volatile uint64_t milliseconds, handled, threads, started;
} state;

static void *computes(void *unused)
{
	(void)unused;
	for (;;) __atomic_fetch_add(&state.rounds, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void ready(void)
{
	printf("%lx ready\n", (unsigned long)&state);
	fflush(stdout);
}

// Any call kills the program.
static void filter(void)
{
	struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(9);
}

// A restartable sequence that counts in two places: between the first and the last instruction
// nothing may come. If it is left by another way than its end or its abort handler, the places
// differ.
static void *sequences(void *unused)
{
	static __thread volatile uint64_t begun, ended, aborted;
	struct rseq *rseq = (struct rseq *)((char *)__builtin_thread_pointer() + *(const ptrdiff_t *)unused);
	for (;;) {
		uint64_t steps = 20000;
		__asm__ volatile goto(
			".pushsection __rseq_cs, \"aw\"\n"
			".balign 32\n"
			"3: .long 0, 0\n"
			".quad 1f, (2f - 1f), 4f\n"
			".popsection\n"
			"leaq 3b(%%rip), %%rax\n"
			"movq %%rax, %[cs]\n"
			"1:\n"
			"movq %[steps], %%rcx\n"
			"5: decq %%rcx\n"
			"jnz 5b\n"
			"incq %[ended]\n"
			"2:\n"
			".pushsection __rseq_failure, \"ax\"\n"
			".byte 0x0f, 0xb9, 0x3d\n"
			".long 0x53053053\n"
			"4: jmp %l[abort]\n"
			".popsection\n"
			:
			: [cs] "m"(rseq->rseq_cs), [steps] "r"(steps), [ended] "m"(ended)
			: "memory", "cc", "rax", "rcx"
			: abort);
		begun++;
		if (begun != ended) __atomic_fetch_add(&state.wrong, 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_add(&state.rounds, 1, __ATOMIC_SEQ_CST);
		continue;
	abort:
		aborted++;
		__atomic_fetch_add(&state.handled, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

extern const ptrdiff_t __rseq_offset __attribute__((weak));

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	pthread_t thread;
	if (!strcmp(how, "filtered")) {
		ready();
		filter();
		computes(0);
	}
	if (!strcmp(how, "not_dumpable")) {
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
		ready();
		computes(0);
	}
	if (!strcmp(how, "rseq")) {
		if (!&__rseq_offset) return 9;
		ready();
		sequences((void *)&__rseq_offset);
	}
	if (!strcmp(how, "vfork")) {
		// The child waits for the end of input; until then the parent cannot be stopped.
		ready();
		if (!vfork()) {
			char byte;
			while (read(0, &byte, 1) > 0) {}
			_exit(0);
		}
		computes(0);
	}
	if (!strcmp(how, "leader_gone")) {
		pthread_create(&thread, 0, computes, 0);
		ready();
		pthread_exit(0);
	}
	if (!strcmp(how, "clones")) {
		// Processes that share memory, made by a clone that is no fork, come and go.
		pthread_create(&thread, 0, computes, 0);
		ready();
		for (;;) {
			long child = syscall(SYS_clone, 0, 0, 0, 0, 0);
			if (!child) _exit(0);
			int status;
			waitpid(child, &status, __WALL);
			state.handled++;
		}
	}
	if (!strcmp(how, "execs")) {
		// Once it has said that it is ready it runs itself again and again.
		if (argc == 2) ready();
		usleep(500);
		execl("/proc/self/exe", argv[0], how, "again", (char *)0);
	}
	return 9;
}
