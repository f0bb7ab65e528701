#![allow(clippy::unwrap_used)]
use super::*;
use crate::conf;
use crate::vm::VmId;
use crate::yaml::Kind;

fn file(name: &str, header: &str, payload: &str) -> File {
    File::parse(name, format!("---\n{header}\n---\n{payload}").as_bytes()).unwrap()
}

#[test]
fn a_file_is_a_header_and_a_payload_or_an_error_with_its_line() {
    let yaml = |kind, place| Err(BadFile::Yaml(YamlError { kind, place: Some(place) }));
    let name = |word: &str, what, place| Err(BadFile::Name { word: word.to_owned(), what, place: Some(place) });
    let all = |place| Err(BadFile::All { place: Some(place) });
    for (text, expected) in [
        ("---\nall: true\n---\n#cloud-config\n", Ok("#cloud-config\n")),
        ("---\r\ntags: [web]\r\n---\r\n#x\r\n", Ok("#x\r\n")),
        ("---\ntags:\n  - web # the shop\n  - db\npools: [lab/a]\n---\n---\n#x\n---", Ok("---\n#x\n---")),
        ("---\npools: [lab]\n---\n\n #x", Ok("\n #x")),
        ("", Err(BadFile::NoHeader)),
        ("#cloud-config\n", Err(BadFile::NoHeader)),
        ("--- \nall: true\n---\nx", Err(BadFile::NoHeader)),
        ("\u{feff}---\nall: true\n---\nx", Err(BadFile::NoHeader)),
        ("---", Err(BadFile::Unclosed)),
        ("---\nall: true\n", Err(BadFile::Unclosed)),
        ("---\nall: true\n ---\nx", Err(BadFile::Unclosed)),
        ("---\n---\nx", Err(BadFile::Nobody)),
        ("---\n\n---\nx", Err(BadFile::Nobody)),
        ("---\n{}\n---\nx", Err(BadFile::Nobody)),
        ("---\ntags: []\npools: []\n---\nx", Err(BadFile::Nobody)),
        ("---\ntags: [web]\n---\n", Err(BadFile::Empty { line: 4 })),
        ("---\ntags: [web]\n---", Err(BadFile::Empty { line: 4 })),
        ("---\ntags: [web]\n\n---\n \n", Err(BadFile::Empty { line: 5 })),
        ("---\ntag: [web]\n---\nx", yaml(Kind::UnknownKey, (2, 1))),
        ("---\ntags: [web]\npool: [lab]\n---\nx", yaml(Kind::UnknownKey, (3, 1))),
        ("---\ntags: [web]\ntags: [db]\n---\nx", yaml(Kind::Twice, (3, 1))),
        ("---\ntags: web\n---\nx", yaml(Kind::Shape, (2, 7))),
        ("---\nall: yes please\n---\nx", yaml(Kind::Shape, (2, 6))),
        ("---\ntags: [web, -a]\n---\nx", name("-a", "tag", (2, 13))),
        ("---\ntags:\n- web\n- 'a b'\n---\nx", name("a b", "tag", (4, 3))),
        ("---\npools: [lab//a]\n---\nx", name("lab//a", "pool's path", (2, 9))),
        ("---\nall: false\n---\nx", all((2, 6))),
        ("---\ntags: [web]\nall: true\n---\nx", all((3, 6))),
    ] {
        let read = File::parse("10", text.as_bytes());
        let payload = read.map(|file| String::from_utf8(file.text().to_vec()).unwrap());
        assert_eq!(payload.as_deref().map_err(Clone::clone), expected, "{text:?}");
    }
    assert!(matches!(File::parse("10", b"---\ntags:\n---\nx"), Err(BadFile::Yaml(_))), "a key without a value");
    assert_eq!(File::parse("10", b"---\nall: true\n---\n#x\n\xff"), Err(BadFile::NotUtf8 { line: 5 }));
}

