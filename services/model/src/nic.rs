//! `netN`: the text of one NIC becomes a [`Nic`], or nothing, as Proxmox decides.

use crate::format::{boolean, integer, is_digits, is_mac, is_rate};
use crate::property::{self, BadProperty, Fields, Format, Shorthand};
use crate::vm::Nic;

const MODELS: &[&str] = &[
    "e1000",
    "e1000-82540em",
    "e1000-82544gc",
    "e1000-82545em",
    "e1000e",
    "i82551",
    "i82557b",
    "i82559er",
    "ne2k_isa",
    "ne2k_pci",
    "pcnet",
    "rtl8139",
    "virtio",
    "vmxnet3",
];

const NET: Format = Format {
    fields: &[
        ("model", "a model of QEMU's, such as virtio", |model| MODELS.contains(&model)),
        ("macaddr", "a hardware address of one card, such as BC:24:11:00:00:01", is_mac),
        ("bridge", "a bridge's name", is_bridge),
        ("tag", "a VLAN's number, 1 to 4094", |tag| in_range(tag, 1, 4094)),
        ("trunks", "numbers of VLANs, such as 5-7;100", is_trunks),
        ("firewall", "0 or 1", is_boolean),
        ("link_down", "0 or 1", is_boolean),
        ("mtu", "a number from 1 to 65520", |mtu| in_range(mtu, 1, 65520)),
        ("queues", "a number from 0 to 64", |queues| in_range(queues, 0, 64)),
        ("rate", "a number of MiB/s", is_rate),
        ("host-tunnel", "0 or 1", is_boolean),
    ],
    nameless: Some("model"),
    shorthand: Some(Shorthand { words: MODELS, word_field: "model", value_field: "macaddr" }),
    required: &["model"],
    needs: &[],
};

impl Nic {
    /// Reads the value of `net<index>`.
    pub(crate) fn parse(index: u8, text: &str) -> Result<Self, BadProperty> {
        let fields = property::parse(&NET, text)?;
        let owned = |name| fields.get(name).map(|value: &&str| (*value).to_owned());
        let flag = |name| fields.get(name).copied().and_then(boolean).unwrap_or(false);
        Ok(Self {
            index,
            model: owned("model").ok_or(BadProperty::Missing("model"))?,
            mac: owned("macaddr"),
            bridge: owned("bridge"),
            tag: number(&fields, "tag"),
            trunks: owned("trunks"),
            firewall: flag("firewall"),
            link_down: flag("link_down"),
            mtu: number(&fields, "mtu"),
            queues: number(&fields, "queues"),
        })
    }
}

fn number<N: TryFrom<i64>>(fields: &Fields<'_>, name: &str) -> Option<N> {
    fields.get(name).copied().and_then(integer).and_then(|number| number.try_into().ok())
}

fn in_range(text: &str, least: i64, most: i64) -> bool {
    integer(text).is_some_and(|number| (least..=most).contains(&number))
}

fn is_boolean(text: &str) -> bool {
    boolean(text).is_some()
}

fn is_bridge(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// `5-7;100`
fn is_trunks(text: &str) -> bool {
    text.split(';')
        .all(|part| part.split_once('-').map_or_else(|| is_digits(part), |(from, to)| is_digits(from) && is_digits(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(model: &str) -> Nic {
        Nic {
            index: 0,
            model: model.to_owned(),
            mac: None,
            bridge: None,
            tag: None,
            trunks: None,
            firewall: false,
            link_down: false,
            mtu: None,
            queues: None,
        }
    }

    #[test]
    fn a_nic_is_whole_or_absent() {
        use BadProperty as Bad;
        let wrong = |field, wanted| Err(Bad::BadValue { field, wanted });
        let mac = || Some("BC:24:11:00:00:01".to_owned());
        let bridge = || Some("vmbr0".to_owned());
        for (text, expected) in [
            ("virtio", Ok(nic("virtio"))),
            ("virtio=BC:24:11:00:00:01", Ok(Nic { mac: mac(), ..nic("virtio") })),
            ("macaddr=BC:24:11:00:00:01,e1000,bridge=vmbr0", Ok(Nic { mac: mac(), bridge: bridge(), ..nic("e1000") })),
            ("virtio,tag=+5,queues=0,mtu=1", Ok(Nic { tag: Some(5), queues: Some(0), mtu: Some(1), ..nic("virtio") })),
            ("virtio,firewall=YES,link_down=off", Ok(Nic { firewall: true, ..nic("virtio") })),
            ("virtio,trunks=5-7;100", Ok(Nic { trunks: Some("5-7;100".to_owned()), ..nic("virtio") })),
            ("bridge=vmbr0", Err(Bad::Missing("model"))),
            ("virtio=01:24:11:00:00:01", wrong("macaddr", "a hardware address of one card, such as BC:24:11:00:00:01")),
            ("Virtio", wrong("model", "a model of QEMU's, such as virtio")),
            ("virtio,tag=0", wrong("tag", "a VLAN's number, 1 to 4094")),
            ("virtio,tag=4095", wrong("tag", "a VLAN's number, 1 to 4094")),
            ("virtio,mtu=65521", wrong("mtu", "a number from 1 to 65520")),
            ("virtio,queues=65", wrong("queues", "a number from 0 to 64")),
            ("virtio,queues=-1", wrong("queues", "a number from 0 to 64")),
            ("virtio,trunks=5-", wrong("trunks", "numbers of VLANs, such as 5-7;100")),
            ("virtio,bridge=vm br0", wrong("bridge", "a bridge's name")),
            ("virtio,firewall=maybe", wrong("firewall", "0 or 1")),
            ("virtio,rate=-1", wrong("rate", "a number of MiB/s")),
            ("virtio,host-tunnel=maybe", wrong("host-tunnel", "0 or 1")),
            ("virtio,bridge=", Err(Bad::NoValue("bridge"))),
            ("virtio,colour=red", Err(property::parse(&NET, "colour=red").unwrap_err())),
            (
                "virtio,tag=4094,mtu=65520,queues=64,host-tunnel=1,rate=12.5,bridge=vm_br-0.20",
                Ok(Nic {
                    tag: Some(4094),
                    mtu: Some(65520),
                    queues: Some(64),
                    bridge: Some("vm_br-0.20".to_owned()),
                    ..nic("virtio")
                }),
            ),
        ] {
            assert_eq!(Nic::parse(0, text), expected, "{text}");
        }
    }

    #[test]
    fn every_model_can_be_written_in_three_ways() {
        let models = "e1000 e1000-82540em e1000-82544gc e1000-82545em e1000e i82551 i82557b i82559er ne2k_isa ne2k_pci pcnet \
                      rtl8139 virtio vmxnet3";
        for model in models.split_ascii_whitespace() {
            assert_eq!(Nic::parse(0, model), Ok(nic(model)));
            let with = Ok(Nic { mac: Some("bc:24:11:00:00:01".to_owned()), ..nic(model) });
            assert_eq!(Nic::parse(0, &format!("{model}=bc:24:11:00:00:01")), with);
            assert_eq!(Nic::parse(0, &format!("model={model},macaddr=bc:24:11:00:00:01")), with);
        }
    }
}
