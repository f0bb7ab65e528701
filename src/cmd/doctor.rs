//! `doctor`: why a VM has no user data, where its block asks for secrets.
//!
//! In comes a VM; out goes one line for each link of the chain that its secrets come by, as far as the chain holds, and
//! behind the first link that is broken what mends it. Each link is the function that guests' requests take too; what is at
//! hand in a daemon is not used. Refused: to go on behind what is broken, and to print anything of a value or of a token.

mod reader;

use std::fmt;
use std::io::{Write, stderr, stdout};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pve_imds_datasources::backends::openbao::{FetchError, TOTAL, check_token};
use pve_imds_datasources::backends::pve::{Inventory, Quorum, Record, Seen};
use pve_imds_datasources::backends::secrets::{RenderError, wanted};
use pve_imds_model::fault::Outcome;
use pve_imds_model::notes::UserData;
use pve_imds_model::secrets::{Scope, Template};
use pve_imds_model::vm::{Vm, VmId};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use self::reader::{GROUP, Service};
use super::{inventory, no_such_vm, vmid};
use crate::app;
use crate::cli::Doctor;
use crate::config::{Checked, SecretStore};

/// For the token's file and what stands above it.
const FILE: Duration = Duration::from_secs(1);

/// A link of the chain, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Config,
    Notes,
    Quorum,
    Scope,
    Path,
    Token,
    Store,
    Fields,
}

/// Whether it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// It does, or may; something about it is odd.
    Warn {
        mend: String,
    },
    Fail {
        outcome: Outcome,
        mend: String,
    },
}

/// What there is to say of a link.
#[derive(Debug)]
struct Finding {
    link: Link,
    verdict: Verdict,
    detail: String,
}

/// Where the chain ends, and why.
#[derive(Debug)]
struct Broken {
    link: Link,
    outcome: Outcome,
    reason: String,
    mend: String,
}

/// Of the links so far.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

pub(super) fn run(checked: &Checked, doctor: &Doctor) -> anyhow::Result<()> {
    let vmid = vmid(&doctor.vmid)?;
    let inventory = inventory(checked)?;
    let Some(record) = inventory.vm(vmid) else { return Err(no_such_vm(vmid, &checked.pve_dir, &inventory)) };
    if *record.owner != *checked.node_name {
        let (owner, here) = (&record.owner, &checked.node_name);
        writeln!(stderr(), "warning: VM {vmid} is on node {owner}: this is what keeps its secrets from {here}")?;
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let mut findings = Findings::default();
    let examined = runtime.block_on(examine(checked, &inventory, vmid, &record, &mut findings));
    // What hangs in a file system is left to itself.
    runtime.shutdown_background();
    let Err(broken) = examined else { return findings.print(doctor.json) };
    let said = format!("VM {vmid}: {}: {}", broken.outcome, broken.reason);
    findings.0.push(broken.into());
    findings.print(doctor.json)?;
    bail!(said)
}

async fn examine(
    checked: &Checked,
    inventory: &Arc<Inventory>,
    vmid: VmId,
    record: &Record,
    findings: &mut Findings,
) -> Result<(), Broken> {
    let file = record.path.display();
    if asks_for_none(&record.vm) {
        findings.ok(Link::Notes, format!("{file}: its user data asks for no secrets"));
        return Ok(());
    }
    let (Some(secrets), Some(store)) = (app::settings(checked, inventory).secrets, &checked.secrets) else {
        return Err(disabled(&record.vm, findings));
    };
    let address = &store.settings.address;
    findings.ok(Link::Config, format!("secrets.enabled is set; the store is {address}"));

    // As long as a request would wait for it.
    let seen = secrets.look(vmid, Instant::now() + TOTAL).await.map_err(Link::Notes.broken())?;
    let block = wanted(&seen.vm).map_err(Link::Notes.broken())?;
    let template = Template::parse(block.text);
    let fields = template.fields().len();
    match fields {
        0 => findings.warn(
            Link::Notes,
            format!("{file}: secrets={}, and no place for any field", block.set),
            "write {{ secret \"<field>\" }} where a field belongs, or leave secrets= out",
        ),
        _ => findings.ok(Link::Notes, format!("{file}: secrets={}, fields: {fields}", block.set)),
    }

    let scope = match secrets.scope(&seen) {
        Err(error @ RenderError::NoQuorum) => return Err(Link::Quorum.broken()(error)),
        scope => {
            tell_quorum(seen.quorum, findings);
            scope.map_err(Link::Scope.broken())?
        }
    };
    findings.ok(Link::Scope, told_scope(&scope, &seen));
    let path = secrets.path(&scope, block.set).map_err(Link::Path.broken())?;
    findings.ok(Link::Path, path.as_str().to_owned());

    token(store, findings).await?;
    let begun = Instant::now();
    let set = secrets.store().ask(&path).await.map_err(|error| Link::Store.broken()(error.into()))?;
    let took = begun.elapsed().as_millis();
    findings.ok(Link::Store, format!("{address} answers within {took} ms, fields: {}", set.len()));
    let document = secrets.fill(&template, &set).map_err(Link::Fields.broken())?;
    let bytes = document.as_ref().len();
    findings.ok(Link::Fields, format!("each of the {fields} is there, and text; the document has {bytes} bytes"));
    Ok(())
}

/// Neither a set nor what may have been meant to name one.
fn asks_for_none(vm: &Vm) -> bool {
    matches!(&vm.notes.user_data, None | Some(Ok(UserData { secrets: None, .. })))
}

/// Nobody renders. A broken block is one all the same.
fn disabled(vm: &Vm, findings: &mut Findings) -> Broken {
    let reason = "its block says `secrets=`, and this node renders none (secrets.enabled)";
    let mend = "set secrets.enabled, secrets.address and secrets.token_file, or leave secrets= out";
    match wanted(vm) {
        Ok(_) => {
            Broken { link: Link::Config, outcome: Outcome::SecretsDisabled, reason: reason.into(), mend: mend.into() }
        }
        Err(error) => {
            findings.warn(Link::Config, reason.into(), mend);
            Link::Notes.broken()(error)
        }
    }
}

fn tell_quorum(quorum: Quorum, findings: &mut Findings) {
    match quorum {
        Quorum::Has => {
            findings.ok(Link::Quorum, "this node is part of the cluster's majority, or there is no cluster".into());
        }
        Quorum::Lacks => findings.warn(
            Link::Quorum,
            "this node has none, and secrets.require_quorum is false: what decides about scopes may be old".into(),
            RenderError::NoQuorum.mend(),
        ),
    }
}

fn told_scope(scope: &Scope, seen: &Seen) -> String {
    match (scope, &seen.pool) {
        (Scope::Tag(_), Some(pool)) => format!("{scope} (the VM is in pool {pool}, which does not count)"),
        _ => scope.to_string(),
    }
}

/// Whether the token can be read, by us and by the service.
async fn token(store: &SecretStore, findings: &mut Findings) -> Result<(), Broken> {
    let path = store.settings.token.display();
    let (file, service) = (store.settings.token.clone(), Service::here());
    let judged = spawn_blocking(move || check_token(&file).map(|()| service.reads(&file)));
    let broken = |reason, mend| Broken { link: Link::Token, outcome: Outcome::TokenUnreadable, reason, mend };
    // `None`: it hangs, or fell over.
    let Some(judged) = timeout(FILE, judged).await.ok().and_then(Result::ok) else {
        let reason = format!("secrets.token_file: {path} cannot be read within {FILE:?}");
        return Err(broken(reason, "its file system does not answer; put it on another".into()));
    };
    match judged.map_err(|bad| Link::Token.broken()(Arc::new(FetchError::from(bad)).into()))? {
        Ok(Ok(())) => findings.ok(Link::Token, format!("{path} holds one word, and the service can read it")),
        Ok(Err(closed)) if service.group.is_some() => {
            return Err(broken(format!("secrets.token_file: {closed}"), closed.mend()));
        }
        Ok(Err(closed)) => findings.warn(
            Link::Token,
            format!("{path} holds one word; this machine has no group {GROUP}, and as the unit has it {closed}"),
            "install debian/pve-imds.sysusers and run systemd-sysusers, if the daemon is systemd's",
        ),
        Err(error) => findings.warn(
            Link::Token,
            format!("{path} holds one word; whether the service can read it is not known: {error}"),
            "run this as root",
        ),
    }
    Ok(())
}

// === impl Link ===

impl Link {
    fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Notes => "notes",
            Self::Quorum => "quorum",
            Self::Scope => "scope",
            Self::Path => "path",
            Self::Token => "token",
            Self::Store => "store",
            Self::Fields => "fields",
        }
    }

    /// What a request would end with, at this link.
    fn broken(self) -> impl Fn(RenderError) -> Broken {
        move |error| Broken {
            link: self,
            outcome: error.outcome(),
            reason: error.to_string(),
            mend: error.mend().into(),
        }
    }
}