#[test]
fn a_file_is_for_whom_it_chooses_letter_by_letter() {
    let vm = conf::parse(VmId::new(106).unwrap(), b"tags: web;Lab\n").vm;
    for (header, pool, chosen) in [
        ("all: true", None, true),
        ("tags: [web]", None, true),
        ("tags: [db, Lab]", None, true),
        ("tags: [lab]", Some("lab"), false),
        ("tags: [we]", None, false),
        ("pools: [lab]", Some("lab"), true),
        ("pools: [lab]", Some("lab/a"), false),
        ("pools: [lab/a]", Some("lab"), false),
        ("pools: [lab]", None, false),
        ("tags: [db]\npools: [lab]", Some("lab"), true),
        ("tags: [web]\npools: [lab]", Some("shop"), true),
        ("tags: [db]\npools: [lab]", Some("shop"), false),
    ] {
        let files = Files::new(vec![file("10", header, "x")]);
        let pool = pool.and_then(PoolId::parse);
        assert_eq!(files.of(&vm, pool.as_ref()).count(), usize::from(chosen), "{header} {pool:?}");
    }
}

/// Each part's base64, out of a document.
fn decoded(document: &[u8]) -> Vec<String> {
    use base64::Engine;
    let text = str::from_utf8(document).unwrap();
    let parts = text.split("base64\n").skip(1).map(|part| {
        let (_, body) = part.split_once("\n\n").unwrap();
        let body: String = body.split("\n--").next().unwrap().lines().collect();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(body).unwrap()).unwrap()
    });
    parts.collect()
}

#[test]
fn the_nodes_files_come_first_in_the_order_of_their_names_and_the_block_last() {
    let files = Files::new(vec![
        file("20-b", "all: true", "#cloud-config\nb: \u{e9}\n"),
        file("10-a", "all: true", "#!/bin/sh\n"),
    ]);
    let vm = Vm::new(VmId::new(106).unwrap());
    let all: Vec<&File> = files.of(&vm, None).collect();
    let (a, b, own) = ("#!/bin/sh\n", "#cloud-config\nb: \u{e9}\n", "#cloud-config\n");
    for (files, block, expected) in [
        (&[][..], None, ""),
        (&[], Some(""), ""),
        (&[], Some(own), own),
        (&all[..1], None, a),
        (&all[..1], Some(""), a),
    ] {
        assert_eq!(*combine(files, block.map(str::as_bytes)), *expected.as_bytes(), "{block:?}");
    }
    for (files, block, expected) in
        [(&all[..], None, &[a, b][..]), (&all, Some(own), &[a, b, own]), (&all[..1], Some(own), &[a, own])]
    {
        let document = combine(files, block.map(str::as_bytes));
        assert!(
            document.is_ascii() && document.starts_with(b"Content-Type: multipart/mixed; boundary=\"=-node-0-=\"\n")
        );
        assert_eq!(decoded(&document), expected);
    }
    let document = String::from_utf8(combine(&all, Some(own.as_bytes())).into_owned()).unwrap();
    let names: Vec<_> = document.lines().filter_map(|line| line.split_once("filename=")).map(|(_, it)| it).collect();
    assert_eq!(names, ["\"10-a\"", "\"20-b\"", "\"vendor-data\""]);
}

#[test]
fn a_document_that_is_one_already_is_a_part_as_it_stands() {
    let inner = b"Content-Type: multipart/mixed; boundary=\"=-node-0-=\"\nMime-Version: 1.0\n\n--=-node-0-=--\n";
    let document = multipart(&[("a", b"x"), ("b", inner), ("c\"\n", &[0x1f, 0x8b, 8])]);
    let text = str::from_utf8(&document).unwrap();
    assert!(text.starts_with("Content-Type: multipart/mixed; boundary=\"=-node-1-=\"\n"), "{text}");
    assert!(text.contains(&format!("\n--=-node-1-=\n{}\n--=-node-1-=\n", str::from_utf8(inner).unwrap())), "{text}");
    assert!(text.contains("Content-Type: application/gzip\n") && text.contains("filename=\"c__\"\n"), "{text}");
    assert!(text.ends_with("\n--=-node-1-=--\n"), "{text}");
}
