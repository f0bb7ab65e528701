/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * steer, shield and return: what a guest may send to the metadata address, what may reach a guest in its name, and the
 * way back from user space.
 *
 * In come the frames of guarded interfaces (steer: from the guest, shield: to it) and of our own device (return). Out
 * goes TCX_NEXT for everything that does not concern us, a redirect, or a counted drop. A frame that cannot be read is
 * dropped: the promise is that nobody but us speaks as the metadata address, not that we understood everybody.
 */
#include "frame.h"
#include "price.h"

#include <linux/pkt_cls.h>

/*
 * "Not for me, ask the next one." Never 0 (TCX_PASS): that ends the chain and with it the rate limiter that Proxmox VE
 * keeps on the interface. Older headers lack the name.
 */
#define TCX_NEXT -1

/* Our device for frames on their way to user space; 0 while nobody serves. */
const volatile __u32 device_a = 0;

/* Who we are to every guest, on every node. */
const volatile __u8 own_mac[ETH_ALEN] = {};

/* Which slot an interface has: generation << 16 | slot. No entry: guarded, not served. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

/* Which interface a slot is: generation << 32 | ifindex, one word so that it is read whole. 0: free. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} slots SEC(".maps");

/* What was dropped on an interface. User space makes the entries, of the interfaces it guards. */
struct drops {
	__u64 steer;
	__u64 shield;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct drops);
} drops SEC(".maps");

/*
 * return marks what it sends, shield takes the mark off and lets it pass. An index alone would not do: should our
 * device be gone and its index be another's, that one's frames would pass for ours.
 */
#define PASSPORT 0x696d6473

static __always_inline int drop(__u32 reason)
{
	count(reason);
	return TC_ACT_SHOT;
}

static __always_inline struct drops *drops_of(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	return bpf_map_lookup_elem(&drops, &ifindex);
}

/* --- steer */

static __always_inline int steer_drop(struct __sk_buff *skb, __u32 reason)
{
	struct drops *dropped = drops_of(skb);

	if (dropped)
		__sync_fetch_and_add(&dropped->steer, 1);
	return drop(reason);
}

static __always_inline int steer_ipv4(struct __sk_buff *skb, struct cursor *cursor, struct ours *ours)
{
	struct iphdr *ip = TAKE(cursor, struct iphdr);

	if (!ip)
		return SHORT;
	if (ip->saddr == METADATA_IPV4)
		return STEER_CLAIM;
	if (ip->daddr != METADATA_IPV4)
		return NEXT;
	if (nested(skb, cursor))
		return STEER_TAGS;
	if (ip->version != 4 || ip->ihl != 5)
		return STEER_OPTIONS;
	if (ip->frag_off & bpf_htons(0x3fff))
		return STEER_FRAGMENT;
	if (ip->protocol != IPPROTO_TCP)
		return STEER_PROTOCOL;

	struct tcphdr *tcp = TAKE(cursor, struct tcphdr);
	if (!tcp)
		return SHORT;
	if (tcp->dest != bpf_htons(80))
		return STEER_PORT;
	*ours = tcp_ours(skb, tcp);
	return OURS;
}

static __always_inline int steer_arp(struct __sk_buff *skb, struct cursor *cursor, struct ours *ours)
{
	struct arp *arp = TAKE(cursor, struct arp);

	if (!arp)
		return SHORT;
	if (!arp_readable(arp))
		return STEER_UNREADABLE;
	if (arp->sender == METADATA_IPV4)
		return STEER_CLAIM;
	if (arp->target != METADATA_IPV4)
		return NEXT;
	if (nested(skb, cursor))
		return STEER_TAGS;
	if (cursor->proto != bpf_htons(ETH_P_ARP) || arp->hardware != ARP_ETHERNET || arp->operation != ARP_REQUEST)
		return STEER_ARP;
	*ours = (struct ours){ .headers = sizeof(struct ethhdr) + sizeof(*arp), .metered = true };
	return OURS;
}

