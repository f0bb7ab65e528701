/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * How a frame is read: a cursor over its linear bytes, the metadata addresses, and the walk to a neighbour discovery
 * message behind IPv6 extension headers.
 *
 * A guest decides how much of its frame is linear (the header length in a virtio frame, an AF_PACKET sender), so "not
 * in the linear part" is an answer of its own, SHORT, and never "not ours".
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include "common.h"

/* 169.254.169.254, fd00:ec2::254 and fe80::a9fe:a9fe. */
#define METADATA_IPV4 bpf_htonl(0xa9fea9fe)

/* What a look at a frame says, beside the reasons to drop it, which are not negative. */
enum look {
	NEXT = -1,	/* none of our business */
	SHORT = -2,	/* cannot be told from the linear bytes */
	OURS = -3,	/* to be steered */
	DEEP = -4,	/* more VLAN tags than are looked behind */
	WRAPPED = -5,	/* IP or ARP in an envelope that is not looked into */
};

/* Tags in the data; the outermost is usually beside it, in the skb. Deeper stacks exist only to hide something. */
#define TAGS_READ 2

struct vlan {
	__be16 tci;
	__be16 proto;
};

/* ARP for IPv4 over Ethernet (RFC 826), and RARP (RFC 903). 16-bit loads: the addresses are not aligned to 32. */
struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender;
	__u8 target_mac[ETH_ALEN];
	__be32 target;
} __attribute__((packed, aligned(2)));

#define ARP_ETHERNET bpf_htons(1)
#define ARP_REQUEST bpf_htons(1)

struct cursor {
	void *at;
	void *end;
	__be16 proto;
	__u32 tags;
};

/* The next `size` bytes, or NULL if they are not linear. */
#define TAKE(cursor, type)                                                                                             \
	({                                                                                                             \
		type *here = (cursor)->at;                                                                             \
		(void *)(here + 1) > (cursor)->end ? NULL : ((cursor)->at = here + 1, here);                           \
	})

/* The last three are what service tags were before 802.1ad; old switches still take them off. */
static __always_inline bool is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD) || proto == bpf_htons(ETH_P_QINQ1) ||
	       proto == bpf_htons(ETH_P_QINQ2) || proto == bpf_htons(ETH_P_QINQ3);
}

/* Below this the field is not a type but a length (IEEE 802.3), and LLC follows. */
#define TYPES_FROM 0x600

/* LLC (IEEE 802.2), and what follows it if its access point is SNAP's. Bytes: nothing here is aligned. */
struct llc {
	__u8 destination;
	__u8 source;
	__u8 control;
};

struct snap {
	__u8 organisation[3];
	__u8 proto[2];
};

#define LLC_SNAP 0xaa

/*
 * Some stacks read IP and ARP in SNAP on Ethernet too (RFC 1122, 2.3.3). Nobody sends them but to get past a filter, so
 * they are dropped unread, whatever the organisation and whatever the length. Other LLC (spanning tree, CDP) is
 * everybody's.
 */
static __always_inline int open_llc(struct cursor *cursor)
{
	struct llc *llc = TAKE(cursor, struct llc);
	if (!llc)
		return SHORT;
	if ((llc->destination & 0xfe) != LLC_SNAP)
		return 0;
	struct snap *snap = TAKE(cursor, struct snap);
	if (!snap)
		return SHORT;

	__be16 proto = bpf_htons(snap->proto[0] << 8 | snap->proto[1]);
	bool ours = proto == bpf_htons(ETH_P_IP) || proto == bpf_htons(ETH_P_IPV6) || proto == bpf_htons(ETH_P_ARP) ||
		    proto == bpf_htons(ETH_P_RARP);

	return ours || is_vlan(proto) ? WRAPPED : 0;
}

/* Reads Ethernet and the tags behind it. 0, SHORT, DEEP or WRAPPED. */
static __always_inline int open_frame(struct __sk_buff *skb, struct cursor *cursor)
{
	cursor->at = (void *)(long)skb->data;
	cursor->end = (void *)(long)skb->data_end;
	cursor->tags = 0;

	struct ethhdr *eth = TAKE(cursor, struct ethhdr);
	if (!eth)
		return SHORT;
	cursor->proto = eth->h_proto;

#pragma unroll
	for (int i = 0; i < TAGS_READ; i++) {
		if (!is_vlan(cursor->proto))
			break;
		struct vlan *vlan = TAKE(cursor, struct vlan);
		if (!vlan)
			return SHORT;
		cursor->proto = vlan->proto;
		cursor->tags++;
	}
	if (is_vlan(cursor->proto))
		return DEEP;
	return bpf_ntohs(cursor->proto) < TYPES_FROM ? open_llc(cursor) : 0;
}

static __always_inline bool metadata_ipv6(const struct in6_addr *address)
{
	const __be32 *word = address->s6_addr32;

	if (word[1] | word[2])
		return false;
	return (word[0] == bpf_htonl(0xfd000ec2) && word[3] == bpf_htonl(0x00000254)) ||
	       (word[0] == bpf_htonl(0xfe800000) && word[3] == bpf_htonl(0xa9fea9fe));
}

