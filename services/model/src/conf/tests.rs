#![allow(clippy::unwrap_used)]

use super::*;

fn load(text: &str) -> Parsed {
    parse(VmId::new(100).unwrap(), text.as_bytes())
}

#[test]
fn warnings_name_the_line_and_never_the_value() {
    let parsed = load(
        "name: bad_name\ncipassword: canary\rx\ncanary\nnet0: virtio,canary=1\ndelete: canary\n[PENDING]\nfoo: canary\n\
         [a b]\ncanary\n[snap]\n[snap]\ncanary\n",
    );
    let shown: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "line 1, column 7: `name`: the value is not a DNS name",
            "line 2, column 13: `cipassword`: the value holds a line break",
            "line 3, column 1: not a line of a configuration",
            "line 4, column 7: `net0`: unknown field; there are model, macaddr, bridge, tag, trunks, firewall, link_down, mtu, \
             queues, rate and host-tunnel",
            "line 5, column 1: `delete` belongs to the pending section",
            "line 7, column 1: `foo`: unknown option",
            "line 8, column 1: unknown section, skipped",
            "line 11, column 1: the section is there twice, the later one counts",
        ]
    );
    assert!(!format!("{:?}", parsed.warnings).contains("canary"));
}

#[test]
fn what_counts_and_does_nothing_is_doubted() {
    let net = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
    for (text, expected) in [
        ("ipconfig0: ip=dhcp\nnet0: virtio=BC:24:11:00:00:01\n", vec![]),
        (
            "name: a\nipconfig3:  ip=192.0.2.5/24\nnet0: virtio=BC:24:11:00:00:01\n",
            vec!["line 2, column 13: `ipconfig3`: there is no `net3` that could get it"],
        ),
        (
            "net0: virtio=01:00:00:00:00:00\nipconfig0: ip=dhcp\n",
            vec![
                "line 1, column 7: `net0`: `macaddr` must be a hardware address of one card, such as BC:24:11:00:00:01",
                "line 2, column 12: `ipconfig0`: there is no `net0` that could get it",
            ],
        ),
        (
            "ipconfig0: ip=dhcp\nnet0: virtio,bridge=vmbr0\n",
            vec![
                "line 1, column 12: `ipconfig0`: `net0` has no hardware address here, so nothing says which card is to get \
                 it; give `net0` one",
            ],
        ),
        (
            "ipconfig0: ip=dhcp\nNET\nipconfig0: ip=manual\nipconfig0: ip6=auto\n",
            vec![
                "line 1, column 12: `ipconfig0`: it stands again on line 3, and that line counts",
                "line 3, column 12: `ipconfig0`: it stands again on line 4, and that line counts",
            ],
        ),
        // One that cannot be used does not count, and sections have options of their own.
        (
            "NET\nipconfig0: ip=dhcp\nipconfig0: ip=canary\n[PENDING]\nipconfig0: ip=dhcp\nipconfig7: ip=dhcp\n",
            vec![
                "line 3, column 12: `ipconfig0`: `ip` must be dhcp, manual, or an IPv4 address with the length of its \
                 prefix, 8 to 32, such as 192.0.2.5/24",
            ],
        ),
        (
            "sshkeys: ssh-rsa%20AAAA%0Assh-rsa%20AAAA%2canary%\n",
            vec![
                "line 1, column 49: `sshkeys`: key 2: `%` without two hexadecimal digits behind it; `%` itself is written \
                 `%25`",
            ],
        ),
        (
            "sshkeys: ssh-rsa%20AAAA%0A%0Assh-rsa canary\n",
            vec![
                "line 1, column 37: `sshkeys`: key 2: a character is not percent-encoded; a blank is written `%20`, `+` is \
                 `%2B`, a line's end `%0A`",
            ],
        ),
        ("nameserver: 192.0.2.53, 2001:db8::53\n", vec![]),
        (
            "nameserver: 192.0.2.53;canary.example other\n",
            vec!["line 1, column 24: `nameserver`: a server that is given by its name is left out; give its address"],
        ),
        ("name: a\nname: b\n", vec!["line 1, column 7: `name`: it stands again on line 2, and that line counts"]),
    ] {
        let parsed = load(&text.replace("NET\n", net));
        let shown: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(shown, expected, "{text}");
    }
    // Doubts are none of what is dropped, and stand among it by their lines, no more than are kept of both.
    let parsed = load(&("name: a\nnonsense\n".repeat(100) + "name: a\n"));
    assert_eq!(parsed.warnings.len(), MAX_WARNINGS);
    assert!(parsed.warnings.is_sorted_by_key(|warning| warning.line) && parsed.warnings[49].line == 50);
    assert_eq!(parsed.warnings.iter().filter(|warning| warning.reason.is_dropped()).count(), 25);
}