static __always_inline int steer_ipv6(struct __sk_buff *skb, struct cursor *cursor)
{
	struct ipv6hdr *ip = TAKE(cursor, struct ipv6hdr);

	if (!ip)
		return SHORT;
	if (metadata_ipv6(&ip->saddr))
		return STEER_CLAIM;
	if (metadata_ipv6(&ip->daddr))
		return STEER_IPV6;
	if (!may_hold_neighbour(ip->nexthdr) || other_message(cursor, ip->nexthdr))
		return NEXT;

	struct span rest = behind_ipv6(skb, cursor, ip);

	switch (find_neighbour(skb, rest.begin, rest.end, ip->nexthdr, true)) {
	case NEIGHBOUR_OTHER:
		return NEXT;
	case NEIGHBOUR_OURS:
		return STEER_IPV6;
	default:
		return STEER_UNREADABLE;
	}
}

static __always_inline int steer_look(struct __sk_buff *skb, struct ours *ours)
{
	struct cursor cursor;
	int opened = open_frame(skb, &cursor);

	if (opened)
		return opened;
	switch (cursor.proto) {
	case bpf_htons(ETH_P_IP):
		return steer_ipv4(skb, &cursor, ours);
	case bpf_htons(ETH_P_IPV6):
		return steer_ipv6(skb, &cursor);
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_RARP):
		return steer_arp(skb, &cursor, ours);
	default:
		return NEXT;
	}
}

/* Writes over the destination where the frame came from, VLAN tag included. False if the kernel has no memory for it. */
static __always_inline bool write_tag(struct __sk_buff *skb, __u32 assigned)
{
	__u16 tci = 0;
	__u8 flags = 0x02;

	if (skb->vlan_present) {
		tci = skb->vlan_tci;
		flags |= TAG_VLAN;
		if (bpf_skb_vlan_pop(skb))
			return false;
	}
	__u8 tag[TAG_SIZE] = { flags | epoch << 3, tci >> 8, tci, assigned >> 16, assigned >> 8, assigned };

	/* By the helper: a direct write makes the verifier copy every cloned frame that passes, ours or not. */
	return !bpf_skb_store_bytes(skb, 0, tag, sizeof(tag), 0);
}

/*
 * Sends a frame to user space. The order is one of prices: the cheap refusals first, and the frame is changed only once
 * it is paid for. What a redirect loses, it loses silently: user space finds out and heals the credit.
 */
static __always_inline int hand_over(struct __sk_buff *skb, const struct ours *ours)
{
	__u32 ifindex = skb->ifindex;
	__u32 *entry = bpf_map_lookup_elem(&interfaces, &ifindex);

	if (!entry)
		return steer_drop(skb, STEER_UNASSIGNED);

	__u32 assigned = *entry;
	__u32 slot = assigned & 0xffff;
	__u64 *bucket = bpf_map_lookup_elem(&buckets, &slot);
	struct credit *credit = bpf_map_lookup_elem(&credits, &slot);

	if (!bucket || !credit)
		return steer_drop(skb, STEER_UNASSIGNED);
	if (ours->metered && !take_one(bucket))
		return steer_drop(skb, STEER_BUCKET);

	__u32 price = segments(skb, ours->headers);

	if (!spend(credit, price))
		return steer_drop(skb, STEER_CREDIT);
	if (!write_tag(skb, assigned)) {
		__sync_fetch_and_sub(&credit->steered, price);
		return steer_drop(skb, STEER_FAILED);
	}
	count(STEER_REDIRECTED);
	return bpf_redirect(device_a, 0);
}

SEC("classifier")
int steer(struct __sk_buff *skb)
{
	struct ours ours = {};
	int look = steer_look(skb, &ours);

	if (look == NEXT)
		return TCX_NEXT;
	if (look == SHORT && pull(skb))
		look = steer_look(skb, &ours);

	switch (look) {
	case NEXT:
		return TCX_NEXT;
	case OURS:
		return hand_over(skb, &ours);
	case SHORT:
	case WRAPPED:
		return steer_drop(skb, STEER_UNREADABLE);
	case DEEP:
		return steer_drop(skb, STEER_TAGS);
	default:
		return steer_drop(skb, look);
	}
}

/* --- shield */

static __always_inline int shield_drop(struct __sk_buff *skb, __u32 reason)
{
	struct drops *dropped = drops_of(skb);

	if (dropped)
		__sync_fetch_and_add(&dropped->shield, 1);
	return drop(reason);
}

