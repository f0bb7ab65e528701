use super::*;

#[test]
fn what_was_meant_is_told_with_the_first_thing_wrong_with_it() {
    use {Name as N, Slip as S};
    for (line, expected) in [
        // Nobody can have meant anything else.
        ("<!--#user-data\u{a0}encoding=base64", Some((N::UserData, S::Behind, 15, true))),
        ("<!--#user-data,encoding=base64", Some((N::UserData, S::Behind, 15, true))),
        ("<!--#imds:", Some((N::Imds, S::Behind, 10, true))),
        ("<!--#network-config>", Some((N::NetworkConfig, S::Behind, 20, true))),
        ("<!--#vendor-data\u{b}x", Some((N::VendorData, S::Behind, 17, true))),
        ("<!--#user-data\u{200b}", Some((N::UserData, S::Behind, 15, true))),
        ("<!--#user-data\rsecrets=a", Some((N::UserData, S::Behind, 15, true))),
        ("\u{feff}<!--#user-data", Some((N::UserData, S::Invisible, 1, true))),
        ("\u{200b}<!--#imds\n", Some((N::Imds, S::Invisible, 1, true))),
        ("\u{feff}<!--#user-data,x", Some((N::UserData, S::Invisible, 1, true))),
        ("\u{1}<!--#network-config encoding=base64", Some((N::NetworkConfig, S::Invisible, 1, true))),
        // Here somebody may have.
        (" <!--#user-data", Some((N::UserData, S::Indented, 1, false))),
        ("\u{a0}<!--#user-data", Some((N::UserData, S::Indented, 1, false))),
        ("\u{feff}\t<!--#imds", Some((N::Imds, S::Indented, 1, false))),
        ("\u{feff}<!--#userdata", Some((N::UserData, S::Invisible, 1, false))),
        ("<!-#user-data", Some((N::UserData, S::Mark, 1, false))),
        ("<--#user-data", Some((N::UserData, S::Mark, 1, false))),
        ("<!--# user-data", Some((N::UserData, S::Mark, 1, false))),
        ("<!-- #network-config", Some((N::NetworkConfig, S::Mark, 1, false))),
        ("<!--##vendor-data", Some((N::VendorData, S::Mark, 1, false))),
        ("<!\u{2014}#imds", Some((N::Imds, S::Mark, 1, false))),
        ("<!--user-data", Some((N::UserData, S::Mark, 1, false))),
        ("<!-- imds encoding=base64", Some((N::Imds, S::Mark, 1, false))),
        ("<!--#userdata", Some((N::UserData, S::Name, 6, false))),
        ("<!--#User-Data", Some((N::UserData, S::Name, 6, false))),
        ("<!--#network_config", Some((N::NetworkConfig, S::Name, 6, false))),
        ("<!--#network", Some((N::NetworkConfig, S::Name, 6, false))),
        ("<!--#user\u{2013}data", Some((N::UserData, S::Name, 6, false))),
        ("<!--#user\u{200b}-data", Some((N::UserData, S::Name, 6, false))),
        ("<!--#usr-data", Some((N::UserData, S::Name, 6, false))),
        ("<!--#userdatas", Some((N::UserData, S::Name, 6, false))),
        ("<!--#vendro-data", Some((N::VendorData, S::Name, 6, false))),
        ("<!--#idms", Some((N::Imds, S::Name, 6, false))),
        ("<!--#imd", Some((N::Imds, S::Name, 6, false))),
        ("<!--#user-data-->", Some((N::UserData, S::Behind, 15, false))),
        // What others call it.
        ("<!--#cloud-config", Some((N::UserData, S::Name, 6, false))),
        ("<!--#cloud-init encoding=base64", Some((N::UserData, S::Name, 6, false))),
        ("<!--#ignition", Some((N::UserData, S::Name, 6, false))),
        ("<!--#machine-config", Some((N::UserData, S::Name, 6, false))),
        ("<!--#network-data", Some((N::NetworkConfig, S::Name, 6, false))),
        ("<!--#netplan", Some((N::NetworkConfig, S::Name, 6, false))),
        ("<!--#policy", Some((N::Imds, S::Name, 6, false))),
        ("<!--#pve-imds", Some((N::Imds, S::Name, 6, false))),
        // What an editor makes of it.
        ("> <!--#user-data", Some((N::UserData, S::Quoted, 1, false))),
        ("><!--#imds", Some((N::Imds, S::Quoted, 1, false))),
        ("  > <!--#imds", Some((N::Imds, S::Quoted, 3, false))),
        ("> > <!--#vendor-data encoding=base64", Some((N::VendorData, S::Quoted, 1, false))),
        ("> - <!--#user-data", Some((N::UserData, S::Quoted, 1, false))),
        ("> <!--#userdata", Some((N::UserData, S::Quoted, 1, false))),
        ("> &lt;!--#user-data", Some((N::UserData, S::Quoted, 1, false))),
        ("- <!--#user-data", Some((N::UserData, S::Listed, 1, false))),
        ("* <!--#user-data secrets=web", Some((N::UserData, S::Listed, 1, false))),
        ("+ <!--#network-config", Some((N::NetworkConfig, S::Listed, 1, false))),
        ("12. <!--#imds", Some((N::Imds, S::Listed, 1, false))),
        ("1) <!--#imds", Some((N::Imds, S::Listed, 1, false))),
        ("\t- <!--#imds", Some((N::Imds, S::Listed, 2, false))),
        ("&lt;!--#user-data", Some((N::UserData, S::Escaped, 1, false))),
        (" &lt;!--#user-data encoding=base64", Some((N::UserData, S::Escaped, 2, false))),
        ("\\<!--#user-data", Some((N::UserData, S::Escaped, 1, false))),
        ("&lt;!--#imds\n", Some((N::Imds, S::Escaped, 1, false))),
        // Comments, directives of others, and what only speaks of blocks.
        ("", None),
        ("<!-- a comment -->", None),
        ("<!-- vendor: Dell -->", None),
        ("<!-- network: vlan 7 -->", None),
        ("<!-- network -->", None),
        ("<!-- user-data -->", None),
        ("<!--user-data-->", None),
        ("<!-- user-data: ask Kim", None),
        ("<!-- imds of the shop", None),
        ("<!-- userdat", None),
        ("<!-- pxe encoding=base64 -->", None),
        ("<!--#", None),
        ("<!--#other", None),
        ("<!--#include file=\"x\" -->", None),
        ("<!--#user", None),
        ("<user-data>", None),
        ("- user-data", None),
        ("# user-data", None),
        ("the block `<!--#user-data` is below", None),
        ("- <!--#user-data opens the block", None),
        ("- <!--#user-data: what the guest reads", None),
        ("- <!--#user-data ... -->", None),
        ("- <!--#user-data-->", None),
        ("- `<!--#user-data`", None),
        ("-<!--#user-data", None),
        ("1.<!--#user-data", None),
        ("- <!-- user-data", None),
        ("> <!-- user-data", None),
        ("> Kim wrote: use <!--#user-data", None),
        ("> <!--#user-data goes first", None),
        ("&lt;!--#user-data goes first", None),
        ("&lt;!-- user-data", None),
        ("&gt; <!--#user-data", None),
        ("&lt;user-data>", None),
        ("\\", None),
        ("> > >", None),
        ("1. 2.", None),
        ("`<!--#user-data`", None),
        ("```<!--#user-data", None),
        ("~~~ <!--#user-data", None),
        ("| <!--#user-data | what the guest reads |", None),
        ("<!--#config timefmt=\"%A\" -->", None),
        ("<!-- policy -->", None),
        ("<!-- cloud-init", None),
        ("-->", None),
    ] {
        let found = of(line).map(|Slipped { meant, slip, column, plain }| (meant, slip, column, plain));
        let expected = expected.map(|(name, slip, column, plain)| (Meant::Block(name), slip, column, plain));
        assert_eq!(found, expected, "{line:?}");
    }
}

