//! `view`: the answer a VM would get, through the real stack, in this process.
//!
//! In come a VM and a path; out goes the answer, with a word in the place of each secret unless they are to be revealed.
//! Whether there is an answer is decided with the secrets either way, so the store is asked for both. Refused: to say
//! anything of a secret on standard error.

use std::fs;
use std::io::{Write, stderr, stdout};
use std::net::Ipv4Addr;

use anyhow::{Context, bail};
use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use pve_imds_datasources::backends::secrets::Secrets;
use pve_imds_datasources::{Router, Settings};
use pve_imds_middleware::empty;
use pve_imds_model::conf::{Reason, Warning};
use pve_imds_model::endpoint::{Endpoint, Family};
use pve_imds_model::fault::Outcome;
use pve_imds_model::hidden::hidden;
use pve_imds_model::request::{Directory, Link, Peer};
use pve_imds_model::session;
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::Nic;
use tower::ServiceExt;

use super::{Usage, inventory, no_such_vm, sources, vmid, warnings};
use crate::app;
use crate::app::admission::Admission;
use crate::app::stack::{Node, stack};
use crate::cli::View;
use crate::config::Checked;

pub(super) fn run(checked: &Checked, view: &View) -> anyhow::Result<()> {
    let vmid = vmid(&view.vmid)?;
    if !view.path.starts_with('/') {
        return Err(Usage(format!("{:?} is no path; paths begin with /", view.path)).into());
    }
    let mut request =
        Request::get(&view.path).body(empty()).map_err(|error| Usage(format!("{:?}: {error}", view.path)))?;
    let inventory = inventory(checked)?;
    let Some(record) = inventory.vm(vmid) else { return Err(no_such_vm(vmid, &checked.pve_dir, &inventory)) };
    let file = record.path.display();
    for warning in warnings(&file, &record.warnings, &record.vm) {
        writeln!(stderr(), "warning: {warning}")?;
    }
    if !record.ready {
        bail!(
            "VM {vmid}: {file} has nothing in it that can be used, as while a VM is cloned; a daemon that read it before goes on serving that \
             for a few seconds, to a guest that ran then"
        );
    }
    if *record.owner != *checked.node_name {
        let (owner, here) = (&record.owner, &checked.node_name);
        writeln!(
            stderr(),
            "warning: VM {vmid} is on node {owner}: this is what it would get from {here}, with {here}'s configuration, vendor \
             data and resolver"
        )?;
    }
    let first = record.vm.nets.iter().map(|nic| nic.index).min();
    let Some(nic) = view.nic.or(first) else {
        let mend = format!("give it one: qm set {vmid} --net0 virtio,bridge=vmbr0");
        match record.warnings.iter().find(|warning| is_of_a_nic(warning)) {
            Some(warning) => bail!("VM {vmid} has no network interface that can be read ({file}: {warning}); {mend}"),
            None => bail!("VM {vmid} has no network interface ({file}); {mend}"),
        }
    };
    // There is no interface, so none of this kernel's indexes is right.
    let link = Link { tap: TapName { vmid, nic }, index: 0, since: 0 };
    let rule = Admission::new(inventory.clone(), checked.exclude.clone()).rule(link);
    let settings = app::settings(checked, &inventory);
    if view.sources {
        return sources::print(&record, checked, &settings.site(), rule.as_ref());
    }
    if let Some(rule) = rule {
        writeln!(
            stderr(),
            "warning: guests.exclude leaves net{nic} out ({rule}): this is what it would get otherwise"
        )?;
    }
    let unknown = inventory.find(link).err();
    let router = Router::new(if view.reveal { settings } else { redacted(settings) });
    let node = Node::new(inventory, app::rules(checked), checked.emulation);
    // As the NIC itself would ask, where a policy wants to know.
    let mac = record.vm.nic(nic).and_then(Nic::address).unwrap_or_default();
    let peer = Peer { mac, ip: Ipv4Addr::UNSPECIFIED.into(), port: 0 };
    request.extensions_mut().insert(peer);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().context("cannot start a runtime")?;
    let ask = async |request| {
        let stack = stack(&node, link, router.clone());
        let (head, body) = stack.oneshot(request).await.unwrap_or_else(|never| match never {}).into_parts();
        let body = body.collect().await.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?;
        anyhow::Ok((head, body.to_bytes()))
    };
    let family = Endpoint::classify(request.uri().path()).family();
    let is_of_ec2 = family == Some(Family::Ec2);
    let (path, head, body) = runtime.block_on(async {
        // Where nothing is served without a session, as a client that knows them would ask.
        if is_of_ec2 && record.vm.requires_tokens() {
            let begin = Request::put(session::PATH).header(session::TTL_HEADER, "60").extension(peer).body(empty())?;
            let (head, token) = ask(begin).await?;
            if !head.status.is_success() {
                return Ok((session::PATH, head, token));
            }
            request.headers_mut().insert(session::TOKEN_HEADER, HeaderValue::from_maybe_shared(token)?);
        }
        let (head, body) = ask(request).await?;
        anyhow::Ok((&*view.path, head, body))
    })?;
    let mut out = stdout().lock();
    if view.include {
        writeln!(out, "HTTP/1.1 {}", head.status)?;
        for (name, value) in &head.headers {
            writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
        }
        writeln!(out)?;
    }
    if head.status.is_success() || view.include {
        out.write_all(&body)?;
    }
    out.flush()?;
    if head.status.is_success() {
        return Ok(());
    }
    // Not from the body: a 404 has none.
    let outcome = head.extensions.get().copied().unwrap_or(Outcome::Ok);
    let hidden = family.and_then(|family| hidden(&record.vm, family, checked.nocloud_enabled, checked.emulation));
    let why = match (unknown, outcome, hidden) {
        (Some(unknown), ..) => format!(": {unknown}"),
        (None, Outcome::NotFound, Some(hidden)) => format!(": {hidden}"),
        (None, Outcome::NotFound, None) => ": nothing is served there".to_owned(),
        (None, Outcome::VmExcluded, _) => ": its policy says `enabled: false`".to_owned(),
        (None, Outcome::NodeKeyUnreadable, _) => format!(": {}", keyless(checked)),
        (None, outcome, _) if outcome.is_of_secrets() => format!(": `pve-imds doctor {vmid}` says why"),
        (None, ..) => String::new(),
    };
    bail!("VM {vmid} would get {} for {path} on net{nic}: {outcome}{why}", head.status);
}

/// The same, with nothing in it of what is secret.
fn redacted(settings: Settings) -> Settings {
    Settings { secrets: settings.secrets.map(Secrets::redacted), ..settings }
}

/// Which key there is not, and how it is mended.
fn keyless(checked: &Checked) -> String {
    let key = checked.pve_dir.join("nodes").join(&checked.node_name).join("pve-ssl.key");
    let why = match fs::read(&key) {
        Err(error) => error.to_string(),
        Ok(_) => "it holds no private key that can be used".to_owned(),
    };
    let mend = "is this node's name right (node_name)? It takes root to read it, and `pvecm updatecerts` makes one where there is none";
    format!("{}: {why}; {mend}", key.display())
}

/// A line that was to be a network interface.
fn is_of_a_nic(warning: &Warning) -> bool {
    matches!(&warning.reason, Reason::Option { key, .. } if key.starts_with("net"))
}
