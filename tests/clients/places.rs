//! Where the clients are installed, and which versions of them.
//!
//! In comes what `tests/guest/debian.sh` and `tests/clients/build.sh` made below `target`; out go the places. What could not
//! be made is told in the words of whoever tried, and so breaks off the cell that wants it.
#![allow(dead_code, reason = "each tier uses its part")]

use std::fs;
use std::panic::panic_any;
use std::path::{Path, PathBuf};

use crate::table::Program;
use crate::world::{run, script};

/// A client that cannot be had, in the words of whoever tried. A cell that wants it breaks off with this.
#[derive(Debug)]
pub struct Lacking(pub String);

/// A system to chroot into.
#[derive(Clone, Copy, Debug)]
pub enum Tree {
    Debian12,
    Debian13,
    Sid,
    Tools,
}

impl Tree {
    pub fn path(self) -> PathBuf {
        match self {
            Self::Debian12 => there("guest", "debian12"),
            Self::Debian13 => there("guest", "debian13"),
            Self::Sid => there("clients", "sid"),
            Self::Tools => there("clients", "tools"),
        }
    }

    /// The version of one of its packages, as Debian counts.
    fn version(self, package: &str) -> String {
        let tree = self.path();
        run(&format!("chroot {} dpkg-query -W -f '${{Version}}' {package}", tree.display()))
    }
}

/// What was made below `target`, if it could be.
fn there(below: &str, name: &str) -> PathBuf {
    let path = script("../target").join(below).join(name);
    let lacking = path.with_file_name(format!("{name}.lacking"));
    unless(&lacking);
    assert!(path.exists(), "there is no {}; run: make clients", path.display());
    path
}

/// Goes on unless this file says that something cannot be had.
fn unless(lacking: &Path) {
    if let Ok(reason) = fs::read_to_string(lacking) {
        panic_any(Lacking(reason.trim_end().to_owned()));
    }
}

/// What tests/clients/build.sh made of `part`.
pub fn own(part: &str, file: &str) {
    let lacking = script("../target/clients").join(format!("{part}.lacking"));
    unless(&lacking);
    there("clients/own", file);
}

/// As the client itself says it, or the package it is from.
pub fn version(program: Program) -> String {
    match program {
        Program::CloudInit12 => Tree::Debian12.version("cloud-init"),
        Program::CloudInit13 => Tree::Debian13.version("cloud-init"),
        Program::CloudInitSid => Tree::Sid.version("cloud-init"),
        Program::Ignition => Tree::Debian12.version("ignition"),
        Program::Afterburn => {
            own("afterburn", "afterburn");
            let said = run(&format!("{}/afterburn --version", script("../target/clients/own").display()));
            said.trim().rsplit(' ').next().unwrap_or_default().to_owned()
        }
        Program::CloudbaseInit => {
            own("cloudbase-init", "cloudbase");
            let names = fs::read_dir(script("../target/clients/own/cloudbase")).unwrap();
            let name = names
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .find(|name| name.ends_with(".dist-info"))
                .unwrap();
            name.trim_end_matches(".dist-info").rsplit('-').next().unwrap_or_default().to_owned()
        }
        Program::Botocore => Tree::Tools.version("python3-botocore"),
        Program::RustSdk => {
            let lock = fs::read_to_string(script("clients/sdk/Cargo.lock")).unwrap();
            let (_, rest) = lock.split_once("name = \"aws-config\"\nversion = \"").unwrap();
            rest.split('"').next().unwrap().to_owned()
        }
        Program::Ec2Metadata => Tree::Debian12.version("cloud-guest-utils"),
        Program::Ec2MetadataScript => Tree::Debian12.version("amazon-ec2-utils"),
        Program::Facter => Tree::Tools.version("facter"),
        Program::Ohai => Tree::Tools.version("ohai"),
        Program::SystemdImds => Tree::Sid.version("systemd-imds"),
        Program::OpenBao => {
            own("openbao", "login-by-openbao");
            let modules = fs::read_to_string(script("clients/openbao/go.mod")).unwrap();
            // The module of its programs has no versions that Go would take for any.
            let version = modules.lines().find_map(|line| line.trim().strip_prefix("// OpenBao ")).unwrap();
            version.split(':').next().unwrap().to_owned()
        }
        Program::Ipxe => run("dpkg-query -W -f '${Version}' ipxe"),
    }
}
