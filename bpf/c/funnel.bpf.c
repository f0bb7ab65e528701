/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * funnel: steered frames into the one AF_XDP socket.
 *
 * In comes what our device delivers, out goes a redirect into the socket or a counted drop, and nothing else: without a
 * socket, and for frames that another load of the programs has tagged, the answer is silence.
 */
#include <linux/if_ether.h>

#include "common.h"

/* The socket, by receive queue; there is one queue. It empties itself when the socket dies. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Chunks of the socket's receive ring. The last few are kept free, for what is on its way while the count is read. */
const volatile __u32 ring = 0;

#define RESERVE 64

/*
 * How full that ring is: chunks that funnel passed on and chunks that user space, which maps this, has given back. Both
 * wrap, their difference does not. `shed` moves after the frame was noted as lost.
 */
struct occupancy {
	__u32 passed;
	__u32 taken;
	__u32 shed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct occupancy);
} occupancy SEC(".maps");

/* Frames shed, by slot: each was a segment of its guest's credit, and user space gives it back. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
} lost SEC(".maps");

/* What the kernel lets a frame use of a chunk: 2048 bytes without the headroom it keeps in front (XDP_PACKET_HEADROOM). */
#define CHUNK (2048 - 256)

static __always_inline int drop(__u32 reason)
{
	count(reason);
	return XDP_DROP;
}

static __always_inline int shed(struct occupancy *full, __u32 *lost_of_slot)
{
	__sync_fetch_and_add(lost_of_slot, 1);
	__sync_fetch_and_add(&full->shed, 1);
	return drop(FUNNEL_SHED);
}

/* Frags: a jumbo frame comes in pieces. The destination MAC is always in the first. */
SEC("xdp.frags")
int funnel(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end || !tag_formed(eth->h_dest[0]))
		return drop(FUNNEL_TAG);
	if (tag_epoch(eth->h_dest[0]) != epoch)
		return drop(FUNNEL_EPOCH);

	__u32 first = 0;
	__u32 slot = eth->h_dest[4] << 8 | eth->h_dest[5];
	__u32 *lost_of_slot = bpf_map_lookup_elem(&lost, &slot);
	struct occupancy *in = bpf_map_lookup_elem(&occupancy, &first);

	if (!lost_of_slot || !in)
		return drop(FUNNEL_TAG);

	__u32 chunks = (bpf_xdp_get_buff_len(context) + CHUNK - 1) / CHUNK;
	__u32 passed = *(volatile __u32 *)&in->passed;
	__u32 taken = *(volatile __u32 *)&in->taken;

	if ((__s32)(passed - taken + chunks) > (__s32)(ring - RESERVE))
		return shed(in, lost_of_slot);

	int verdict = bpf_redirect_map(&sockets, context->rx_queue_index, XDP_DROP);

	if (verdict != XDP_REDIRECT)
		return drop(FUNNEL_EMPTY);
	__sync_fetch_and_add(&in->passed, chunks);
	count(FUNNEL_REDIRECTED);
	return verdict;
}