#[test]
fn a_block_that_there_is_not_is_told_too() {
    for (line, expected) in [
        ("<!--#meta-data", Some((Slip::Name, 6))),
        ("<!--#metadata", Some((Slip::Name, 6))),
        ("<!--#meta_data encoding=base64", Some((Slip::Name, 6))),
        ("<!-- #meta-data", Some((Slip::Mark, 1))),
        (" <!--#meta-data", Some((Slip::Indented, 1))),
        ("> <!--#meta-data", Some((Slip::Quoted, 1))),
        ("<!-- meta-data", None),
        ("<!-- metadata: ask Kim -->", None),
        ("<!--#meta", None),
        ("- <!--#meta-data is not there", None),
    ] {
        let found = of(line).map(|Slipped { meant, slip, column, plain }| (meant, slip, column, plain));
        assert_eq!(found, expected.map(|(slip, column)| (Meant::MetaData, slip, column, false)), "{line:?}");
    }
}

#[test]
fn a_letter_may_be_wrong_and_two_may_not() {
    for (word, near) in [
        ("userdata", true),
        ("userdat", true),
        ("userda", true),
        ("userd", false),
        ("serdata", true),
        ("userxdata", true),
        ("uzerdata", true),
        ("usredata", true),
        ("uzerdatas", false),
        ("serdat", false),
        ("atadresu", false),
        ("", false),
    ] {
        assert_eq!(is_near(word, "userdata"), near, "{word}");
    }
}
