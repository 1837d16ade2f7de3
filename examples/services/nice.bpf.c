/* The smallest service in the kernel: each tick asks for the niceness 7 of the process that its
 * first handle is about.
 *
 *   clang -O2 -g -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu \
 *         -Icrates/serve/services/include -c -o nice.bpf.o examples/services/nice.bpf.c
 *   orbit service load nice.bpf.o --class bpf --owner 42 --on tick=10ms \
 *         --grant 'cpu:nice:set(pid=42,min=0)' */
#include "orbit_kernel.h"

SEC("perf_event")
int tick(struct bpf_perf_event_data *context)
{
	(void)context;
	orbit_count(ORBIT_RUNS);
	orbit_ask(0, 7);
	return 0;
}

char _license[] SEC("license") = "GPL";
