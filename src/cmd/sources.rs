//! Where a VM's answers come from, as `view --sources`, `inspect` and `taps` say it.

use std::io::{Write, stdout};

use pve_imds_datasources::backends::pve::Record;
use pve_imds_model::endpoint::Family;
use pve_imds_model::exclude::Rule;
use pve_imds_model::hidden::hidden;
use pve_imds_model::notes::BlockError;
use pve_imds_model::policy::{Ec2Tokens, MacRule, Policy};
use pve_imds_model::pools::PoolId;
use pve_imds_model::secrets::SetName;
use pve_imds_model::site::Site;
use pve_imds_model::sources::{Origin, Source, origins};
use pve_imds_model::vendor::File;
use pve_imds_model::vm::Vm;
use serde_json::{Map, Value, json};

use crate::config::Checked;

/// `view --sources`: one line for each answer, one for each dialect that they are told in, one for whether the node has
/// anything to do with the VM.
pub(super) fn print(record: &Record, checked: &Checked, site: &Site, rule: Option<&Rule>) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{:<16} {:<8} DETAIL", "ANSWER", "FROM")?;
    let mut row =
        |what: &str, from: &str, detail: &str| writeln!(out, "{}", format!("{what:<16} {from:<8} {detail}").trim_end());
    let Checked { nocloud_enabled, emulation, .. } = *checked;
    let refused = match &record.vm.notes.policy {
        Some(Err(_)) => Some("the policy is broken"),
        Some(Ok(Policy { enabled: false, .. })) => Some("the policy says `enabled: false`"),
        Some(Ok(_)) | None => None,
    };
    for Origin { what, source, broken } in origins(&record.vm, record.pool.as_ref(), site) {
        let detail = match (what, broken, source, refused) {
            (_, Some(error), ..) => format!("the block is broken: {error}"),
            (_, None, Source::Node | Source::Both, _) => files(&record.vm, record.pool.as_ref(), site).join(", "),
            ("imds", None, ..) => policy(record.vm.notes.policy.as_ref()),
            (_, None, Source::Refused, Some(why)) => why.to_owned(),
            ("user-data", None, Source::Refused, None) => {
                format!("the block says `secrets={}`, and secrets.enabled is false", set(&record.vm))
            }
            ("user-data", None, Source::Rendered, _) => format!("secrets={}", set(&record.vm)),
            _ => String::new(),
        };
        row(what, source.word(), &detail)?;
    }
    for (what, family) in [("nocloud", Family::Nocloud), ("openstack", Family::Openstack), ("ec2", Family::Ec2)] {
        match (refused, hidden(&record.vm, family, nocloud_enabled, emulation)) {
            (Some(why), _) => row(what, Source::Refused.word(), why)?,
            (None, Some(hidden)) => row(what, hidden.source().word(), &format!("not served: {hidden}"))?,
            (None, None) => row(what, Source::Default.word(), "served")?,
        }
    }
    match rule {
        Some(rule) => row("guests.exclude", "node", &format!("excluded ({rule}): neither guarded nor served"))?,
        None => row("guests.exclude", "node", "not excluded")?,
    }
    Ok(())
}

/// The set that its block names.
fn set(vm: &Vm) -> &str {
    vm.notes.secret_set().map_or("", SetName::as_str)
}

/// The node's files of vendor data that choose this VM.
fn files<'a>(vm: &'a Vm, pool: Option<&'a PoolId>, site: &'a Site) -> Vec<&'a str> {
    site.vendor.of(vm, pool).map(File::name).collect()
}

/// Every key of the policy that says something else than the default.
fn policy(block: Option<&Result<Policy, BlockError>>) -> String {
    let Some(Ok(policy)) = block else { return String::new() };
    let default = Policy::default();
    let mut said = Vec::new();
    let mut say = |differs: bool, text: String| said.extend(differs.then_some(text));
    say(!policy.enabled, "enabled: false".to_owned());
    say(policy.emulate.is_some(), format!("emulate: {}", policy.emulate.unwrap_or_default().word()));
    say(policy.ec2_tokens == Ec2Tokens::Required, "ec2_tokens: required".to_owned());
    say(policy.hop_limit != default.hop_limit, format!("hop_limit: {}", policy.hop_limit.get()));
    say(policy.mac == MacRule::Own, "mac: own".to_owned());
    say(policy.audiences.is_some(), format!("audiences: {}", policy.audiences.as_ref().map_or(0, Vec::len)));
    said.join(", ")
}

/// The part of `inspect` and `taps --json` that is ours.
pub(super) fn ours(vm: &Vm, pool: Option<&PoolId>, site: &Site) -> Value {
    let sources: Map<String, Value> = origins(vm, pool, site)
        .into_iter()
        .map(|origin| (origin.what.to_owned(), json!(origin.source.word())))
        .collect();
    let policy = match &vm.notes.policy {
        Some(Err(_)) => Value::Null,
        Some(Ok(policy)) => shown(policy),
        None => shown(&Policy::default()),
    };
    json!({"sources": sources, "vendor_files": files(vm, pool, site), "policy": policy})
}

fn shown(policy: &Policy) -> Value {
    json!({
        "enabled": policy.enabled,
        "emulate": policy.emulate.map(|emulate| emulate.word()),
        "ec2_tokens": if policy.ec2_tokens == Ec2Tokens::Required { "required" } else { "optional" },
        "hop_limit": policy.hop_limit.get(),
        "mac": if policy.mac == MacRule::Own { "own" } else { "any" },
        "audiences": policy.audiences,
    })
}
