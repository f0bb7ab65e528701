//! Which answers are made at once, and which take their turn.
//!
//! In come what is asked for, the VM that asks and what its node adds; out goes whether the answer is light. All that is
//! asked for is made anew each time, and whoever owns a VM decides of how much: the thread that serves all guests makes
//! what takes it no time, and what is heavy is made beside it, in turns. Refused: nothing. Pure.

use pve_imds_model::endpoint::Endpoint;
use pve_imds_model::pools::PoolId;
use pve_imds_model::vendor::Files;
use pve_imds_model::vm::{Vm, Weight};

/// Bytes of what a VM's documents are made of, up to which they are made at once: all 8 KiB of Notes three times, and a few
/// keys and tags. In a debug build, which takes several times as long as one that is optimised, 32 KiB of control characters
/// as JSON (six letters each) take 5 ms of a core, 350 keys 4 ms, 470 tags 1 ms; a block of 1 MiB takes 170 ms.
pub(crate) const LIGHT_ANSWERS: usize = 32 << 10;

/// Whether what `endpoint` has for `vm` is made at once.
pub(crate) fn is_light(endpoint: Endpoint, vm: &Vm, pool: impl FnOnce() -> Option<PoolId>, files: &Files) -> bool {
    let light = |weight: Weight| weight.bytes() <= LIGHT_ANSWERS;
    match part(endpoint) {
        Part::Little => true,
        Part::Vm => light(vm.weight),
        // Who is heavy himself is not compared with the files, which takes as long as he has tags.
        Part::Both => light(vm.weight) && (files.is_empty() || light(vm.weight.and(files.weight(vm, pool().as_ref())))),
    }
}

/// What an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing that a VM's owner decides the length of.
    Little,
    /// The VM.
    Vm,
    /// The VM and its node's vendor data.
    Both,
}

fn part(endpoint: Endpoint) -> Part {
    use Endpoint as E;
    match endpoint {
        E::NocloudVendorData | E::OpenstackVendorData => Part::Both,
        E::NocloudMetaData
        | E::NocloudUserData
        | E::NocloudNetworkConfig
        | E::OpenstackIndex
        | E::OpenstackMetaData
        | E::OpenstackUserData
        | E::OpenstackNetworkData
        | E::Ec2MetaData
        | E::Ec2UserData => Part::Vm,
        E::NocloudIndex
        | E::OpenstackPassword
        | E::Ec2Index
        | E::Ec2Dynamic
        | E::Ec2Token
        | E::IdentityToken
        | E::IdentityKeys
        | E::Pxe
        | E::Other => Part::Little,
    }
}

#[cfg(test)]
mod tests {
    use pve_imds_model::conf;
    use pve_imds_model::vendor::File;
    use pve_imds_model::vm::VmId;

    use super::*;

    #[test]
    fn what_is_made_at_once() {
        let block = |name: &str, length: usize| format!("#<!--#{name}\n#{}\n#-->\n", "x".repeat(length));
        let file = |header: &str, length: usize| {
            File::parse("10", format!("---\n{header}\n---\n{}", "x".repeat(length)).as_bytes()).unwrap()
        };
        let (half, most) = (LIGHT_ANSWERS / 2, LIGHT_ANSWERS);
        // What the VM has, what the node has for it; whether its data, vendor data and the rest are made at once.
        for (config, files, expected) in [
            (String::new(), vec![], [true, true, true]),
            (block("user-data", most), vec![], [true, true, true]),
            (block("user-data", most + 1), vec![], [false, false, true]),
            (block("vendor-data", most + 1), vec![], [false, false, true]),
            (block("user-data", half) + &block("vendor-data", half), vec![], [true, true, true]),
            (block("user-data", half) + &block("vendor-data", half + 1), vec![], [false, false, true]),
            (String::new(), vec![file("all: true", most)], [true, true, true]),
            (String::new(), vec![file("all: true", most + 1)], [true, false, true]),
            (String::new(), vec![file("tags: [web]", most + 1)], [true, true, true]),
            ("tags: web\n".to_owned(), vec![file("tags: [web]", most)], [true, false, true]),
            (String::new(), vec![file("pools: [lab]", most + 1)], [true, false, true]),
            (block("vendor-data", half), vec![file("all: true", half + 1)], [true, false, true]),
        ] {
            let vm = conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm;
            let files = Files::new(files);
            let light = |endpoint| is_light(endpoint, &vm, || PoolId::parse("lab"), &files);
            let each = [Endpoint::NocloudUserData, Endpoint::NocloudVendorData, Endpoint::Ec2Token];
            assert_eq!(each.map(light), expected, "{}", vm.weight.bytes());
        }
    }
}