static __always_inline int shield_ipv4(struct cursor *cursor)
{
	struct iphdr *ip = TAKE(cursor, struct iphdr);

	if (!ip)
		return SHORT;
	return ip->saddr == METADATA_IPV4 ? SHIELD_CLAIM_IPV4 : NEXT;
}

static __always_inline int shield_arp(struct cursor *cursor)
{
	struct arp *arp = TAKE(cursor, struct arp);

	if (!arp)
		return SHORT;
	if (!arp_readable(arp))
		return SHIELD_UNREADABLE;
	if (arp->sender == METADATA_IPV4)
		return SHIELD_CLAIM_ARP;
	/* RARP tells its target who it is. */
	return cursor->proto == bpf_htons(ETH_P_RARP) && arp->target == METADATA_IPV4 ? SHIELD_CLAIM_ARP : NEXT;
}

static __always_inline int shield_ipv6(struct __sk_buff *skb, struct cursor *cursor)
{
	struct ipv6hdr *ip = TAKE(cursor, struct ipv6hdr);

	if (!ip)
		return SHORT;
	if (metadata_ipv6(&ip->saddr))
		return SHIELD_CLAIM_IPV6;
	if (!may_hold_neighbour(ip->nexthdr) || other_message(cursor, ip->nexthdr))
		return NEXT;

	struct span rest = behind_ipv6(skb, cursor, ip);

	switch (find_neighbour(skb, rest.begin, rest.end, ip->nexthdr, false)) {
	case NEIGHBOUR_OTHER:
		return NEXT;
	case NEIGHBOUR_OURS:
		return SHIELD_CLAIM_NEIGHBOUR;
	default:
		return SHIELD_UNREADABLE;
	}
}

static __always_inline int shield_look(struct __sk_buff *skb)
{
	struct cursor cursor;
	int opened = open_frame(skb, &cursor);

	if (opened)
		return opened;
	switch (cursor.proto) {
	case bpf_htons(ETH_P_IP):
		return shield_ipv4(&cursor);
	case bpf_htons(ETH_P_IPV6):
		return shield_ipv6(skb, &cursor);
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_RARP):
		return shield_arp(&cursor);
	default:
		return NEXT;
	}
}

SEC("classifier")
int shield(struct __sk_buff *skb)
{
	/* The host's own frames come from interface 0, which must not pass for a device that nobody has made yet. */
	if (device_a && skb->ingress_ifindex == device_a && skb->mark == PASSPORT) {
		skb->mark = 0;
		return TCX_NEXT;
	}

	int look = shield_look(skb);

	if (look == NEXT)
		return TCX_NEXT;
	if (look == SHORT && pull(skb))
		look = shield_look(skb);

	switch (look) {
	case NEXT:
		return TCX_NEXT;
	case SHORT:
	case DEEP:
	case WRAPPED:
		return shield_drop(skb, SHIELD_UNREADABLE);
	default:
		return shield_drop(skb, look);
	}
}

/* --- return */

/* A word of C, hence the underscore. Whatever comes from our device is an answer to a guest or is dropped. */
SEC("classifier")
int return_(struct __sk_buff *skb)
{
	__u8 tag[TAG_SIZE];

	if (bpf_skb_load_bytes(skb, ETH_ALEN, tag, sizeof(tag)) || !tag_formed(tag[0]))
		return drop(RETURN_TAG);
	if (tag_epoch(tag[0]) != epoch)
		return drop(RETURN_EPOCH);

	__u32 slot = tag[4] << 8 | tag[5];
	__u64 *assigned = bpf_map_lookup_elem(&slots, &slot);
	__u64 value = assigned ? *(volatile __u64 *)assigned : 0;
	__u32 ifindex = value;

	if (!ifindex || value >> 32 != tag[3])
		return drop(RETURN_SLOT);

	__u8 mac[ETH_ALEN];
#pragma unroll
	for (int i = 0; i < ETH_ALEN; i++)
		mac[i] = own_mac[i];
	if (bpf_skb_store_bytes(skb, ETH_ALEN, mac, sizeof(mac), 0))
		return drop(RETURN_FAILED);
	if (tag[0] & TAG_VLAN && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag[1] << 8 | tag[2]))
		return drop(RETURN_FAILED);

	skb->mark = PASSPORT;
	count(RETURN_REDIRECTED);
	return bpf_redirect(ifindex, 0);
}
