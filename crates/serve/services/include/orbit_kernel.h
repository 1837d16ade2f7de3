/* What a service in the kernel (class 4, root) is written against: a BPF object whose program
 * "tick" is its handler. The verifier is the type system: no loop without a bound, no stray write.
 * It observes by itself (programs named on_TRACEPOINT are attached to that tracepoint) and asks for
 * values with orbit_ask; an agent judges each by the guard of its handle and applies it.
 *
 *   clang -O2 -g -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I. -c -o s.bpf.o s.bpf.c
 */
#ifndef ORBIT_KERNEL_H
#define ORBIT_KERNEL_H

#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define ORBIT_HANDLES 32
#define ORBIT_ARGUMENTS 1024

/* What the service was loaded with; the host writes it before anything runs. */
struct orbit_loaded {
	__u32 handles; /* the number of handles */
	__u32 length;  /* bytes of arguments */
	__s32 target[ORBIT_HANDLES]; /* the thread or process that each handle is about */
	__u8 arguments[ORBIT_ARGUMENTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct orbit_loaded);
} orbit_loaded SEC(".maps");

/* What it did: runs, values asked for, values that did not fit. */
enum { ORBIT_RUNS, ORBIT_ASKED, ORBIT_LOST, ORBIT_COUNTS };
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ORBIT_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} orbit_counts SEC(".maps");

struct orbit_asked {
	__u32 handle;
	__u32 reserved;
	__s64 value;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} orbit_asked SEC(".maps");

static __always_inline void orbit_count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&orbit_counts, &which);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Asks for a value of the attribute of a handle: its number in the order of the grants, from 0. */
static __always_inline void orbit_ask(__u32 handle, __s64 value)
{
	struct orbit_asked asked = {handle, 0, value};
	orbit_count(bpf_ringbuf_output(&orbit_asked, &asked, sizeof(asked), 0) ? ORBIT_LOST : ORBIT_ASKED);
}

#endif