/* Every ARP that is not for IPv4 over 6-byte addresses keeps its addresses where we cannot tell. */
static __always_inline bool arp_readable(const struct arp *arp)
{
	return arp->protocol == bpf_htons(ETH_P_IP) && arp->hardware_len == ETH_ALEN && arp->protocol_len == 4;
}

/* A chain longer than this is an attack: RFC 8200 knows one of each, and a second destination options header. */
#define EXTENSIONS_WALKED 6

#define NEIGHBOUR_SOLICITATION 135
#define NEIGHBOUR_ADVERTISEMENT 136
#define REDIRECT 137

static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_AH ||
	       next == IPPROTO_FRAGMENT;
}

/* Whether a packet whose first next header is this can hold neighbour discovery at all. */
static __always_inline bool may_hold_neighbour(__u8 next)
{
	return next == IPPROTO_ICMPV6 || is_extension(next);
}

/* The three are neighbours in number, too. */
static __always_inline bool is_neighbour(__u8 kind)
{
	return kind >= NEIGHBOUR_SOLICITATION && kind <= REDIRECT;
}

enum neighbour {
	NEIGHBOUR_OTHER,	/* no message about a metadata address */
	NEIGHBOUR_OURS,		/* one that says where it is, or asks */
	NEIGHBOUR_UNREADABLE,	/* cannot be known */
};

/* Where a packet's headers begin that the fixed one does not hold, and where the packet ends. */
struct span {
	__u32 begin;
	__u32 end;
};

/* Bytes behind the packet are padding: whoever reads on there reads a header that the packet's next fragment may hold. */
static __always_inline bool load(struct __sk_buff *skb, __u32 offset, __u32 end, void *to, __u32 size)
{
	return offset + size <= end && !bpf_skb_load_bytes(skb, offset, to, size);
}

/*
 * Walks from where the header `next` begins to a neighbour advertisement or a redirect (with `solicitations`, also to a
 * solicitation) that speaks of a metadata address: as the target, or as the destination that has another way now.
 *
 * Fragments: a later one carries no message header; the first one does, or its chain goes on into the next fragment and
 * cannot be walked. Neighbour discovery in a fragment is forbidden (RFC 6980), so it is dropped whatever its target.
 * Other fragments are a guest's ordinary traffic.
 */
static __noinline int find_neighbour(struct __sk_buff *skb, __u32 offset, __u32 end, __u8 next, bool solicitations)
{
	bool fragmented = false;

	for (int i = 0; i < EXTENSIONS_WALKED; i++) {
		__u8 head[4];
		struct in6_addr about;

		if (!may_hold_neighbour(next))
			return NEIGHBOUR_OTHER;
		if (!load(skb, offset, end, head, sizeof(head)))
			return NEIGHBOUR_UNREADABLE;

		switch (next) {
		case IPPROTO_ICMPV6:
			if (!is_neighbour(head[0]) || (head[0] == NEIGHBOUR_SOLICITATION && !solicitations))
				return NEIGHBOUR_OTHER;
			if (fragmented)
				return NEIGHBOUR_OURS;
			if (!load(skb, offset + 8, end, &about, sizeof(about)))
				return NEIGHBOUR_UNREADABLE;
			if (metadata_ipv6(&about))
				return NEIGHBOUR_OURS;
			if (head[0] != REDIRECT)
				return NEIGHBOUR_OTHER;
			if (!load(skb, offset + 24, end, &about, sizeof(about)))
				return NEIGHBOUR_UNREADABLE;
			return metadata_ipv6(&about) ? NEIGHBOUR_OURS : NEIGHBOUR_OTHER;
		case IPPROTO_FRAGMENT:
			fragmented = true;
			next = head[0];
			if (head[2] || head[3] & 0xf8)
				return is_extension(next) ? NEIGHBOUR_UNREADABLE : NEIGHBOUR_OTHER;
			offset += 8;
			break;
		case IPPROTO_AH:
			next = head[0];
			offset += (head[1] + 2) * 4;
			break;
		default:
			next = head[0];
			offset += (head[1] + 1) * 8;
		}
	}
	return NEIGHBOUR_UNREADABLE;
}

/* Spares a ping the walk: the cursor stands behind the fixed header and sees a message that is none of the three. */
static __always_inline bool other_message(struct cursor *cursor, __u8 next)
{
	if (next != IPPROTO_ICMPV6)
		return false;
	__u8 *kind = TAKE(cursor, __u8);
	return kind && !is_neighbour(*kind);
}

/*
 * What is behind a fixed IPv6 header. A length of 0 in front of hop-by-hop options means that those state it (RFC 2675),
 * and a receiver that finds no length there either takes everything it has.
 */
static __always_inline struct span behind_ipv6(const struct __sk_buff *skb, const struct cursor *cursor,
					       const struct ipv6hdr *ip)
{
	__u32 begin = sizeof(struct ethhdr) + cursor->tags * sizeof(struct vlan) + sizeof(*ip);
	__u32 length = bpf_ntohs(ip->payload_len);

	return (struct span){ begin, !length && ip->nexthdr == IPPROTO_HOPOPTS ? skb->len : begin + length };
}

/* Makes every header we read linear. False if the kernel cannot. */
static __always_inline bool pull(struct __sk_buff *skb)
{
	const __u32 headers = 128;

	return !bpf_skb_pull_data(skb, skb->len < headers ? skb->len : headers);
}
