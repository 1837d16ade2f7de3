// A handler in the kernel with room for instructions that a test draws at random: they stand where
// the marks are. What they leave in two registers is asked for.
#include "orbit_kernel.h"

char _license[] SEC("license") = "GPL";

SEC("perf_event")
int tick(struct bpf_perf_event_data *context)
{
	register __u64 handle asm("r6") = 0;
	register __s64 value asm("r9") = 0;
	register void *c asm("r7") = context;
	orbit_count(ORBIT_RUNS);
	asm volatile("r0 = 0\n r1 = 1\n r2 = 2\n r3 = 3\n r4 = 4\n r5 = 5\n r8 = 8\n"
		     ".rept 48\n r0 = 0x5eed\n .endr\n"
		     : "+r"(handle), "+r"(value), "+r"(c)
		     :
		     : "r0", "r1", "r2", "r3", "r4", "r5", "r8", "memory");
	orbit_ask((__u32)handle, value);
	return 0;
}
