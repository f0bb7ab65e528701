//! Why a frame that concerns us went where it went: the words of the kernel's counters.
//!
//! The list is the one of `c/reasons.h`, line by line.

use crate::words;

words! {
    /// One counter of the datapath, in the kernel's order. The first part of the word is the program; a word that does not
    /// end in `_redirected` is a drop.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Reason {
        /// An ARP request or a TCP segment for the metadata address, on its way to user space.
        SteerRedirected => "steer_redirected",
        /// The interface is guarded, but has no slot: nobody serves it.
        SteerUnassigned => "steer_unassigned",
        /// A guest sent in the metadata address's name.
        SteerClaim => "steer_claim",
        /// IPv4 options, or a header that is none.
        SteerOptions => "steer_options",
        /// A fragment, the first or a later one.
        SteerFragment => "steer_fragment",
        /// Neither TCP nor ARP.
        SteerProtocol => "steer_protocol",
        /// TCP to a port other than 80.
        SteerPort => "steer_port",
        /// ARP to the metadata address that is no request, or RARP.
        SteerArp => "steer_arp",
        /// More than one VLAN tag, or a service tag.
        SteerTags => "steer_tags",
        /// IPv6 to a metadata address, or neighbour discovery about one.
        SteerIpv6 => "steer_ipv6",
        /// IPv4, IPv6 or ARP whose addresses could not be read, or in an 802.3 SNAP envelope.
        SteerUnreadable => "steer_unreadable",
        /// More SYNs and ARP requests than 2,000 a second, after a burst of 256.
        SteerBucket => "steer_bucket",
        /// More than 256 segments of the guest are on their way already, or the frame alone is more than that.
        SteerCredit => "steer_credit",
        /// The kernel had no memory to change the frame.
        SteerFailed => "steer_failed",
        /// Somebody else's IPv4 packet from the metadata address to a guest.
        ShieldClaimIpv4 => "shield_claim_ipv4",
        /// Somebody else's ARP from the metadata address to a guest, or RARP that speaks of it.
        ShieldClaimArp => "shield_claim_arp",
        /// Somebody else's IPv6 packet from a metadata address to a guest.
        ShieldClaimIpv6 => "shield_claim_ipv6",
        /// Somebody else's neighbour advertisement of a metadata address to a guest, or redirect that speaks of one.
        ShieldClaimNeighbour => "shield_claim_neighbour",
        /// IPv4, IPv6 or ARP to a guest whose addresses could not be read, or in an 802.3 SNAP envelope.
        ShieldUnreadable => "shield_unreadable",
        /// An answer on its way to its guest.
        ReturnRedirected => "return_redirected",
        /// A frame from our device that carries no tag.
        ReturnTag => "return_tag",
        /// An answer of another load of the programs.
        ReturnEpoch => "return_epoch",
        /// An answer to an interface that is gone.
        ReturnSlot => "return_slot",
        /// The kernel had no memory to change the frame.
        ReturnFailed => "return_failed",
        /// A frame handed to the socket.
        FunnelRedirected => "funnel_redirected",
        /// A frame that `steer` did not send.
        FunnelTag => "funnel_tag",
        /// A frame that another load of the programs has tagged.
        FunnelEpoch => "funnel_epoch",
        /// The socket's ring is full but for its reserve.
        FunnelShed => "funnel_shed",
        /// There is no socket.
        FunnelEmpty => "funnel_empty",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_same_list() {
        let header = include_str!("../c/reasons.h");
        let kernel: Vec<_> = header
            .lines()
            .filter_map(|line| line.strip_prefix('\t'))
            .filter_map(|line| line.strip_suffix(','))
            .map(str::to_lowercase)
            .collect();
        let ours: Vec<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        assert_eq!(kernel, ours);
    }
}
