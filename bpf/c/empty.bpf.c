/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* The yardstick of examples/cost.rs: what running any program at all costs. Never attached to anything. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("classifier")
int empty(struct __sk_buff *skb)
{
	(void)skb;
	return -1;
}
