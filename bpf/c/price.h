/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * What a frame costs that goes to user space, and who has enough left: credit for every segment, and a bucket for the
 * questions that cost user space far more than they cost a guest. Nothing in here touches the frame.
 */
#pragma once

#include "frame.h"

/*
 * What a slot may have on its way: segments that steer sent and user space has not consumed. A flood fills the flooder's
 * own credit and nobody's ring. User space maps it and counts `consumed` up; both wrap, their difference does not.
 */
struct credit {
	__u32 steered;
	__u32 consumed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct credit);
} credits SEC(".maps");

/* A few windows of a guest's connections, and an eighth of the ring: eight floods fit beside each other. */
#define CREDIT_SEGMENTS 256

/*
 * SYN and ARP cost user space far more than they cost their sender, so these have a rate as well: the time at which the
 * slot's bucket is full again, in nanoseconds (GCRA: one word, no refilling).
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} buckets SEC(".maps");

/* Nanoseconds for one, and for as many as a full bucket gives at once. Set by the loader; nothing passes before that. */
const volatile __u64 bucket_interval = 1;
const volatile __u64 bucket_depth = 0;

#define BUCKET_ATTEMPTS 4

/* What a look learns of a frame that is ours, for its price. */
struct ours {
	__u32 headers;	/* bytes in front of what segmentation cuts up */
	bool metered;	/* SYN and ARP */
};

#define BEFORE_TCP (sizeof(struct ethhdr) + sizeof(struct iphdr))

/* A TCP header that claims less than it has, or more than there is, is counted without options; user space refuses it. */
static __always_inline struct ours tcp_ours(const struct __sk_buff *skb, const struct tcphdr *tcp)
{
	__u32 size = tcp->doff * 4;

	if (size < sizeof(*tcp) || BEFORE_TCP + size > skb->len)
		size = sizeof(*tcp);
	return (struct ours){ .headers = BEFORE_TCP + size, .metered = tcp->syn };
}

/* What arrives in user space: the kernel cuts large frames up on the way. An exact count, for a drift starves a guest. */
static __always_inline __u32 segments(const struct __sk_buff *skb, __u32 headers)
{
	__u32 size = skb->gso_size;

	if (!size || skb->len <= headers)
		return 1;
	return (skb->len - headers - 1) / size + 1;
}

/* Takes that much of the slot's credit, if it has it. */
static __always_inline bool spend(struct credit *credit, __u32 amount)
{
	/* A look first: a flood shall not fight with user space over this line of memory. */
	__u32 steered = *(volatile __u32 *)&credit->steered;
	__u32 consumed = *(volatile __u32 *)&credit->consumed;

	if (amount > CREDIT_SEGMENTS || (__s32)(steered + amount - consumed) > CREDIT_SEGMENTS)
		return false;
	steered = __sync_fetch_and_add(&credit->steered, amount);
	if ((__s32)(steered + amount - consumed) <= CREDIT_SEGMENTS)
		return true;
	__sync_fetch_and_sub(&credit->steered, amount);
	return false;
}

/* One from the slot's bucket, if there is one. Whoever loses against other processors that often is in a flood. */
static __always_inline bool take_one(__u64 *full_at)
{
	__u64 now = bpf_ktime_get_ns();

#pragma unroll
	for (int i = 0; i < BUCKET_ATTEMPTS; i++) {
		__u64 old = *(volatile __u64 *)full_at;
		__u64 next = (old > now ? old : now) + bucket_interval;

		if (next > now + bucket_depth)
			return false;
		if (__sync_val_compare_and_swap(full_at, old, next) == old)
			return true;
	}
	return false;
}

/* A tag beside a tag, or a service tag: the answer could not be given the same coat. */
static __always_inline bool nested(struct __sk_buff *skb, const struct cursor *cursor)
{
	return cursor->tags || (skb->vlan_present && skb->vlan_proto != bpf_htons(ETH_P_8021Q));
}
