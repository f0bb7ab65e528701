//! `doctor`: why a VM has no user data, where its block asks for secrets.
//!
//! In comes a VM; out goes one line for each link of the chain that its secrets come by, as far as the chain holds, and
//! behind the first link that is broken what mends it. Each link is the function that guests' requests take too; what is at
//! hand in a daemon is not used. Refused: to go on behind what is broken, and to print anything of a value or of a token.

mod reader;

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pve_imds_datasources::backends::openbao::{FetchError, SecretSet, TOTAL, check_token};
use pve_imds_datasources::backends::pve::{Inventory, Quorum, Record, Seen};
use pve_imds_datasources::backends::secrets::{RenderError, Secrets, Wanted, wanted};
use pve_imds_model::fault::Outcome;
use pve_imds_model::notes::UserData;
use pve_imds_model::secrets::{Scope, SecretPath, Template};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    /// It does, or may; something about it is odd.
    Warn,
    Fail,
}

/// What there is to say of a link.
#[derive(Debug)]
struct Finding {
    link: Link,
    status: Status,
    detail: String,
    outcome: Option<Outcome>,
    mend: Option<String>,
}

/// Why a link is broken.
#[derive(Debug)]
struct Broken {
    outcome: Outcome,
    reason: String,
    mend: String,
}

/// Tells of each link as it is tried.
struct Report {
    as_json: bool,
    findings: Vec<Finding>,
}

/// Everything that the chain is tried with.
struct Patient<'c> {
    secrets: Secrets,
    store: &'c SecretStore,
    vmid: VmId,
    record: Record,
}

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
    let mut report = Report { as_json: doctor.json, findings: Vec::new() };
    let examined = runtime.block_on(examine(checked, &inventory, vmid, record, &mut report));
    // What hangs in a file system is left to itself.
    runtime.shutdown_background();
    report.end()?;
    match examined? {
        Ok(()) => Ok(()),
        Err(Broken { outcome, reason, .. }) => anyhow::bail!("VM {vmid}: {outcome}: {reason}"),
    }
}

/// The outer error: nobody takes the report.
type Examined<T> = anyhow::Result<Result<T, Broken>>;

/// Goes on with what a link has brought, or ends with what is broken.
macro_rules! hold {
    ($report:expr, $link:expr, $tried:expr) => {
        match $tried {
            Ok(brought) => brought,
            Err(broken) => return $report.end_at($link, broken),
        }
    };
}

async fn examine(
    checked: &Checked,
    inventory: &Arc<Inventory>,
    vmid: VmId,
    record: Record,
    report: &mut Report,
) -> Examined<()> {
    if asks_for_none(&record.vm) {
        let file = record.path.display();
        report.ok(Link::Notes, format!("{file}: its user data asks for no secrets"))?;
        return Ok(Ok(()));
    }
    let (Some(secrets), Some(store)) = (app::settings(checked, inventory).secrets, &checked.secrets) else {
        let disabled = Broken::disabled();
        // A broken block is one whether or not there are secrets.
        if let Err(error) = wanted(&record.vm) {
            report.warn(Link::Config, disabled.reason, disabled.mend)?;
            return report.end_at(Link::Notes, error);
        }
        return report.end_at(Link::Config, disabled);
    };
    report.ok(Link::Config, format!("secrets.enabled is set; the store is {}", store.settings.address))?;
    let patient = Patient { secrets, store, vmid, record };
    let seen = hold!(report, Link::Notes, patient.look().await);
    let block = hold!(report, Link::Notes, wanted(&seen.vm));
    let template = Template::parse(block.text);
    patient.tell_notes(&block, &template, report)?;
    let scope = match patient.secrets.scope(&seen) {
        Err(error @ RenderError::NoQuorum) => return report.end_at(Link::Quorum, error),
        scope => {
            tell_quorum(seen.quorum, report)?;
            hold!(report, Link::Scope, scope)
        }
    };
    report.ok(Link::Scope, told_scope(&scope, &seen))?;
    let path = hold!(report, Link::Path, patient.secrets.path(&scope, block.set));
    report.ok(Link::Path, path.as_str().to_owned())?;
    hold!(report, Link::Token, patient.token(report).await?);
    let set = hold!(report, Link::Store, patient.ask(&path, report).await?);
    let document = hold!(report, Link::Fields, patient.secrets.fill(&template, &set));
    let bytes = document.as_ref().len();
    report.ok(
        Link::Fields,
        format!("each of the {} is there, and text; the document has {bytes} bytes", template.fields().len()),
    )?;
    Ok(Ok(()))
}

/// Neither a set nor what may have been meant to name one.
fn asks_for_none(vm: &Vm) -> bool {
    matches!(&vm.notes.user_data, None | Some(Ok(UserData { secrets: None, .. })))
}

fn tell_quorum(quorum: Quorum, report: &mut Report) -> anyhow::Result<()> {
    match quorum {
        Quorum::Has => {
            report.ok(Link::Quorum, "this node is part of the cluster's majority, or there is no cluster".into())
        }
        Quorum::Lacks => report.warn(
            Link::Quorum,
            "this node has none, and secrets.require_quorum is not set: what decides about scopes may be old".into(),
            RenderError::NoQuorum.mend().into(),
        ),
    }
}

fn told_scope(scope: &Scope, seen: &Seen) -> String {
    match (scope, &seen.pool) {
        (Scope::Tag(_), Some(pool)) => format!("{scope} (the VM is in pool {pool}, which does not count)"),
        _ => scope.to_string(),
    }
}

// === impl Patient ===

