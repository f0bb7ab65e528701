//! Where each of a VM's answers comes from: for people who ask why.
//!
//! In come a VM and what the node adds; out comes, for each answer, which of the places it may come from has won. The
//! answers themselves are made elsewhere, by the same rules; nothing here holds any of their text.

use crate::cloud_config::cloud_config;
use crate::network::{self, network_config};
use crate::notes::BlockError;
use crate::pools::PoolId;
use crate::site::Site;
use crate::vm::Vm;
use crate::words;

words! {
    /// The place an answer comes from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Source {
        /// The block in the Notes.
        Block => "block",
        /// The node's own files.
        Node => "node",
        /// The node's own files and the block, joined.
        Both => "both",
        /// The block in the Notes, with secrets of the store in it.
        Rendered => "rendered",
        /// Proxmox's own cloud-init options.
        Options => "options",
        /// What every VM gets of which nothing is said.
        Default => "default",
        /// Nothing is said, and that is the answer.
        Empty => "empty",
        /// Nowhere: what is there cannot be used, and the guest is told to wait or to go.
        Refused => "refused",
    }
}

/// One answer's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which answer, by the name of the block that could say it.
    pub what: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// Why the block that is there is not used.
    pub broken: Option<BlockError>,
}

impl Origin {
    fn of<T>(what: &'static str, block: Option<&Result<T, BlockError>>, broken: Source, absent: Source) -> Self {
        match block {
            Some(Ok(_)) => Self { what, source: Source::Block, broken: None },
            Some(Err(error)) => Self { what, source: broken, broken: Some(error.clone()) },
            None => Self { what, source: absent, broken: None },
        }
    }
}

/// Where user data, vendor data, network configuration and policy of `vm`, which is in `pool`, come from, in this order.
/// A policy that keeps everything from the VM keeps each of them.
#[must_use]
pub fn origins(vm: &Vm, pool: Option<&PoolId>, site: &Site) -> [Origin; 4] {
    let mut origins = written(vm, pool, site);
    let served = match &vm.notes.policy {
        Some(Ok(policy)) => policy.enabled,
        Some(Err(_)) => false,
        None => true,
    };
    if !served && let [answers @ .., _policy] = &mut origins {
        answers.iter_mut().for_each(|answer| answer.source = Source::Refused);
    }
    origins
}

/// The same, as if the policy let the VM have everything.
fn written(vm: &Vm, pool: Option<&PoolId>, site: &Site) -> [Origin; 4] {
    let (notes, refused) = (&vm.notes, Source::Refused);
    let options = site.cloudinit && cloud_config(vm).is_some();
    let otherwise = if options { Source::Options } else { Source::Empty };
    let mut user_data = Origin::of("user-data", notes.user_data.as_ref(), refused, otherwise);
    if notes.secret_set().is_some() {
        user_data.source = if site.secrets { Source::Rendered } else { refused };
    }
    let mut vendor_data = Origin::of("vendor-data", notes.vendor_data.as_ref(), refused, Source::Empty);
    if site.vendor.of(vm, pool).next().is_some() {
        vendor_data.source = match vendor_data.source {
            Source::Block => Source::Both,
            Source::Refused => refused,
            _ => Source::Node,
        };
    }
    let network = match network_config(vm, site).1 {
        network::Source::Options => Source::Options,
        _ => Source::Default,
    };
    [
        user_data,
        vendor_data,
        Origin::of("network-config", notes.network_config.as_ref(), Source::Default, network),
        Origin::of("imds", notes.policy.as_ref(), refused, Source::Default),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vendor::{File, Files};
    use crate::vm::VmId;

    #[test]
    fn each_answer_comes_from_the_place_that_has_won() {
        use Source::{Block, Default, Empty, Options, Refused};
        let block = |name: &str, text: &str| format!("#<!--#{name}\n#{text}\n#-->\n");
        let shaped = "ipconfig0: ip=192.0.2.5/24\nnet0: virtio=BC:24:11:00:00:01\n";
        for (config, cloudinit, expected, broken) in [
            ("name: a\n".to_owned(), true, [Empty, Empty, Default, Default], 0),
            ("ciuser: ops\n".to_owned(), true, [Options, Empty, Default, Default], 0),
            ("ciuser: ops\n".to_owned(), false, [Empty, Empty, Default, Default], 0),
            (shaped.to_owned(), true, [Empty, Empty, Options, Default], 0),
            (shaped.to_owned(), false, [Empty, Empty, Default, Default], 0),
            (block("user-data", "x") + "ciuser: ops\n", true, [Block, Empty, Default, Default], 0),
            (block("user-data x", "x") + "ciuser: ops\n", true, [Refused, Empty, Default, Default], 1),
            (block("user-data secrets=a", "x"), true, [Refused, Empty, Default, Default], 0),
            (block("vendor-data", "x"), true, [Empty, Block, Default, Default], 0),
            (block("vendor-data x", "x"), true, [Empty, Refused, Default, Default], 1),
            (block("network-config", "version%3A 2") + shaped, true, [Empty, Empty, Block, Default], 0),
            (block("network-config", "version%3A 3") + shaped, true, [Empty, Empty, Default, Default], 1),
            (block("imds", "mac%3A own"), true, [Empty, Empty, Default, Block], 0),
            (block("imds", "mac%3A his"), true, [Refused, Refused, Refused, Refused], 1),
            (block("imds", "enabled%3A true") + shaped, true, [Empty, Empty, Options, Block], 0),
            (
                block("imds", "enabled%3A false") + &block("user-data", "x") + shaped,
                true,
                [Refused, Refused, Refused, Block],
                0,
            ),
            (
                block("imds", "enabled%3A false") + &block("user-data x", "x"),
                true,
                [Refused, Refused, Refused, Block],
                1,
            ),
        ] {
            let vm = conf::parse(VmId::new(100).unwrap(), config.as_bytes()).vm;
            let found = origins(&vm, None, &Site { cloudinit, ..Site::default() });
            assert_eq!(found.clone().map(|origin| origin.source), expected, "{config}");
            assert_eq!(found.iter().filter(|origin| origin.broken.is_some()).count(), broken, "{config}");
        }
    }

    #[test]
    fn vendor_data_is_the_nodes_the_vms_or_both() {
        let file = |header: &str| File::parse("10", format!("---\n{header}\n---\nx").as_bytes()).unwrap();
        let files = Files::new(vec![file("tags: [web]"), file("pools: [lab]")]);
        let site = Site { vendor: files.into(), ..Site::default() };
        let block = "#<!--#vendor-data\n#x\n#-->\n";
        for (config, pool, expected) in [
            ("tags: db\n".to_owned(), None, Source::Empty),
            ("tags: web\n".to_owned(), None, Source::Node),
            ("tags: db\n".to_owned(), Some("lab"), Source::Node),
            (format!("{block}tags: db\n"), Some("shop"), Source::Block),
            (format!("{block}tags: web\n"), None, Source::Both),
            (format!("{}tags: web\n", block.replace("data", "data x")), None, Source::Refused),
            (format!("#<!--#imds\n#enabled%3A false\n#-->\n{block}tags: web\n"), None, Source::Refused),
        ] {
            let vm = conf::parse(VmId::new(100).unwrap(), config.as_bytes()).vm;
            let [_, vendor_data, ..] = origins(&vm, pool.and_then(PoolId::parse).as_ref(), &site);
            assert_eq!(vendor_data.source, expected, "{config} {pool:?}");
        }
    }
}
