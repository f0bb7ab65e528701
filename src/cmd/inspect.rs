//! `inspect`: a VM's configuration as it is understood.
//!
//! The JSON has the fields of the project's configuration fixtures, and what is ours below `imds`. Warnings, with their
//! lines and columns, stand there and go to standard error.

use std::fs::File;
use std::io::{self, Read, Write, stderr, stdin, stdout};
use std::path::Path;

use anyhow::Context;
use pve_imds_datasources::backends::pve::Digest;
use pve_imds_model::conf;
use pve_imds_model::request::Link;
use pve_imds_model::site::Site;
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::VmId;
use serde_json::{Value, json};

use super::sources::ours;
use super::{in_part, inventory, no_such_vm, vmid, warnings};
use crate::app;
use crate::app::admission::Admission;
use crate::cli::Inspect;
use crate::config::{ConfigError, Loaded};

/// Proxmox's own limit of a file under `/etc/pve`.
const LARGEST: u64 = 1 << 20;

/// Stands in for the VMID while a file is read whose name says none; what is printed says none either.
const NOBODY: u32 = 100;

pub(super) fn run(loaded: Result<Loaded, ConfigError>, inspect: &Inspect) -> anyhow::Result<()> {
    let what = inspect.what.as_str();
    let number = what.bytes().all(|byte| byte.is_ascii_digit()).then_some(what).filter(|_| !Path::new(what).exists());
    if let Some(vmid) = number.map(vmid).transpose()? {
        let checked = in_part(loaded?)?;
        let inventory = inventory(&checked)?;
        let Some(record) = inventory.vm(vmid) else { return Err(no_such_vm(vmid, &checked.pve_dir, &inventory)) };
        let mut ours = ours(&record.vm, record.pool.as_ref(), &app::settings(&checked, &inventory).site());
        ours["owner"] = json!(&*record.owner);
        ours["pool"] = json!(record.pool);
        ours["stale"] = json!(record.stale);
        let admission = Admission::new(inventory, checked.exclude);
        let rules = record.vm.nets.iter().map(|nic| {
            let tap = TapName { vmid, nic: nic.index };
            let rule = admission.rule(Link { tap, index: 0, since: 0 });
            (format!("net{}", nic.index), json!(rule.map(|rule| rule.to_string())))
        });
        ours["excluded"] = Value::Object(rules.collect());
        let warnings = warnings(&record.path.display(), &record.warnings, &record.vm);
        return print(serde_json::to_value(&*record.vm)?, &record.digest, ours, &warnings);
    }
    let (read, name) = match what {
        "-" => (read(stdin()), "standard input"),
        file => (File::open(file).and_then(read), file),
    };
    let bytes = read.map_err(|error| unreadable(name, &error))?;
    let number = Path::new(name).file_stem().and_then(|stem| stem.to_str()).and_then(VmId::parse);
    let vmid = number.or_else(|| VmId::new(NOBODY)).context("a VMID in range")?;
    let parsed = conf::parse(vmid, &bytes);
    let mut json = serde_json::to_value(&parsed.vm)?;
    if number.is_none() {
        json["vmid"] = Value::Null;
    }
    let ours = ours(&parsed.vm, None, &Site::default());
    print(json, &Digest::of(&bytes), ours, &warnings(&name, &parsed.warnings, &parsed.vm))
}

fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Why not, with the mend.
fn unreadable(name: &str, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("cannot read {name}: there is no such file; give a path or a VMID"),
        io::ErrorKind::IsADirectory => {
            anyhow::anyhow!("cannot read {name}: it is a directory; give a configuration in it")
        }
        io::ErrorKind::PermissionDenied => anyhow::anyhow!("cannot read {name}: {error}; run as root"),
        io::ErrorKind::FileTooLarge => {
            anyhow::anyhow!("cannot read {name}: larger than 1 MiB, which no configuration is")
        }
        _ => anyhow::anyhow!("cannot read {name}: {error}"),
    }
}

fn print(mut vm: Value, digest: &Digest, mut ours: Value, warnings: &[String]) -> anyhow::Result<()> {
    ours["warnings"] = json!(warnings);
    vm["imds"] = ours;
    vm["digest"] = json!(digest.to_string());
    vm["warnings"] = json!(warnings.len());
    for warning in warnings {
        writeln!(stderr(), "warning: {warning}")?;
    }
    writeln!(stdout(), "{vm:#}")?;
    Ok(())
}