impl Patient<'_> {
    async fn look(&self) -> Result<Seen, RenderError> {
        Ok(timeout(TOTAL, self.secrets.look(self.vmid)).await.map_err(|_| RenderError::Hangs)??)
    }

    fn tell_notes(&self, block: &Wanted<'_>, template: &Template<'_>, report: &mut Report) -> anyhow::Result<()> {
        let (file, set) = (self.record.path.display(), block.set);
        match template.fields().len() {
            0 => report.warn(
                Link::Notes,
                format!("{file}: secrets={set}, and no place for any field"),
                "write {{ secret \"<field>\" }} where a field belongs, or leave secrets= out".into(),
            ),
            fields => report.ok(Link::Notes, format!("{file}: secrets={set}, fields: {fields}")),
        }
    }

    async fn token(&self, report: &mut Report) -> Examined<()> {
        let file = self.store.settings.token.clone();
        let judged = spawn_blocking(move || {
            let checked = check_token(&file);
            checked.map(|()| Service::here().reads(&file))
        });
        let Ok(judged) = timeout(FILE, judged).await else {
            return Ok(Err(Broken {
                outcome: Outcome::TokenUnreadable,
                reason: format!("secrets.token_file: {} cannot be read within {FILE:?}", self.token_path().display()),
                mend: "its file system does not answer; put it on another".into(),
            }));
        };
        let path = self.token_path().display();
        let readable = match judged.context("looking at the token's file fell over")? {
            Err(bad) => return Ok(Err(FetchError::from(bad).into())),
            Ok(readable) => readable,
        };
        match readable {
            Ok(Ok(())) => report.ok(Link::Token, format!("{path} holds one word, and the service can read it"))?,
            Ok(Err(closed)) if Service::here().group.is_none() => report.warn(
                Link::Token,
                format!("{path} holds one word; this machine has no group {GROUP}, and as its unit says it {closed}"),
                "install debian/pve-imds.sysusers and run systemd-sysusers, if the daemon is systemd's".into(),
            )?,
            Ok(Err(closed)) => {
                let (reason, mend) = (format!("secrets.token_file: {closed}"), closed.mend());
                return Ok(Err(Broken { outcome: Outcome::TokenUnreadable, reason, mend }));
            }
            Err(error) => report.warn(
                Link::Token,
                format!("{path} holds one word; whether the service can read it is not known: {error}"),
                "run this as root".into(),
            )?,
        }
        Ok(Ok(()))
    }

    fn token_path(&self) -> &Path {
        &self.store.settings.token
    }

    async fn ask(&self, path: &SecretPath, report: &mut Report) -> Examined<Arc<SecretSet>> {
        let begun = Instant::now();
        let set = match self.secrets.store().ask(path).await {
            Ok(set) => set,
            Err(error) => return Ok(Err(RenderError::from(error).into())),
        };
        let took = begun.elapsed().as_millis();
        report.ok(
            Link::Store,
            format!("{} answers within {took} ms, fields: {}", self.store.settings.address, set.len()),
        )?;
        Ok(Ok(set))
    }
}

// === impl Broken ===

impl Broken {
    fn disabled() -> Self {
        Self {
            outcome: Outcome::SecretsDisabled,
            reason: "its block says `secrets=`, and this node renders none (secrets.enabled)".into(),
            mend: "set secrets.enabled, secrets.address and secrets.token_file, or leave secrets= out".into(),
        }
    }
}

impl From<RenderError> for Broken {
    fn from(error: RenderError) -> Self {
        Self { outcome: error.outcome(), reason: error.to_string(), mend: error.mend().into() }
    }
}

impl From<FetchError> for Broken {
    fn from(error: FetchError) -> Self {
        RenderError::from(Arc::new(error)).into()
    }
}

// === impl Report ===

impl Report {
    fn ok(&mut self, link: Link, detail: String) -> anyhow::Result<()> {
        self.tell(Finding { link, status: Status::Ok, detail, outcome: None, mend: None })
    }

    fn warn(&mut self, link: Link, detail: String, mend: String) -> anyhow::Result<()> {
        self.tell(Finding { link, status: Status::Warn, detail, outcome: None, mend: Some(mend) })
    }

    /// The chain is broken here.
    fn end_at<T>(&mut self, link: Link, broken: impl Into<Broken>) -> Examined<T> {
        let broken = broken.into();
        let (detail, mend) = (broken.reason.clone(), Some(broken.mend.clone()));
        self.tell(Finding { link, status: Status::Fail, detail, outcome: Some(broken.outcome), mend })?;
        Ok(Err(broken))
    }

    /// At once: the next link may take a while.
    fn tell(&mut self, finding: Finding) -> anyhow::Result<()> {
        if self.as_json {
            self.findings.push(finding);
            return Ok(());
        }
        let Finding { link, status, detail, outcome, mend } = finding;
        let outcome = outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
        let mut out = stdout().lock();
        writeln!(out, "{:<5} {:<8} {detail}{outcome}", status.shown(), link.word())?;
        if let Some(mend) = mend {
            writeln!(out, "{:<14} {mend}", "mend")?;
        }
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        if self.as_json {
            writeln!(stdout(), "{:#}", self.findings.iter().map(Finding::json).collect::<Value>())?;
        }
        Ok(())
    }
}

impl Finding {
    fn json(&self) -> Value {
        let mut json = json!({"link": self.link.word(), "status": self.status.word(), "detail": self.detail});
        if let Some(outcome) = self.outcome {
            json["outcome"] = json!(outcome.word());
        }
        if let Some(mend) = &self.mend {
            json["mend"] = json!(mend);
        }
        json
    }
}

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
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    /// For people: the one that matters stands out.
    fn shown(self) -> &'static str {
        if self == Self::Fail { "FAIL" } else { self.word() }
    }
}
