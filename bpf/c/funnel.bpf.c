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

static __always_inline int drop(__u32 reason)
{
	count(reason);
	return XDP_DROP;
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

	int verdict = bpf_redirect_map(&sockets, context->rx_queue_index, XDP_DROP);

	count(verdict == XDP_REDIRECT ? FUNNEL_REDIRECTED : FUNNEL_EMPTY);
	return verdict;
}