#[test]
fn warnings_are_bounded() {
    let parsed = load(&"nonsense\n".repeat(10_000));
    assert_eq!(parsed.warnings.len(), MAX_WARNINGS);
    let parsed = load(&format!("{}: x\n", "a".repeat(10_000)));
    assert!(parsed.warnings[0].to_string().len() < 100);
}

#[test]
fn what_no_version_of_proxmox_writes_is_told_by_its_line() {
    let many = format!("{}nonsense\n", "name: bad_name\n".repeat(MAX_WARNINGS + 1));
    for (text, expected) in [
        ("", None),
        ("name: web\n\n#nonsense\n", None),
        ("name: web\nnonsense\n\n\u{0}\u{1}\n", Some(2)),
        ("name: web\n[PENDING]\n name: web\n", Some(3)),
        ("name:\n", Some(1)),
        (&many, Some(MAX_WARNINGS + 2)),
        // Another version may know these.
        ("name: bad_name\nfuture: 1\n[future:x]\nnonsense\n[snap]\nnonsense\ndelete: x\n", None),
        ("delete: x\n", None),
    ] {
        assert_eq!(load(text).stray_line, expected, "{text:?}");
    }
}

#[test]
fn a_configuration_is_ready_when_it_says_anything_about_a_vm() {
    for (text, ready) in [
        ("", false),
        ("\n \n", false),
        ("# qmclone temporary file\nlock: clone\n", false),
        ("lock: create\n", false),
        ("lock: destroyed\n", false),
        ("description: only Notes\n", false),
        ("nonsense\nname: bad_name\n", false),
        ("[PENDING]\nname: web\n", false),
        ("[snap]\nname: web\n", false),
        ("lock: create\nmemory: 512\n", true),
        ("name: web\n", true),
        ("args: -S\n", true),
    ] {
        assert_eq!(load(text).is_ready(), ready, "{text:?}");
    }
}

#[test]
fn the_last_good_value_wins() {
    let vm = load("name: a\nname: b\nname: c_d\nnet0: e1000\nnet0: virtio\nnet0: none\nsmbios1: base64=0\n").vm;
    assert_eq!(vm.name.as_deref(), Some("b"));
    assert_eq!(vm.nets.iter().map(|nic| nic.model.as_str()).collect::<Vec<_>>(), ["virtio"]);
    let vm = load("smbios1: uuid=11111111-1111-4111-8111-111111111103,sku=YQ\nsmbios1: family=Yg\n").vm;
    assert_eq!((vm.uuid, vm.smbios.len()), (None, 1));
}

#[test]
fn tags_stay_as_they_were_typed() {
    for (text, expected) in [("B,a\t a;B;;b", vec!["B", "a", "a", "B", "b"]), ("a;b c;-d", vec![]), ("", vec![])] {
        assert_eq!(load(&format!("tags: {text}\n")).vm.tags, expected, "{text}");
    }
}

