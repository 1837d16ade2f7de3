// Counts hits of one tracepoint, and wakes whoever waits for them.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

// A record a hit while there is room: its only use is that it makes the descriptor readable.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} bell SEC(".maps");

SEC("raw_tracepoint")
int hit(void *context)
{
	__u32 first = 0;
	__u64 *n = bpf_map_lookup_elem(&hits, &first), one = 1;
	if (n)
		__sync_fetch_and_add(n, 1);
	bpf_ringbuf_output(&bell, &one, sizeof(one), 0);
	return 0;
}