// === impl Finding ===

impl From<Broken> for Finding {
    fn from(Broken { link, outcome, reason, mend }: Broken) -> Self {
        Self { link, verdict: Verdict::Fail { outcome, mend }, detail: reason }
    }
}

impl Finding {
    fn json(&self) -> Value {
        let (link, detail) = (self.link.word(), &self.detail);
        match &self.verdict {
            Verdict::Ok => json!({"link": link, "status": "ok", "detail": detail}),
            Verdict::Warn { mend } => json!({"link": link, "status": "warn", "detail": detail, "mend": mend}),
            Verdict::Fail { outcome, mend } => {
                json!({"link": link, "status": "fail", "detail": detail, "outcome": outcome.word(), "mend": mend})
            }
        }
    }
}

/// A line, and below it what mends it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, detail) = (self.link.word(), &self.detail);
        match &self.verdict {
            Verdict::Ok => writeln!(f, "{:<5} {link:<8} {detail}", "ok"),
            Verdict::Warn { mend } => writeln!(f, "{:<5} {link:<8} {detail}\n{:<14} {mend}", "warn", "mend"),
            Verdict::Fail { outcome, mend } => {
                writeln!(f, "{:<5} {link:<8} {detail} ({outcome})\n{:<14} {mend}", "FAIL", "mend")
            }
        }
    }
}

// === impl Findings ===

impl Findings {
    fn ok(&mut self, link: Link, detail: String) {
        self.0.push(Finding { link, verdict: Verdict::Ok, detail });
    }

    fn warn(&mut self, link: Link, detail: String, mend: &str) {
        self.0.push(Finding { link, verdict: Verdict::Warn { mend: mend.to_owned() }, detail });
    }

    fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let mut out = stdout().lock();
        if as_json {
            writeln!(out, "{:#}", self.0.iter().map(Finding::json).collect::<Value>())?;
        } else {
            self.0.iter().try_for_each(|finding| write!(out, "{finding}"))?;
        }
        Ok(())
    }
}
