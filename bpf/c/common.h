/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * What the two objects share: the counters and the tag.
 *
 * Licence: the project is Apache-2.0. The kernel knows that name as "not GPL compatible" and then withholds helpers;
 * today's programs call none of those, but one that debugs them (bpf_trace_printk) would. So the kernel side may also
 * be used under MIT or GPL-2.0 and says so in the one string the kernel reads.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#include "reasons.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Which load of the programs this is, 0..31. A frame tagged by another load is nobody's: slots may mean others now. */
const volatile __u8 epoch = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 reason)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &reason);

	if (counter)
		*counter += 1;
}

/*
 * The tag: six bytes in the place of a MAC address, so that nothing is added to a frame and nothing stripped from it.
 *
 *	0	epoch << 3 | has VLAN << 2 | 0b10	(a locally administered unicast address)
 *	1, 2	VLAN TCI, big endian, or 0
 *	3	generation of the slot
 *	4, 5	slot, big endian
 */
#define TAG_SIZE 6
#define TAG_VLAN 0x04

static __always_inline bool tag_formed(__u8 first)
{
	return (first & 0x03) == 0x02;
}

static __always_inline __u8 tag_epoch(__u8 first)
{
	return first >> 3;
}