#[test]
fn a_section_of_any_other_name_is_passed_over_to_the_next_header() {
    let text =
        "name: a\n[Special:cloudinit]\nname: b\n[special:Fleecing]\n#x\nname: c\nodd\n[x]\ntags: d\n[snap]\nodd\n";
    let parsed = load(text);
    assert_eq!((parsed.vm.name.as_deref(), parsed.vm.description.as_deref()), (Some("a"), None));
    assert_eq!((parsed.vm.special_sections, parsed.vm.snapshots), (vec!["cloudinit".into()], vec!["snap".to_owned()]));
    let unknown = |warning: &Warning| (warning.line, warning.reason.clone());
    let unknown: Vec<_> = parsed.warnings.iter().map(unknown).collect();
    assert_eq!(unknown, [(4, Reason::UnknownSection), (8, Reason::UnknownSection)], "what stands in them is nobody's");
}

#[test]
fn what_means_nothing_here_is_known_all_the_same() {
    let known = load(
        "agent: enabled=1,type=virtio\nargs: -device x,y=\"z\"\nbios: ovmf\nboot: order=scsi0;net0\nhookscript: a:b\n\
         machine: q35\nmeta: creation-qemu=10.1.2,ctime=1\nonboot: 1\nprotection: 0\nscsihw: virtio-scsi-single\n\
         scsi0: local:vm-100-disk-0,serial=x\ntemplate: 1\nvmgenid: 1\nostype: l26\n",
    );
    assert_eq!(known.warnings, []);
    assert!(known.vm.template);
}

#[test]
fn descriptions_are_decoded_line_by_line() {
    for (text, expected) in [
        ("", None),
        ("#\n", Some("")),
        ("# a%0Ab%zz%4\n", Some(" a\nb%zz%4")),
        ("#%C3%BC %c3 x\n", Some("ü \u{fffd} x")),
        ("#%C3\n#%BC\n", Some("\u{fffd}\n\u{fffd}")),
        ("#a%20%C2%A0\n", Some("a")),
        ("description: a%3Ab\n#c\n", Some("a:bc")),
        ("description: \n", Some(" ")),
        ("description: \n#c\n", Some("c")),
        ("#a\n[PENDING]\n#b\n[snap]\n#c\n", Some("a")),
        ("#a\r\n#b\r\n", Some("a\r\nb")),
        ("name: w\n#a\nmemory: 1\n\n#b\n", Some("a\nb")),
        ("##cloud-config\n# %c3%bc%3A\n", Some("#cloud-config\n ü:")),
        ("#scsi1: local:1\nscsi0: local:0\n", Some("scsi1: local:1")),
        ("#a --> b\n", Some("a --> b")),
        // What stands before the first word stays, and a lone digit is a text.
        ("#\n#\t a\n#\n", Some("\n\t a")),
        ("#0\n", Some("0")),
    ] {
        assert_eq!(load(text).vm.description.as_deref(), expected, "{text:?}");
    }
    let raw = [&b"#\xc3%BC\xff\n"[..], b"name: w\n"].concat();
    assert_eq!(parse(VmId::new(100).unwrap(), &raw).vm.description.as_deref(), Some("ü\u{fffd}"));
}

#[test]
fn a_second_pending_section_replaces_the_first() {
    let parsed = load("[PENDING]\nname: a\n[snap]\n[pending]\ncdrom: none\n#x\ndelete: tags\nname: a_b\n");
    assert_eq!(parsed.vm.pending_keys, ["delete", "description", "ide2"]);
    assert_eq!(parsed.warnings.len(), 2);
}

#[test]
fn blocks_come_from_the_main_section_alone() {
    let block = "#<!--#user-data\n#x%3A 1\n#-->\n";
    assert!(load(block).vm.notes.user_data.is_some_and(|block| block.is_ok_and(|data| data.text == b"x: 1")));
    for text in [format!("[PENDING]\n{block}"), format!("[snap]\n{block}"), format!("[special:cloudinit]\n{block}")] {
        assert_eq!(load(&text).vm.notes, Notes::default(), "{text}");
    }
}
