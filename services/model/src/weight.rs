//! How much there is to make a VM's documents of.
//!
//! In comes a VM, once, when its configuration is read; out goes a [`Weight`], by which whoever answers tells what is made
//! in no time from what is not. A configuration says little of it by its length: 1.5 KiB of Notes unpack to 1 MiB. Counted
//! is what answers repeat; what stands in the configuration for the operator alone (his remarks, snapshots) is not.

use crate::notes::{Notes, UserData};
use crate::vm::Vm;

/// Bytes that a VM's documents are made of, about: its texts, and for each thing in a list [`Weight::ITEM`] more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(usize);

impl Weight {
    /// Bytes that a thing in a list costs beside its own: JSON and YAML have a name and marks around each, and a map and a
    /// text or two are made for it. A route, of which Nova's document says most, has about 150 letters there.
    const ITEM: usize = 64;

    /// This many bytes.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Both together.
    #[must_use]
    pub fn and(self, Self(bytes): Self) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// A list of `count` things.
    pub(crate) fn items(count: usize) -> Self {
        Self(count.saturating_mul(Self::ITEM))
    }

    /// What `vm` weighs.
    pub(crate) fn of(vm: &Vm) -> Self {
        let options = &vm.cloudinit;
        // Each NIC's part of a network has all of them.
        let names = Self::list(&options.nameserver).and(Self::list(&options.searchdomain));
        let names = Self(names.0.saturating_mul(vm.nets.len()));
        let words = [&vm.name, &vm.uuid, &options.ciuser].into_iter().flatten().map(String::len);
        let password = options.cipassword.as_ref().map_or(0, |password| password.expose().len());
        let parts = [
            Self(words.sum()),
            Self(password),
            Self::list(&vm.tags),
            Self::list(&options.sshkeys),
            Self::items(vm.nets.len().saturating_add(options.ipconfig.len())),
            names,
            Self::of_notes(&vm.notes),
        ];
        parts.into_iter().fold(Self::default(), Self::and)
    }

    fn list(texts: &[String]) -> Self {
        Self(texts.iter().map(String::len).sum()).and(Self::items(texts.len()))
    }

    /// The blocks, unpacked. One network can be more than its text, by YAML's aliases.
    fn of_notes(notes: &Notes) -> Self {
        let text = |text: &[u8]| Self(text.len());
        let user = match &notes.user_data {
            // Never served as it stands.
            Some(Ok(UserData { secrets: Some(_), .. }) | Err(_)) | None => Self::default(),
            Some(Ok(UserData { secrets: None, text: user })) => text(user),
        };
        let vendor = notes.vendor_data.iter().flatten().map(|vendor| text(vendor.as_bytes()));
        let network = notes.network_config.iter().flatten();
        let network = network.map(|network| text(network.as_bytes()).and(network.plan().weight()));
        vendor.chain(network).fold(user, Self::and)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use crate::conf;
    use crate::vm::VmId;

    fn weight(config: &str) -> usize {
        conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm.weight.bytes()
    }

    #[test]
    fn what_is_repeated_counts_once_and_what_is_not_never() {
        let keys = format!("sshkeys: {}\n", "ssh-ed25519%20AAAA%0A".repeat(3));
        let servers = "nameserver: 192.0.2.1 192.0.2.2\n";
        let nics = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet1: virtio=BC:24:11:00:00:02,bridge=vmbr0\n";
        for (config, expected) in [
            (String::new(), 0),
            ("memory: 512\n".to_owned(), 0),
            ("name: web\n".to_owned(), 3),
            ("#A remark of the operator's own\nname: web\n".to_owned(), 3),
            ("name: web\n[snap]\nname: a-longer-one\ntags: a;b\n".to_owned(), 3),
            ("tags: a;bc\n".to_owned(), 3 + 2 * 64),
            (keys, 3 * (16 + 64)),
            (nics.to_owned(), 2 * 64),
            (format!("{nics}{servers}"), 2 * 64 + 2 * (18 + 2 * 64)),
            ("#<!--#user-data\n#12345\n#-->\n".to_owned(), 5),
            ("#<!--#user-data encoding=base64\n#MTIz\n#-->\n".to_owned(), 3),
            ("#<!--#user-data secrets=a\n#12345\n#-->\n".to_owned(), 0),
            ("#<!--#vendor-data\n#12345\n#-->\n#<!--#user-data\n#123\n#-->\n".to_owned(), 8),
            ("#<!--#vendor-data\n#12345\n".to_owned(), 0),
        ] {
            assert_eq!(weight(&config), expected, "{config}");
        }
    }

    #[test]
    fn a_few_letters_that_stand_for_much_weigh_much() {
        // 1.5 KiB of Notes.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![b'"'; 1 << 20]).unwrap();
        let packed = STANDARD.encode(encoder.finish().unwrap());
        assert!(packed.len() < 2048, "{}", packed.len());
        assert_eq!(weight(&format!("#<!--#vendor-data encoding=gzip+base64\n#{packed}\n#-->\n")), 1 << 20);
        // Sixty routes for each of thirty links, by reference.
        let routes: Vec<_> = (1..=60).map(|at| format!("{{to: 10.0.{at}.0/24, via: 10.0.0.1}}")).collect();
        let links: Vec<_> = (1..=30).map(|at| format!("v{at}: {{id: {at}, link: net0, routes: *r}}")).collect();
        let network = format!(
            "#<!--#network-config\n#{{version: 2, ethernets: {{net0: {{routes: &r [{}]}}}}, vlans: {{{}}}}}\n#-->\n",
            routes.join(", "),
            links.join(", ")
        );
        assert!(network.len() < 8 << 10, "{}", network.len());
        assert!(weight(&network) > 100 << 10, "{}", weight(&network));
    }
}
