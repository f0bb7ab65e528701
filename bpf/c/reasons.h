/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Why a frame that concerns us went where it went: one counter per line. Frames that do not concern us are not
 * counted, they are everybody's traffic. `src/reason.rs` holds the same list and a test compares the two, line by line.
 */
#pragma once

enum reason {
	STEER_REDIRECTED,
	STEER_UNASSIGNED,
	STEER_CLAIM,
	STEER_OPTIONS,
	STEER_FRAGMENT,
	STEER_PROTOCOL,
	STEER_PORT,
	STEER_ARP,
	STEER_TAGS,
	STEER_IPV6,
	STEER_UNREADABLE,
	STEER_BUCKET,
	STEER_CREDIT,
	STEER_FAILED,
	SHIELD_CLAIM_IPV4,
	SHIELD_CLAIM_ARP,
	SHIELD_CLAIM_IPV6,
	SHIELD_CLAIM_NEIGHBOUR,
	SHIELD_UNREADABLE,
	RETURN_REDIRECTED,
	RETURN_TAG,
	RETURN_EPOCH,
	RETURN_SLOT,
	RETURN_FAILED,
	FUNNEL_REDIRECTED,
	FUNNEL_TAG,
	FUNNEL_EPOCH,
	FUNNEL_SHED,
	FUNNEL_EMPTY,
	REASONS
};
